"""The connections of a process: one that writes and never waits, one that waits in blocking reads, one that waits for replicas."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.transport.command import (
    ELSEWHERE,
    Command,
    OnReply,
    Reply,
    ReplyError,
    WrongTypeError,
    fields_of,
    info_fields,
)
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.mastership import mastership
from toolbus.bus.broker.transport.wire import unheard
from toolbus.bus.support.waiting import to_the_end
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, ToolbusError

_OPENING = 10.0


class Links:
    """Its links, kept connected from ``open`` until ``leave``, and the tasks that live as long.

    Args:
        on_failed: called when a lasting task was given up: nothing here can be relied on any more.
        replicated: whether there is a link of its own for what waits for replicas.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        on_failed: Callable[[ToolbusError], None],
        replicated: bool = False,
    ) -> None:
        self._connector = connector
        self._on_failed = on_failed
        self.writing = Link(connector)
        self.blocking = Link(connector)
        self.replicated = Link(connector, on_up=self._up(None)) if replicated else self.writing
        self._links = tuple(dict.fromkeys((self.writing, self.blocking, self.replicated)))
        self.mastership = mastership(connector, self._links, self._moved)
        self._on_moved: Callable[[], None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._working: list[asyncio.Task[None]] = []
        # What is done by ``repeat``, and whether it was asked for since it was last begun.
        self._repeated: dict[tuple[Callable[..., Coroutine[Any, Any, None]], *tuple[Hashable, ...]], bool] = {}
        self._home: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    def attach(
        self,
        *,
        on_push: Callable[[list[Any]], None],
        on_up: Callable[[bool], None],
        on_blocking_up: Callable[[bool], None],
        on_wrong_type: Callable[[], None],
        on_moved: Callable[[], None] | None = None,
    ) -> None:
        """Call these functions from now on; made for steps that are built on the links, before ``opening``.

        Args:
            on_push, on_up: of the writing link; ``on_blocking_up`` of the blocking one, and ``on_wrong_type`` of both, see ``Link``.
            on_moved: called when the links were dropped because another server is the master.
        """
        self.writing.on_push, self.writing.on_up, self.blocking.on_up = on_push, self._up(on_up), self._up(on_blocking_up)
        self.writing.on_wrong_type = self.blocking.on_wrong_type = on_wrong_type
        self._on_moved = on_moved

    @property
    def connected(self) -> bool:
        """True when the server can be spoken to now."""
        return self.writing.connected and self.blocking.connected

    @property
    def trouble(self) -> str:
        """The reason why the server can't be spoken to now; empty when it can."""
        if self.connected:
            return ""
        reason = next((link.trouble for link in self._links if link.trouble), "")
        return f"it has lost its connection to the server, and is restoring it{reason and f': {reason}'}"

    @property
    def closing(self) -> bool:
        """True when ``leave`` was called."""
        return self._leaving.is_set()

    @property
    def open(self) -> bool:
        """True when it was opened and not left."""
        return self._home is not None

    @asynccontextmanager
    async def opening(self, within: float) -> AsyncIterator[None]:
        """Connect both; within the block are the first commands, for which a lost connection is waited for a bounded time.

        What goes wrong in it closes the connections again.

        Args:
            within: seconds for all of it.

        Raises:
            BrokerUnavailable: the server can't be reached, or did not answer in time.
            BrokerError: it refuses us.
        """
        try:
            async with asyncio.timeout(within):
                for link in self._links:
                    await link.connect()
                ready = asyncio.Event()
                self._home = asyncio.create_task(self._live(ready), name="toolbus-links")
                await ready.wait()
                async with asyncio.timeout(_OPENING):
                    yield
        except BaseException as error:
            refusal = next(filter(None, (link.refusal for link in self._links)), "")
            await self.leave()
            if isinstance(error, TimeoutError):
                late = _late(round(min(within, _OPENING), 1), str(refusal))
                raise BrokerUnavailable(f"{self._connector.display} {late}") from None
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something until it is done, or until ``leave`` cancels it. What goes wrong in it is logged, and ends nothing else."""
        if self._tasks is None or self.closing:
            work.close()
            return
        task = self._tasks.create_task(_once(work))
        self._working.append(task)
        task.add_done_callback(self._working.remove)

    def repeat(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Hashable) -> None:
        """Do something as ``start`` does. Asked for while it is done, it is done once more afterwards, for all who asked.

        So what waits for a connection is bounded, however often the connection comes and goes.
        """
        if self._tasks is None or self.closing:
            return
        begun = (work, *args) in self._repeated
        self._repeated[work, *args] = True
        if not begun:
            self.start(self._repeat(work, *args))

    async def _repeat(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Hashable) -> None:
        while self._repeated[work, *args]:
            self._repeated[work, *args] = False
            await _once(work(*args))
        del self._repeated[work, *args]

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, every: float) -> None:
        """Do something lasting until ``leave`` cancels it; it begins again when it fails. ``every`` is as for ``keep_running``."""
        self.start(self._keep(name, work, every))

    async def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]], every: float) -> None:
        try:
            await keep_running(name, work, every=every)
        except ToolbusError as error:
            self._on_failed(error)

    def _up(self, callback: Callable[[bool], None] | None) -> Callable[[bool], None]:
        def up(restarted: bool) -> None:
            if callback is not None:
                callback(restarted)
            self.mastership.look()

        return up

    def _moved(self) -> None:
        if self.open and self._on_moved is not None:
            self._on_moved()

    async def leave(self) -> None:
        """Cancel what was started, and disconnect, also when this is cancelled; what waits for answers gets ``BrokerUnavailable``."""
        await to_the_end(self._leave())

    async def _leave(self) -> None:
        self._leaving.set()
        for link in self._links:
            link.close()
        home, self._home = self._home, None
        if home is not None:
            await home
        for link in self._links:
            await link.wait_closed()

    async def _live(self, ready: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for link in self._links:
                self.keep("connection", link.maintain, every=0)
            self.keep("mastership", self.mastership.run, every=0)
            ready.set()
            await self._leaving.wait()
            for task in list(self._working):
                task.cancel()


async def _once(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 - in a group it would cancel all others, reconnecting included
        telemetry.log.exception("task.failed", task=getattr(work, "__qualname__", "task"))


def _late(seconds: float, refusal: str) -> str:
    """Say that a server has done nothing for some seconds, and why, as far as its last ``refusal`` tells."""
    if not refusal:
        return f"did not answer within {seconds:g} s"
    # Of a script, the server says at its end which one it was.
    why = refusal.partition(" script: ")[0].rstrip(".")
    return f"refused for {seconds:g} s what it was asked ({why}); `toolbus doctor` says what to do"


# Seconds for an answer: somebody waits at a terminal.
_ANSWER = 10.0


class ShortLink(Link):
    """A link for a short while that does not reconnect: when the connection is lost or an answer late, every command ends with an error.

    It has no mender either, so the error for a key of a wrong type, a ``WrongTypeError``, names the key for people.
    """

    _refusal = ""

    def send(self, args: tuple[Any, ...], on_reply: OnReply = unheard, **options: Any) -> None:
        """Queue a command, whose answer must come in time."""
        late = self._loop.call_later(_ANSWER, self._give_up_late)

        def answered(reply: Reply) -> None:
            late.cancel()
            on_reply(reply)

        super().send(args, answered, **options)

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer; its first argument is its key, if it has any."""
        with _naming(args[1:2]):
            return await super().execute(*args, repeatable=repeatable)

    async def execute_script(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, repeatable: bool = False) -> Reply:
        """Run a script and wait for its answer."""
        with _naming(keys):
            return await super().execute_script(script, keys, args, repeatable=repeatable)

    def connection_lost(self, exc: Exception | None) -> None:
        """End it; what may be repeated is told, too."""
        super().connection_lost(exc)
        self._end("the connection was lost")

    def _give_up_late(self) -> None:
        self._end(f"the server {_late(_ANSWER, self._refusal)}")

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        self._refusal = str(error)
        # There will be no other connection, to carry it out elsewhere.
        return error.code not in ELSEWHERE and super()._put_off(command, error)


class ProbingLink(ShortLink):
    """A short link whose commands are answered with what the server refuses them for, also where another try would help."""

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        return error.code == "NOSCRIPT" and super()._put_off(command, error)


@contextlib.contextmanager
def upkeep_step() -> Iterator[None]:
    """Go on after a step of the upkeep that the server refused, or did not answer in time; the log tells of it."""
    try:
        yield
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("upkeep.failed", error=str(error) or "the server did not answer")


@contextlib.contextmanager
def _naming(keys: Sequence[object]) -> Iterator[None]:
    try:
        yield
    except ReplyError as error:
        if error.code != "WRONGTYPE":
            raise
        raise WrongTypeError.naming(keys) from None


_SCAN_COUNT = 256


async def scan_hash(link: Link, key: str | bytes) -> AsyncIterator[tuple[bytes, bytes]]:
    """Fields and values of a hash, in bounded parts that never block the server for long. Some may come twice.

    Raises:
        BrokerError: the server could not be asked.
    """
    async for flat in scan(link, "HSCAN", key, "COUNT", _SCAN_COUNT):
        for field in fields_of(flat).items():
            yield field


async def scan(link: Link, command: str, key: str | bytes, *options: object) -> AsyncIterator[list[bytes]]:
    """Yield what a scan of a key, or without one of the server, finds at a time.

    Raises:
        BrokerError: the server could not be asked.
    """
    scanned, cursor = (key,) if key else (), b"0"
    while True:
        cursor, found = await link.execute(command, *scanned, cursor, *options, repeatable=True)
        yield found
        if cursor == b"0":
            return


async def pages(link: Link, key: str, size: int, after: str | bytes = "-") -> AsyncIterator[list[tuple[bytes, list[bytes]]]]:
    """Yield the entries of a stream, so many at a time; ``after`` is where ``XRANGE`` begins.

    Raises:
        BrokerError: the server could not be asked.
    """
    while True:
        entries = await link.execute("XRANGE", key, after, "+", "COUNT", size, repeatable=True)
        yield entries
        if len(entries) < size:
            return
        after = b"(" + entries[-1][0]


async def server_ms(link: Link) -> float:
    """Return the server's time, in milliseconds since 1970.

    Raises:
        BrokerError: the server could not be asked.
    """
    seconds, micros = await link.execute("TIME", repeatable=True)
    return integer(seconds) * 1000 + integer(micros) / 1000


async def tell_time(link: Link, clock: ServerClock) -> None:
    """Let a clock observe the server's time.

    Raises:
        BrokerError: the server could not be asked.
    """
    asked = clock.monotonic()
    now = await server_ms(link)
    clock.observe(now, asked, clock.monotonic())


async def is_replica(link: Link) -> bool:
    """Return whether the server says that it is no master; False when we may not ask.

    Raises:
        BrokerUnavailable: the connection was lost.
    """
    try:
        role = await link.execute("ROLE", repeatable=True)
    except ReplyError:
        return False
    return replica_by(role)


def replica_by(role: Any) -> bool:
    """Return whether an answer to ``ROLE`` is that of a replica."""
    return isinstance(role, (list, tuple)) and bool(role) and role[0] in {b"slave", "slave"}


async def warn_of_eviction(link: Link, server: str) -> None:
    """Log when the server may evict keys."""
    try:
        info = info_fields(await link.execute("INFO", "memory", repeatable=True))
    except ReplyError:
        # Not permitted to look: `toolbus doctor`, run by an operator, is.
        return
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        advice = "an evicted key is a lost call; set maxmemory-policy noeviction"
        telemetry.log.warning("server.evicts", server=server, policy=policy, advice=advice)


def accepted_here(link: Link, accepted_by: bytes) -> bool:
    """Return whether this server accepted a request, or it makes no difference.

    ``accepted_by`` is the run id of the server that did; empty when it makes no difference.
    """
    return not accepted_by or link.server is None or accepted_by == link.server.run_id.encode()
