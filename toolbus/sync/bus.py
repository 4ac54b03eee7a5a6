"""``ToolBus`` and what it gives out, for callers without an event loop.

Methods that ``waiting``, ``following`` or ``making`` make have the parameters and the docstrings of the asynchronous ones.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

import anyio
from anyio.from_thread import start_blocking_portal

from toolbus.bus.broker.held import confirmations as shared
from toolbus.bus.broker.held import limits
from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord
from toolbus.bus.client import bus as aio
from toolbus.bus.client import confirmations
from toolbus.bus.client.calls import call as calls
from toolbus.bus.client.executor import executor as executors
from toolbus.bus.client.executor import observers, turn
from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT, Observer
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.middleware import Middleware
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationRequest
from toolbus.bus.values.options import CallOptions, session_id
from toolbus.bus.values.results import ConfigurationError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.sync.loop import NOT_OPEN, FindLoop, Loop, Mirror, Reading, following, making, waiting


class Call(Mirror[calls.Call]):
    """One call, read synchronously; see ``toolbus.Call``."""

    result = waiting(calls.Call.result)
    events = following(calls.Call.events)
    __iter__ = following(calls.Call.__aiter__)

    id = Reading[str]()
    """The call's correlation id."""
    done = Reading[bool]()
    """True when the call has its result."""

    def __enter__(self) -> Self:
        self._loop().run(self.asynchronous.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the call now; the handler is told."""
        # Closing the bus ended its calls, so there is nothing to ask of a closed one.
        if not self.asynchronous.done:
            self._loop().run(self.asynchronous.cancel)


class Tools(Mirror[ToolView], dict[str, Tool]):
    """Tools by name, sorted, as they were when they were asked for.

    Attributes:
        asynchronous: the live view that they are from, which belongs to the event loop.
    """

    definitions = waiting(ToolView.definitions)
    changes = following(ToolView.changes, lasting=True)

    def __init__(self, loop: FindLoop, view: ToolView) -> None:
        super().__init__(loop, view)
        self.update(loop().run(lambda: dict(view)))

    def filter(
        self,
        *,
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
        names: Collection[str] | None = None,
        user: str | None = None,
    ) -> Tools:
        """Return the tools in any of these groups, of any of these categories, with any of these names, that this user may see."""
        return Tools(self._loop, self.asynchronous.filter(groups=groups, categories=categories, names=names, user=user))


class Watch(Mirror[observers.Watch]):
    """Events that wait for one reader, until the bus is closed."""

    __iter__ = following(observers.Watch.__aiter__, lasting=True)

    dropped = Reading[int]()
    """The number of events that were lost because the reader was too slow."""

    def __enter__(self) -> Self:
        self.asynchronous.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.asynchronous.__exit__(*exception)


class EventBus(Mirror[observers.EventBus]):
    """Tells observers, and those who watch, of every call that the bus's executors make."""

    watch = making(Watch, observers.EventBus.watch)
    publish = waiting(observers.EventBus.publish)

    def __len__(self) -> int:
        return len(self.asynchronous)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer`` with each event; what is returned ends that. It stays subscribed when the bus is closed and opened again.

        It is called in the bus's own thread, so it must return at once and can't use the bus. What it raises is logged and nothing else.

        Raises:
            ConfigurationError: it is a coroutine function.
        """
        return self.asynchronous.subscribe(observer)


class Confirmation(Mirror[confirmations.Confirmation]):
    """One call that waits for a confirmation; see ``toolbus.Confirmation``. ``str()`` is the text that is shown."""

    allow = waiting(confirmations.Confirmation.allow)
    deny = waiting(confirmations.Confirmation.deny)
    answer = waiting(confirmations.Confirmation.answer)
    id = Reading[str]()
    call = Reading[str]()
    tool = Reading[str]()
    description = Reading[str]()
    effect = Reading[str]()
    external = Reading[bool]()
    user = Reading[str]()
    session = Reading[str]()
    timeout = Reading[float]()
    question = Reading[str]()
    request = Reading[ConfirmationRequest]()
    """The request as other processes see it."""
    shared = Reading[bool]()
    """True when other processes are asked, too."""
    reason = Reading[str]()
    """The reason for which it was denied in this process."""
    digest = Reading[str]()
    """Digest of what a permission is for; empty when a running handler asks."""
    arguments = Reading[dict[str, Any]]()
    """The arguments of the call; a new object each time."""
    answered = Reading[bool]()
    """True when it was allowed or denied, or has expired."""

    def __str__(self) -> str:
        return str(self.asynchronous)

    def __repr__(self) -> str:
        return repr(self.asynchronous)


Confirmer = Callable[[Confirmation], bool | None]
"""A plain function, run in a thread: it returns True or False, or None and answers later by ``allow()`` or ``deny()``."""


def _in_threads(confirmer: Confirmer | None, loop: FindLoop) -> confirmations.Confirmer | None:
    """Return a confirmer for the event loop that asks this one in a thread.

    Raises:
        ConfigurationError: it is a coroutine function.
    """
    if confirmer is None or not callable(confirmer):
        return confirmer
    if inspect.iscoroutinefunction(confirmer):
        raise ConfigurationError("the confirmer of a synchronous bus is a plain function, which runs in a thread of its own")
    # People take their time: each question has a thread.
    limiter = anyio.CapacityLimiter(math.inf)

    async def ask(confirmation: confirmations.Confirmation) -> bool | None:
        return await anyio.to_thread.run_sync(confirmer, Confirmation(loop, confirmation), abandon_on_cancel=True, limiter=limiter)

    return ask


class PendingConfirmations(Mirror[confirmations.PendingConfirmations], Mapping[str, Confirmation]):
    """The open confirmations: this bus's own by id, and methods to answer those of every process."""

    pending = waiting(confirmations.PendingConfirmations.pending)
    allow = waiting(confirmations.PendingConfirmations.allow)
    deny = waiting(confirmations.PendingConfirmations.deny)
    answer = waiting(confirmations.PendingConfirmations.answer)
    watch = following(confirmations.PendingConfirmations.watch, lasting=True)

    def __getitem__(self, id: str) -> Confirmation:
        return Confirmation(self._loop, self.asynchronous[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._loop().run(lambda: [*self.asynchronous]))

    def __len__(self) -> int:
        return len(self.asynchronous)

    def get(self, id: str) -> ConfirmationRequest:  # type: ignore[override] # the mapping's own could only find ours
        """Return one open request of any process."""
        return self._loop().run(lambda: self.asynchronous.get(id))


class SharedConfirmations(Mirror[shared.Confirmations]):
    """The open requests of all processes of the namespace."""

    ask = waiting(shared.Confirmations.ask)
    pending = waiting(shared.Confirmations.pending)
    get = waiting(shared.Confirmations.get)
    answer = waiting(shared.Confirmations.answer)
    watch = following(shared.Confirmations.watch, lasting=True)


class Tallies(Mirror[limits.Tallies]):
    """The counts that all processes of a namespace share; see ``toolbus.ToolBus.tallies``."""

    spend = waiting(limits.Tallies.spend)
    use = waiting(limits.Tallies.use)
    count = waiting(limits.Tallies.count)
    usage = waiting(limits.Tallies.usage)


class Turn(Mirror[turn.Turn]):
    """The calls of one turn while they run: ``with``, then ``for event in turn``, then ``turn.messages()``.

    Leaving the context early cancels what still runs.
    """

    results = waiting(turn.Turn.results)
    observations = waiting(turn.Turn.observations)
    messages = waiting(turn.Turn.messages)
    __iter__ = following(turn.Turn.__aiter__)
    _leave: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        if self._leave is not None:
            raise ConfigurationError("a turn runs once")
        self._leave = self._loop().enter(self.asynchronous)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._leave is not None:
            self._leave()


class ToolExecutor(Mirror[executors.ToolExecutor]):
    """Runs a model's tool calls on a bus, from any number of threads; ``bus.executor(…)`` makes one, adapters take it."""

    find = waiting(executors.ToolExecutor.find)
    execute = waiting(executors.ToolExecutor.execute)
    process_tool_calls = waiting(executors.ToolExecutor.process_tool_calls)
    stream_tool_calls = making(Turn, executors.ToolExecutor.stream_tool_calls)

    model = Reading[str]()
    """The default of ``build_request``."""
    user = Reading[str]()
    """On whose behalf the calls are made."""
    session = Reading[str]()
    """The session in which the calls are made."""

    @property
    def tools(self) -> Tools:
        """The tools that may be called, as they are now."""
        loop = self._loop()
        return Tools(loop.itself, loop.run(lambda: self.asynchronous.tools))

    def build_request(self, messages: list[Any], **parameters: Any) -> dict[str, Any]:
        """Return the body of a chat completion; see ``toolbus.ToolExecutor.build_request``."""
        return self._loop().run(lambda: self.asynchronous.build_request(messages, **parameters))

    def narrowed(self, tools: Tools) -> ToolExecutor:
        """Return the same executor for other tools, with the same observers and earlier results."""
        return ToolExecutor(self._loop, self.asynchronous.narrowed(tools.asynchronous))


class Service(Mirror[aio.ServiceView]):
    """The untyped lower tier of one service."""

    call = waiting(aio.ServiceView.call)
    stream = making(Call, aio.ServiceView.stream)


class BoundBus(Mirror[aio.BusView]):
    """A bus with default options; what ``bind`` returns, for whenever the bus is open."""

    call = waiting(aio.BusView.call)
    stream = making(Call, aio.BusView.stream)
    close_session = waiting(aio.BusView.close_session)
    process_tool_calls = waiting(aio.BusView.process_tool_calls)
    stream_tool_calls = making(Turn, aio.BusView.stream_tool_calls)
    usage = waiting(aio.BusView.usage)

    @property
    def tools(self) -> Tools:
        """The tools as they are now, by name, sorted; those that the bound user may call, if there is one."""
        loop = self._loop()
        return Tools(loop.itself, loop.run(lambda: self.asynchronous.tools))

    @property
    def events(self) -> EventBus:
        """Tells observers of every call that executors make on this bus."""
        return EventBus(self._loop, self.asynchronous.events)

    @property
    def confirmations(self) -> PendingConfirmations:
        """The open confirmations: this bus's own by id, and methods to answer those of every process."""
        return PendingConfirmations(self._loop, self.asynchronous.confirmations)

    def bind(self, **options: Unpack[CallOptions]) -> BoundBus:
        """Return a cheap view with these options as defaults, for whenever the bus is open.

        Raises:
            ConfigurationError: an option does not exist.
        """
        return BoundBus(self._loop, self.asynchronous.bind(**options))

    def service(self, id: str) -> Service:
        """Return the untyped lower tier of one service, for whenever the bus is open."""
        return Service(self._loop, self.asynchronous.service(id))

    def session(self, id: str, **options: Unpack[CallOptions]) -> AbstractContextManager[BoundBus]:
        """Return a view bound to a session, for ``with``, which closes the session.

        Raises:
            ConfigurationError: the id is no text, or is empty, or an option is wrong.
        """
        options["session"] = session_id(id)
        return _closing(self.bind(**options))

    def executor(
        self,
        *,
        tools: Tools | ToolView | None = None,
        output_limit: int = LIMIT,
        attachment_limit: int = ATTACHMENTS,
        confirmer: Confirmer | None = None,
        confirm_timeout: float = CONFIRM_TIMEOUT,
        confirm_anywhere: bool | None = None,
        sequential: Collection[str] = (),
        model: str = "",
        **options: Unpack[CallOptions],
    ) -> ToolExecutor:
        """Return an executor of a model's tool calls, see ``toolbus.ToolBus.executor``.

        Args:
            tools: the tools that may be called (``bus.tools.filter(…)``); all when left out.
            output_limit: most characters of an observation, for tools that set no limit of their own.
            attachment_limit: most bytes of images and files that a model is shown of one turn; 0 for none.
            confirmer: a plain function that asks a person about tools that declare ``confirm``; it runs in a thread.
            confirm_timeout: seconds that a call waits for the person.
            confirm_anywhere: whether any process of the namespace may answer; left out, when there is no confirmer.
            sequential: names of tools whose calls run alone.
            model: the model of ``build_request``.

        Raises:
            ConfigurationError: an option is wrong.
        """
        made = self.asynchronous.executor(
            tools=tools.asynchronous if isinstance(tools, Tools) else tools,
            output_limit=output_limit,
            attachment_limit=attachment_limit,
            confirmer=_in_threads(confirmer, self._loop),
            confirm_timeout=confirm_timeout,
            confirm_anywhere=confirm_anywhere,
            sequential=sequential,
            model=model,
            **options,
        )
        return ToolExecutor(self._loop, made)

    def execute(self, tool: str, arguments: object = None, **options: Unpack[CallOptions]) -> ToolResult:
        """Run one call as a model's: repaired, cast, validated and confirmed; see ``ToolExecutor.execute``."""
        return self.executor(**options).execute(tool, arguments)


@contextmanager
def _closing(view: BoundBus) -> Iterator[BoundBus]:
    """Close the session of a view at the end of the ``with``."""
    try:
        yield view
    finally:
        view.close_session()


class ToolBus(BoundBus):
    """Finds the tools of a namespace and calls them, from any number of threads.

    ``with``, or ``open()`` and ``close()``. Arguments and errors are those of ``toolbus.ToolBus``.
    """

    asynchronous: aio.ToolBus
    near = waiting(aio.ToolBus.near)
    wait_for_tool = waiting(aio.ToolBus.wait_for_tool)
    end_session = waiting(aio.ToolBus.end_session)
    put = waiting(aio.ToolBus.put)
    delete = waiting(aio.ToolBus.delete)
    statistics = waiting(aio.ToolBus.statistics)

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(self._loop_or_fail, aio.ToolBus(url, namespace=namespace, settings=settings, middleware=middleware))
        self._stack = ExitStack()
        self._opened: Loop | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Start the thread, connect, and load the registry's snapshot; opening an open bus does nothing."""
        with self._lock, ExitStack() as stack:
            if self._opened is not None:
                self._loop_or_fail()
                return
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            loop = Loop(portal)
            portal.call(self.asynchronous.open)
            stack.callback(loop.close)
            stack.callback(lambda: portal.call(self.asynchronous.aclose))
            self._stack = stack.pop_all()
            self._opened = loop

    def close(self) -> None:
        """End every running call as cancelled, disconnect, and stop the thread; closing a closed bus does nothing."""
        with self._lock:
            if self._opened is not None and self._loop_or_fail().is_here:
                raise ConfigurationError("the bus can't be closed in its own thread (by an observer, for example)")
            self._opened = None
            self._stack.close()

    settings = Reading[Settings]()
    """The settings."""

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        return self._loop().run(lambda: self.asynchronous.agent)

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        """The services in the registry as they are now, by id."""
        return self._loop().run(lambda: dict(self.asynchronous.services))

    @property
    def refused(self) -> list[RefusedTool]:
        """The tools whose descriptors can't be used, with the reason; their siblings can."""
        return self._loop().run(lambda: self.asynchronous.refused)

    @property
    def tallies(self) -> Tallies:
        """The counters that all processes of the namespace share."""
        return Tallies(self._loop, self._loop().run(lambda: self.asynchronous.tallies))

    @property
    def shared_confirmations(self) -> SharedConfirmations:
        """The open requests of all processes of the namespace; use ``confirmations`` to answer them."""
        return SharedConfirmations(self._loop, self._loop().run(lambda: self.asynchronous.shared_confirmations))

    def _loop_or_fail(self) -> Loop:
        loop = self._opened
        if loop is None:
            raise ConfigurationError(NOT_OPEN)
        loop.check()
        return loop
