"""``toolbus.invocation()``: a running call's view of itself, and the questions that it asks a person."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

import msgspec

from toolbus.bus.broker.protocols import Note
from toolbus.bus.values.confirmations import (
    CONFIRM_TIMEOUT,
    MOST_QUESTION,
    ConfirmationAnswer,
    ConfirmationRequest,
    denied,
    digest_of,
    plain,
    shown,
)
from toolbus.bus.values.envelope import Confirm, Request, new_run
from toolbus.bus.values.options import CallOptions, seconds
from toolbus.bus.values.results import BrokerError, CallCancelled, CallRefused, ErrorInfo, ToolError, ToolResult, deadline_exceeded
from toolbus.bus.values.settings import Settings

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

T = TypeVar("T")


class Caller(Protocol):
    """Makes nested calls; a ``ToolBus`` is one."""

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call a tool and wait for its result."""


class Invocation(ABC):
    """One running call.

    Attributes:
        attempt: delivery number, from 1; more than 1 after a worker crashed.
        deadline: monotonic seconds (``time.monotonic()``) at which the caller gives up; later when a person was asked.
    """

    __slots__ = ("_loop", "_nested", "_request", "attempt", "deadline")

    def __init__(self, loop: asyncio.AbstractEventLoop, request: Request, *, attempt: int, deadline: float) -> None:
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
        return False

    @property
    def state(self) -> Any:
        """The state of the call's session, as ``ToolService.open_session`` or ``load_session`` returned it; None if the service makes none.

        Raises:
            ToolError: the call names neither a session nor a user, and so has no state.
        """
        return None

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
        return self._stopped() is not None

    def check_cancelled(self) -> None:
        """Stop here when the caller no longer waits; for handlers that run in a thread.

        Raises:
            CallCancelled: the call was cancelled, lost its lease or passed its deadline.
        """
        if self._stopped() is not None:
            raise CallCancelled(str(self._stopped()))

    @abstractmethod
    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell the caller how far the call has come; from the event loop or a thread."""

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Call another tool on behalf of the same user and session.

        The nested call's timeout is at most what is left of this one; it is cancelled with this one.
        """
        self.check_cancelled()
        options.setdefault("user", self.user)
        options.setdefault("session", self.session)
        asked = options.get("timeout")
        options["timeout"] = max(0.001, self.remaining if asked is None else min(seconds(asked, "timeout"), self.remaining))
        caller = await self.caller()
        return await caller.call(tool, arguments, **options)

    @abstractmethod
    async def caller(self) -> Caller:
        """Return the bus on which nested calls are made, a ``ToolBus``, for more than calls; it is the worker's, and stays open.

        Calls that are made on it directly go on when this one ends.
        """

    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """``call`` for handlers that run in a thread.

        Raises:
            CallCancelled: the caller no longer waits for this call; the nested call is cancelled with it.
            RuntimeError: called in the event loop's own thread, which it would block for good.
        """
        return self._wait_for(self.call(tool, arguments, **options), "call")

    @abstractmethod
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

    def confirm_sync(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        """``confirm`` for handlers that run in a thread.

        Raises:
            CallCancelled: the caller no longer waits for this call.
            RuntimeError: called in the event loop's own thread, which it would block for good.
        """
        return self._wait_for(self.confirm(question, data, timeout=timeout), "confirm")

    def _wait_for(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run a coroutine in the event loop, and wait for it in this thread."""
        if self._is_in_loop():
            work.close()
            raise RuntimeError(f"{name}_sync() would block the event loop; use `await invocation().{name}(...)`")
        if self._stopped() is not None:
            work.close()
            self.check_cancelled()
        if self._nested is None:
            self._nested = set()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._nested.add(future)
        try:
            if self._stopped() is not None:
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            raise CallCancelled(str(self._stopped() or f"the nested {name} was cancelled")) from None
        finally:
            self._nested.discard(future)

    def _stopped(self) -> ErrorInfo | None:
        """Return why the caller no longer waits for this call, or None."""
        return None

    def _is_in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def cancel_nested(self) -> None:
        """Cancel the nested calls of handlers in threads; for the worker."""
        for future in tuple(self._nested or ()):
            future.cancel()


_current: ContextVar[Callable[[], Invocation]] = ContextVar("toolbus_invocation")

enter = _current.set
"""Say how the invocation of this context is found, for the worker; it is made when a handler asks for it."""


def invocation() -> Invocation:
    """Return the call that is running here, also in threads that the worker started for it.

    Raises:
        RuntimeError: no call is running here.
    """
    try:
        current = _current.get()
    except LookupError:
        raise RuntimeError("invocation() is only available while a tool runs") from None
    return current()


class Questions(msgspec.Struct, eq=False):
    """The questions of one run, one at a time.

    Args:
        delivery: of the run whose handler asks.
        owner: of the tool.
        broker: where a question waits for its answer.
        settings: for how long all of them together may wait, and how much data one may show.
        clock: returns monotonic seconds.
        tell: tells the caller that its call waits, or does so no longer.
        extend: sets a later deadline of the call, in monotonic seconds.
    """

    delivery: Delivery
    owner: str
    broker: WorkerBroker
    settings: Settings
    clock: Callable[[], float]
    tell: Callable[[Confirm], None]
    extend: Callable[[float], None]
    _waited: float = 0.0
    # Of the question that waits now: since when, for how long at most (0 when there is none), and the call's deadline without that.
    _since: float = 0.0
    _most: float = 0.0
    _deadline: float = 0.0
    _one: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def ask(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask, and wait for the answer.

        Raises:
            ToolError: ``forbidden`` when it is no, ``deadline_exceeded`` when there is none, ``overloaded`` or ``unavailable`` when
                the server could not be reached.
            ToolError: ``invalid_arguments`` when question or data are too long to be shown.
            EnvelopeError: JSON can't express the data.
            ConfigurationError: ``timeout`` is no time.
        """
        timeout = seconds(timeout, "timeout")
        request = self._request(question, data)
        async with self._one:
            most = min(timeout, self.settings.max_timeout - self._waited)
            answer = await self._asked(request, most) if most > 0 else None
        if answer is None:
            raise CallRefused(deadline_exceeded(f"nobody answered within {most:g} s: {question}", "unconfirmed"))
        if not answer.allowed:
            raise CallRefused(denied(repr(question), answer.reason, answer.by))
        return answer

    def join(self, deadline: float) -> float:
        """Take in the deadline of a caller that joined; return what it is now: its time stands still, too, while a question waits."""
        if not self._most:
            return deadline
        self._deadline = max(self._deadline, deadline - (self.clock() - self._since))
        return self._deadline + self._most

    async def _asked(self, request: ConfirmationRequest, most: float) -> ConfirmationAnswer | None:
        delivery, since = self.delivery, self.clock()
        self._deadline, self._since, self._most = delivery.deadline, since, most
        answer: ConfirmationAnswer | None = None
        asked = False

        def opened() -> None:
            # Not before: a person may answer the request as soon as the caller shows it.
            nonlocal asked
            asked = True
            self.tell(Confirm(request.id, request.question, since + most - self.clock()))

        self.extend(delivery.deadline + most)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most):
                    await self.broker.steps.notes.write(delivery, Note(self._deadline, since, since + most))
                left = since + most - self.clock()
                answer = await self.broker.ask(delivery, request, left, opened) if left > 0 else None
        except BrokerError as error:
            raise CallRefused(ErrorInfo("unavailable", "unconfirmed", f"nobody could be asked: {error}", retryable=True)) from None
        finally:
            took = min(self.clock() - since, most)
            self._waited += took
            self._most = 0.0
            self.extend(self._deadline + took)
            if asked:
                self.tell(Confirm(request.id, allowed=None if answer is None else answer.allowed))
        with contextlib.suppress(BrokerError):
            # Without it the next run has a little more time than it should.
            await self.broker.steps.notes.write(delivery, Note(delivery.deadline))
        return answer

    def _request(self, question: str, data: Any) -> ConfirmationRequest:
        if len(question) > MOST_QUESTION:
            # The end of it may be what matters.
            message = f"a question has at most {MOST_QUESTION:,} characters, not {len(question):,}; the rest belongs in its data"
            raise ToolError(message, type="invalid_arguments", code="unreadable")
        call = self.delivery.request
        value, document = plain(data, anything=True)
        return ConfirmationRequest(
            new_run(),
            call.id,
            call.tool,
            question,
            asker="worker",
            service=call.service,
            owner=self.owner,
            user=call.user,
            session=call.session,
            digest=digest_of("worker", call.service, call.tool, call.user, call.session, question, value),
            **({} if data is None else shown(value, document, self.settings.max_request)),
        ).bounded()
