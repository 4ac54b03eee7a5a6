"""``toolbus.invocation()``: a running call's view of itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, Unpack

from toolbus.bus import telemetry
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationAnswer
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.options import CallOptions, seconds
from toolbus.bus.values.results import BrokerUnavailable, CallCancelled, ErrorInfo, Progress, ToolResult

T = TypeVar("T")


class Caller(Protocol):
    """Makes nested calls; a ``ToolBus`` is one."""

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result."""


class InvokedRun(Protocol):
    """The run that an invocation is the handler's view of.

    Attributes:
        stopped: why the caller no longer waits for the call, or None.
    """

    stopped: ErrorInfo | None

    @property
    def invocation(self) -> Invocation:
        """The one invocation of this run."""

    @property
    def session_is_new(self) -> bool:
        """True if this call opened its session at this worker."""

    @property
    def session_state(self) -> Any:
        """The state of this call's session, as its service made it."""

    def emit(self, item: Progress) -> None:
        """Send progress to the caller; event loop only."""

    async def caller(self) -> Caller:
        """Return the bus for nested calls, opened at first use."""

    async def confirm(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask a person."""


class Invocation:
    """One running call.

    Attributes:
        attempt: delivery number, from 1; more than 1 after a worker crashed.
        deadline: monotonic seconds (``time.monotonic()``) at which the caller gives up; later when a person was asked.
    """

    __slots__ = ("_loop", "_nested", "_request", "_run", "attempt", "deadline")

    def __init__(self, run: InvokedRun, loop: asyncio.AbstractEventLoop, request: Request, *, attempt: int, deadline: float) -> None:
        self._run = run
        self._loop = loop
        self._request = request
        self._nested: set[concurrent.futures.Future[Any]] | None = None
        self.attempt = attempt
        self.deadline = deadline

    @property
    def tool(self) -> str:
        """The tool's name; empty for the untyped lower tier."""
        return self._request.tool

    @property
    def service(self) -> str:
        """The service's id."""
        return self._request.service

    @property
    def id(self) -> str:
        """The call's correlation id."""
        return self._request.id

    @property
    def user(self) -> str:
        """The tenant on whose behalf the call runs."""
        return self._request.user

    @property
    def session(self) -> str:
        """The agent's session, or empty."""
        return self._request.session

    @property
    def session_is_new(self) -> bool:
        """True if this call opened its session at this worker, which has no state of it yet; for services that have sessions."""
        return self._run.session_is_new

    @property
    def state(self) -> Any:
        """The state of the call's session, as ``ToolService.open_session`` or ``load_session`` returned it; None if the service makes none.

        Raises:
            ToolError: the call names neither a session nor a user, and so has no state.
        """
        return self._run.session_state

    @property
    def idempotency_key(self) -> str:
        """The caller's key, or the call's id: stable over attempts."""
        return self._request.idempotency_key or self._request.id

    @property
    def metadata(self) -> Mapping[str, str]:
        """The caller's own strings."""
        return self._request.metadata

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once the caller no longer waits for this call."""
        return self._run.stopped is not None

    def check_cancelled(self) -> None:
        """Stop here when the caller no longer waits; for handlers that run in a thread.

        Raises:
            CallCancelled: the call was cancelled, lost its lease or passed its deadline.
        """
        if self._run.stopped is not None:
            raise CallCancelled(str(self._run.stopped))

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell the caller how far the call has come; from the event loop or a thread."""
        item = Progress(done, total, message)
        if _in_loop(self._loop):
            self._run.emit(item)
        else:
            self._loop.call_soon_threadsafe(self._run.emit, item)

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call another tool on behalf of the same user and session.

        The nested call's timeout is at most what is left of this one; it is cancelled with this one.
        """
        self.check_cancelled()
        options.setdefault("user", self.user)
        options.setdefault("session", self.session)
        asked = options.get("timeout")
        options["timeout"] = max(0.001, self.remaining if asked is None else min(seconds(asked, "timeout"), self.remaining))
        caller = await self._run.caller()
        return await caller.call(tool, arguments, **options)

    async def caller(self) -> Caller:
        """Return the bus on which nested calls are made, a ``ToolBus``, for more than calls; it is the worker's, and stays open.

        Calls that are made on it directly go on when this one ends.
        """
        return await self._run.caller()

    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """``call`` for handlers that run in a thread.

        Raises:
            CallCancelled: the caller no longer waits for this call; the nested call is cancelled with it.
            RuntimeError: called in the event loop's own thread, which it would block for good.
        """
        return self._wait_for(self.call(tool, arguments, **options), "call")

    async def confirm(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        """Wait until a person allows what ``question`` says, which ``data`` may show in detail; returns who did, and a note.

        The request can be answered from any process, by ``toolbus confirm`` or ``bus.confirmations``. The call's time stands still
        meanwhile. A run that replaces this one after a crash asks anew.

        Args:
            question: one or two sentences.
            data: anything that JSON can express.
            timeout: seconds for which it can be answered.

        Raises:
            ToolError: ``forbidden`` when it is denied, ``deadline_exceeded`` when there is no answer; let it pass, and the call ends so.
            ConfigurationError: ``timeout`` is no time.
        """
        self.check_cancelled()
        return await self._run.confirm(question, data, timeout)

    def confirm_sync(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        """``confirm`` for handlers that run in a thread.

        Raises:
            CallCancelled: the caller no longer waits for this call.
            RuntimeError: called in the event loop's own thread, which it would block for good.
        """
        return self._wait_for(self.confirm(question, data, timeout=timeout), "confirm")

    def _wait_for(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run a coroutine in the event loop, and wait for it in this thread."""
        if _in_loop(self._loop):
            work.close()
            raise RuntimeError(f"{name}_sync() would block the event loop; use `await invocation().{name}(...)`")
        if self._run.stopped is not None:
            work.close()
            self.check_cancelled()
        if self._nested is None:
            self._nested = set()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._nested.add(future)
        try:
            if self._run.stopped is not None:
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise CallCancelled(str(self._run.stopped or f"the nested {name} was cancelled")) from None
        finally:
            self._nested.discard(future)

    def cancel_nested(self) -> None:
        """Cancel the nested calls of handlers in threads; for the worker."""
        for future in tuple(self._nested or ()):
            future.cancel()


_current: ContextVar[InvokedRun] = ContextVar("toolbus_invocation")

enter = _current.set
"""Make a run the current one of this context; for the worker. Its invocation is made when a handler asks for it."""


def invocation() -> Invocation:
    """Return the call that is running here, also in threads that the worker started for it.

    Raises:
        RuntimeError: no call is running here.
    """
    try:
        run = _current.get()
    except LookupError:
        raise RuntimeError("invocation() is only available while a tool runs") from None
    return run.invocation


def _in_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0


class Bus(Caller, Protocol):
    """The part of a ``ToolBus`` that handlers use to call other tools."""

    async def open(self) -> None:
        """Connect."""

    async def aclose(self) -> None:
        """Disconnect."""

    async def end_session(self, user: str, session: str) -> None:
        """End a session at every worker."""


class NestedBus:
    """One bus for all nested calls of a worker.

    Args:
        make: makes a bus that is not open yet; it may take tenths of a second.
    """

    def __init__(self, make: Callable[[], Bus]) -> None:
        self._make = make
        # The bus outlives the call that opens it: what it starts is not to see that call's context variables.
        self._context = contextvars.copy_context()
        self._lock = asyncio.Lock()
        self._bus: Bus | None = None

    async def get(self) -> Bus:
        """Return the open bus. While the server can't be reached it is tried again, for as long as the call that asks may run.

        Raises:
            BrokerError: the server refuses the connection.
        """
        async with self._lock:
            delay = _RETRY_FIRST
            while self._bus is None:
                bus = await asyncio.to_thread(self._make)
                try:
                    await asyncio.create_task(bus.open(), context=self._context.copy())
                except BrokerUnavailable as error:
                    telemetry.log.warning("nested.unavailable", error=str(error), retry_in=delay)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, _RETRY_MOST)
                else:
                    self._bus = bus
            return self._bus

    async def close_session(self, user: str, session: str) -> None:
        """End a session that handlers' calls were made in."""
        if self._bus is not None:
            await self._bus.end_session(user, session)

    async def aclose(self) -> None:
        """Close the bus, if a handler ever needed it."""
        # While it closes, nothing more can be asked of it.
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.aclose()
