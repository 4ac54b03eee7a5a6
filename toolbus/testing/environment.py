"""``InvocationEnvironment``: run a handler as a worker does, with stand-ins for the worker and the bus."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import msgspec

from toolbus.bus.broker.protocols import Beginning, Ending, Note, session_of
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.middleware import Middleware, checked
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.envelope import Request, decode_frames, decode_request, encode_request, join_frames, new_id, new_run
from toolbus.bus.values.events import Event, Finished, Text
from toolbus.bus.values.options import CallOptions, merged
from toolbus.bus.values.results import Blob, ConfigurationError, EnvelopeError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.function import tool_of
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.handling import Threads
from toolbus.bus.worker.invocation import Caller
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.outcome import result_of
from toolbus.bus.worker.provide import Services
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.service import Session, ToolService
from toolbus.bus.worker.session_state import SessionState
from toolbus.bus.worker.statistics import Sampling

if TYPE_CHECKING:
    from toolbus.bus.broker.held.limits import Tallies
    from toolbus.bus.broker.take.sessions import Snapshots
    from toolbus.bus.broker.worker import WorkerBroker


class OwnTallies:
    """Counts for the middleware of one process, as ``broker.held.limits.Tallies`` keeps them for all."""

    def __init__(self) -> None:
        self._full: dict[str, float] = {}
        self._used: dict[tuple[str, int], int] = {}

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate; returns 0 when there was room, else the seconds until there is."""
        now = time.monotonic()
        full = max(self._full.get(name, 0.0), now) + period / limit
        wait = full - period - now
        # A rounding error is no wait: the limit is about whole intervals.
        if wait > 1e-6:
            return wait
        self._full[name] = full
        return 0.0

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota; returns 0 when there was some left, else the seconds until it starts anew."""
        now = time.time()
        interval = name, int(now // period)
        used = self._used.get(interval, 0)
        if used >= limit:
            return period - now % period
        self._used[interval] = used + 1
        return 0.0

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Count no usage: nobody asks for it."""


class NestedCall(msgspec.Struct, frozen=True):
    """A call that the handler made; ``options`` are those that would have gone to the bus."""

    tool: str
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one run of a handler.

    Attributes:
        result: the result that ``bus.call`` would have returned.
        events: the events that ``call.events()`` would have yielded, ending with ``Finished``.
        calls: the nested calls, in order.
    """

    result: ToolResult
    events: tuple[Event, ...]
    calls: tuple[NestedCall, ...]

    @property
    def texts(self) -> list[str]:
        """The pieces of text, as they were yielded."""
        return [event.text for event in self.events if isinstance(event, Text)]

    @property
    def text(self) -> str:
        """All text in one string."""
        return "".join(self.texts)

    @property
    def progress(self) -> list[Progress]:
        """The reported progress."""
        return [event for event in self.events if isinstance(event, Progress)]

    @property
    def blobs(self) -> list[Blob]:
        """The complete blobs."""
        return [event for event in self.events if isinstance(event, Blob)]


INSTANCE = "testing"

Confirm = bool | Callable[[ConfirmationRequest], bool | ConfirmationAnswer | None]
"""The answer to a handler's question, or a function that gives it; None means no answer."""


class Recorder:
    """A worker and its broker, as far as one run needs them; it assembles frames as a caller would."""

    def __init__(self, environment: InvocationEnvironment, threads: Threads, isolation: Isolation) -> None:
        # It is each of the steps that a run uses.
        self.steps = self.outbox = self.endings = self.beginnings = self.snapshots = self.notes = self
        self.broker = cast("WorkerBroker", self)
        self.settings = environment.settings
        self.threads = threads
        self.isolation = isolation
        self.middleware = environment._middleware
        self.most_gathered = self.settings.max_frame // 2
        self.clock = time.monotonic
        self.sampling = Sampling(self.note, sampled=False)
        self.instance = INSTANCE
        self.tallies = cast("Tallies", OwnTallies())
        self.congested = False
        self._answers = environment._answers
        self._confirm = environment._confirm
        self._timer: asyncio.TimerHandle | None = None
        self._assembly = Assembly()
        self._events: list[Event] = []
        self._calls: list[NestedCall] = []

    def outcome(self) -> Outcome:
        """Return the outcome of the run, once it has ended."""
        for event in reversed(self._events):
            if isinstance(event, Finished):
                return Outcome(event.result, tuple(self._events), tuple(self._calls))
        raise RuntimeError("the run ended without a result")

    # -- the worker -------------------------------------------------------------------------------

    def note(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None:
        """Do nothing: there are no operators to tell."""

    def ended(self, run: Run) -> None:
        """Do nothing: there are no slots."""

    def stopped(self, run: Run) -> None:
        """Do nothing: no slot waits for the handler."""

    def try_again(self, run: Run, error: ErrorInfo) -> bool:
        """Return that there is no other attempt."""
        return False

    def extended(self, run: Run) -> None:
        """Start the timer for a run's deadline; also called for the first deadline."""
        self.disarm()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, run.delivery.deadline - time.monotonic()), run.expire)

    def disarm(self) -> None:
        """Stop the timer when the run has ended."""
        if self._timer is not None:
            self._timer.cancel()

    async def caller(self) -> Caller:
        """Return the object that answers nested calls."""
        return self

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Answer a nested call with its stand-in."""
        given = dict(arguments or {})
        self._calls.append(NestedCall(tool, given, merged({}, cast("Mapping[str, Any]", options))))
        if tool not in self._answers:
            return ToolResult.fail(ErrorInfo("not_found", message=f"no stand-in for the tool {tool!r}; add one with answer({tool!r}, …)"))
        answer = self._answers[tool]
        try:
            value = answer(given) if callable(answer) else answer
            return result_of(await value if inspect.isawaitable(value) else value)
        except ToolError as error:
            return ToolResult.fail(error.error)

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Answer a handler's question as the test decided."""
        opened()
        answer = self._confirm(request) if callable(self._confirm) else self._confirm
        if isinstance(answer, bool):
            return ConfirmationAnswer(answer)
        return answer

    async def write(self, delivery: Delivery, note: Note) -> None:
        """Do nothing: no other worker could take the request over."""

    # -- the broker -------------------------------------------------------------------------------

    async def begin(self, delivery: Delivery) -> Beginning:
        """Let every ``once`` handler begin."""
        return "started"

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Send the frames in the next turn of the event loop."""
        asyncio.get_running_loop().call_soon(pack)

    async def forget(self, delivery: Delivery) -> None:
        """Do nothing: no snapshot is kept here."""

    async def room(self) -> None:
        """Return at once, since there is always room."""

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Add a frame."""
        frames, problems = decode_frames(join_frames([frame]), limit=sys.maxsize)
        if problems:
            raise EnvelopeError("; ".join(problems))
        for each in frames:
            self._events += self._assembly.feed(each)

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False, forgets: bool = False) -> None:
        """Add the last frame."""
        self.send(delivery, frame)

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Add the last frame of a request that would become a dead letter."""
        self.send(delivery, frame)


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


class TriedService(msgspec.Struct, eq=False):
    """One service, and the sessions of its calls, which last until the environment is closed.

    Attributes:
        served: it.
        isolation: where its isolated tools run.
        states: of every session that was opened.
    """

    served: Served
    isolation: Isolation
    states: dict[Session, TriedState] = {}
    _made: set[Session] = set()
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def execute(self, run: Run) -> None:
        """Run a call within its session, if the service has sessions."""
        request = run.delivery.request
        pair = session_of(request) if self.served.has_sessions else None
        if pair is not None:
            session = Session(*pair)
            run.session = state = self.states.setdefault(session, TriedState(self.served, session, request.id))
            try:
                async with self._lock:
                    if session not in self._made:
                        state.value = await self.served.open_session(session, dict(request.initial or {}))
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
        self._tried: dict[object, TriedService] = {}
        self._runs: set[Run] = set()
        self._threads: Threads | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._threads = Threads(_THREADS)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        tried, self._tried = self._tried, {}
        errors: list[Exception] = []
        for each in tried.values():
            for session, state in (*((session, found.value) for session, found in each.states.items()), (None, None)):
                try:
                    await each.served.cleanup(session, state)
                except Exception as problem:  # noqa: BLE001 - one failing clean-up must not stop the others; all are raised below
                    errors.append(problem)
        await self._services.aclose()
        for each in tried.values():
            await each.isolation.aclose()
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
        tried = await self._serve(owner)
        request = self._request(tried.served, name, dict(arguments or {}))
        recorder = Recorder(self, self._threads, tried.isolation)
        delivery = Delivery(request, "test", b"", 0, self.attempt, time.monotonic() + request.timeout, 0.0, new_run(), _NO_QUEUE, _NO_FENCE)
        loop = asyncio.get_running_loop()
        run = Run(recorder, loop, delivery, tried.served, tried.served.handler(request))
        run.task = task = loop.create_task(tried.execute(run))
        self._runs.add(run)
        recorder.extended(run)
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

    async def _serve(self, owner: object) -> TriedService:
        async with self._lock:
            tried = self._tried.get(_key(owner))
            if tried is None:
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
                tried = self._tried[_key(owner)] = TriedService(served, isolation)
            return tried

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
