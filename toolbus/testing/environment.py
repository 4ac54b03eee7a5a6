"""``InvocationEnvironment``: run a handler as a worker does, without a bus."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Hashable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from toolbus.bus.broker.protocols import session_of
from toolbus.bus.broker.take.requests import Delivery, Fence
from toolbus.bus.middleware.chain import Middleware, checked
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.envelope import Request, decode_request, encode_request, new_id, new_run
from toolbus.bus.values.results import ConfigurationError, EnvelopeError, ErrorInfo, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import tool_of
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.handling import Threads
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.provide import Services
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.service import Session, ToolService
from toolbus.bus.worker.sessions import SessionState
from toolbus.testing.recorder import Confirm, Outcome, Recorder

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import RequestStream
    from toolbus.bus.broker.take.sessions import Snapshots

# No server has delivered the request.
_NO_QUEUE, _NO_FENCE = cast("RequestStream", None), Fence(b"", b"")


class TriedState(SessionState, eq=False):
    """The state of a session in a test: it is written down and read back after each call, and never lost."""

    token: str = ""

    async def leave(self, delivery: Delivery, snapshots: Snapshots, *, keep: bool, done: bool) -> bool:
        """Let the service write the state down, and read it back."""
        if keep:
            saved = json.loads(encode_data(await self.served.save_session(self.session, self.value)))
            self.value = await self.served.load_session(self.session, saved)
        return True


class TriedSessions:
    """The sessions of one service's calls, which last until the environment is closed.

    Attributes:
        states: of every session that was opened.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._made: set[Session] = set()
        self._lock = asyncio.Lock()
        self.states: dict[Session, TriedState] = {}

    async def execute(self, run: Run) -> None:
        """Run a call within its session."""
        request = run.delivery.request
        pair = session_of(request)
        if pair is not None:
            session = Session(*pair)
            run.session = state = self.states.setdefault(session, TriedState(self._served, session, request.id))
            try:
                async with self._lock:
                    if session not in self._made:
                        state.value = await self._served.open_session(session, dict(request.initial or {}))
                        self._made.add(session)
            except Exception as error:  # noqa: BLE001 - the service's own code
                run.stop(run.error_info(error))
                return
        await run.execute()


_THREADS = 32


class InvocationEnvironment:
    """Calls handlers as a worker does: bound, validated, in a thread or the loop, within their deadline.

    Use it with ``async with``. Services start at their first call, and are cleaned up at the end, after their sessions. Arguments and
    results pass through the wire format, so values that JSON can't carry fail here too. Failed runs are not tried again.

    Args:
        user: the caller, in ``invocation()``.
        session: the caller's session there.
        metadata: of the call there.
        idempotency_key: of the call there.
        initial: of what services make the state of the session.
        config: values for ``invoke``, added to those of the tool's descriptor.
        timeout: seconds until the deadline; by default the tool's own, else that of the settings.
        attempt: delivery number of the call's request.
        answers: stand-ins for the tools that the handler calls, see ``answer``.
        confirm: the answer to a handler's question: True, False, or a function of the request (None: no answer).
        middleware: middleware around every handler.
        provide: values for handlers' parameters of these types, as for ``Worker``.
        settings: limits on frames and output.
    """

    def __init__(
        self,
        *,
        user: str = "",
        session: str = "",
        config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        attempt: int = 1,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str = "",
        initial: Mapping[str, Any] | None = None,
        answers: Mapping[str, object] | None = None,
        confirm: Confirm = True,
        middleware: Sequence[Middleware] = (),
        provide: Mapping[type, object] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.user = user
        self.session = session
        self.config = dict(config or {})
        self.timeout = timeout
        self.attempt = attempt
        self.metadata = dict(metadata or {})
        self.idempotency_key = idempotency_key
        self.initial = None if initial is None else dict(initial)
        self.settings = Settings() if settings is None else settings
        self._answers = dict(answers or {})
        self._confirm = confirm
        self._middleware = checked(middleware)
        self._services = Services(provide)
        self._served: dict[object, Served] = {}
        self._sessions: dict[object, TriedSessions] = {}
        self._isolations: dict[object, Isolation] = {}
        self._runs: set[Run] = set()
        self._threads: Threads | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._threads = Threads(_THREADS)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        served, self._served = self._served, {}
        sessions, self._sessions = self._sessions, {}
        errors: list[Exception] = []
        for key, each in served.items():
            opened = sessions[key].states.items() if key in sessions else ()
            for session, state in (*((session, found.value) for session, found in opened), (None, None)):
                try:
                    await each.cleanup(session, state)
                except Exception as problem:  # noqa: BLE001 - one failing clean-up must not stop the others; all are raised below
                    errors.append(problem)
        await self._services.aclose()
        for isolation in self._isolations.values():
            await isolation.aclose()
        self._isolations.clear()
        if self._threads is not None:
            self._threads.close()
            self._threads = None
        if errors and error is None:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("several services failed to clean up", errors)

    def answer(self, tool: str, answer: object) -> None:
        """Answer nested calls of ``tool`` with a value, a ``ToolResult``, or a function of the arguments (also async).

        A function that raises ``ToolError`` fails the nested call with it.
        """
        self._answers[tool] = answer

    async def run(self, target: object, arguments: Mapping[str, Any] | None = None, *, tool: str = "") -> Outcome:
        """Call a ``@tool`` function, a service's ``@tool`` method, or a ``ToolService`` (class or instance) and wait for its end.

        Args:
            tool: name of a service's tool; without it the service's untyped ``invoke`` is called.

        Raises:
            ConfigurationError: the target is not a tool, or the environment is not open.
            EnvelopeError: JSON can't carry the arguments, or they are too large.
        """
        if self._threads is None:
            raise ConfigurationError("the environment is not open; use `async with InvocationEnvironment() as environment:`")
        owner, name = _aim(target, tool)
        served = await self._serve(owner)
        request = self._request(served, name, dict(arguments or {}))
        recorder = Recorder(self.settings, self._threads, self._isolations[_key(owner)], self._middleware, self._answers, self._confirm)
        delivery = Delivery(request, "test", b"", 0, self.attempt, time.monotonic() + request.timeout, 0.0, new_run(), _NO_QUEUE, _NO_FENCE)
        loop = asyncio.get_running_loop()
        run = Run(recorder.context, loop, delivery, served, served.handler(request))
        sessions = self._sessions.get(_key(owner))
        run.task = task = loop.create_task(run.execute() if sessions is None else sessions.execute(run))
        self._runs.add(run)
        recorder.arm(run)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            run.abandon()
            raise
        finally:
            recorder.disarm()
            self._runs.discard(run)
        return recorder.outcome()

    async def call(self, target: object, arguments: Mapping[str, Any] | None = None, *, tool: str = "") -> ToolResult:
        """Do the same as ``run`` and return only the result; arguments that can't be sent are answered, as ``bus.call`` does.

        Raises:
            ConfigurationError: the target is not a tool, or the environment is not open.
        """
        try:
            return (await self.run(target, arguments, tool=tool)).result
        except EnvelopeError as error:
            return ToolResult.fail(ErrorInfo("invalid_arguments", error.code, str(error)))

    @property
    def running(self) -> int:
        """The number of calls that run now."""
        return len(self._runs)

    def cancel(self) -> None:
        """Cancel the running calls, as a caller would."""
        for run in [*self._runs]:
            run.cancel()

    async def _serve(self, owner: object) -> Served:
        async with self._lock:
            served = self._served.get(_key(owner))
            if served is None:
                served = collect(owner, self.settings, self._services)[0]
                await self._services.start()
                isolation = Isolation(self.settings, served.isolated())
                try:
                    if served.isolated():
                        await isolation.open()
                    await served.startup(self.settings)
                except BaseException:
                    await isolation.aclose()
                    raise
                self._isolations[_key(owner)] = isolation
                if served.has_sessions:
                    self._sessions[_key(owner)] = TriedSessions(served)
                self._served[_key(owner)] = served
            return served

    def _request(self, served: Served, name: str, arguments: dict[str, Any]) -> Request:
        descriptor = next((each for each in served.publication.tools if each.name == name), None)
        if name and descriptor is None:
            known = ", ".join(each.name for each in served.publication.tools) or "none"
            raise ConfigurationError(f"service {served.id!r} has no tool {name!r} (it has: {known})")
        usual = descriptor.timeout if descriptor is not None else 0.0
        request = Request(
            id=new_id(),
            agent="test",
            service=served.id,
            tool=name,
            user=self.user,
            session=self.session,
            config={**({} if descriptor is None else descriptor.config), **self.config},
            arguments=arguments,
            timeout=self.timeout or usual or self.settings.timeout,
            events=True,
            metadata=self.metadata,
            idempotency_key=self.idempotency_key,
            initial=self.initial,
        )
        limit = self.settings.max_request
        return decode_request(encode_request(request, limit=limit), limit=limit)


def _key(owner: object) -> object:
    # An object with __eq__ alone has no hash; its tool keeps it, and so its id.
    return owner if isinstance(owner, Hashable) else id(owner)


def _aim(target: object, tool: str) -> tuple[object, str]:
    """Return the object to serve, and the name of its tool to call."""
    found = tool_of(target)
    if found is None:
        return target, tool
    if inspect.ismethod(target) and isinstance(target.__self__, ToolService):
        return target.__self__, found.name
    return target, found.name
