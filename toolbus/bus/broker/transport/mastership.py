"""Follow whether the server is surely still the master.

A master that was replaced goes on answering until its Sentinels have demoted it, for about ten
seconds, and what it acknowledges meanwhile is lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.transport import clients
from toolbus.bus.broker.transport.command import Reply
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.discovery import BySentinel, InCluster, Node, SentinelReport, agreed_report, read_report
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire, settle
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.results import BrokerError

_ANSWER = 1.0
_CHANNELS = ("+switch-master", "+try-failover", "+promoted-slave", "+sdown", "-sdown")


class Observer(Wire):
    """A connection to one Sentinel, which is asked and tells of events."""

    def __init__(self, connector: Connector, discovery: BySentinel, node: Node) -> None:
        self._events = asyncio.Event()
        super().__init__(connector, on_push=self._take)
        self._discovery = discovery
        self._node = node

    async def open(self) -> None:
        """Connect and subscribe; raises whatever goes wrong."""
        connection = clients.connection(self._discovery.asking_options(self._node))
        try:
            async with asyncio.timeout(_ANSWER):
                await connection.connect()
        except BaseException:
            await clients.drop(connection)
            raise
        self._take_over(connection)
        for channel in _CHANNELS:
            self._subscribe(channel)

    async def ask(self) -> SentinelReport:
        """Ask the Sentinel for its report.

        Raises:
            ValueError: it does not know the master.
            BrokerError: it does not answer as it should.
            TimeoutError: it does not answer.
        """
        self._events.clear()
        async with asyncio.timeout(_ANSWER):
            return read_report(*await asyncio.gather(*(self.execute(*question) for question in self._discovery.questions())))

    async def event(self, seconds: float) -> None:
        """Wait for an event of our master's, at most so many seconds."""
        await at_most(seconds, self._events.wait())

    def close(self) -> None:
        """Close the connection."""
        self._closing = True
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self._closing = True
        lost = [*self._take_back(), *self._unsent]
        self._unsent.clear()
        self._answer_lost(lost, str(exc or "closed by the server"))
        self._events.set()

    def _take(self, message: list[Any]) -> None:
        payload = message[2] if len(message) == 3 else None
        if isinstance(payload, bytes) and self._discovery.name.encode() in payload.split(b" "):
            self._events.set()


_POLL = 1.0
# While a master is silent or being replaced.
_POLL_CLOSELY = 0.1
# For so long a Sentinel's report holds: it is asked again several times before.
_RECENT = 3.0
_RETRY_FIRST, _RETRY_MOST = 0.05, 1.0
_SILENT = 1.0
# A planned failover takes a second or two, and all Sentinels hear of one within two more.
_REPLACING = 5.0


class Mastership:
    """The mastership of a server that stands alone: a server that takes writes is the master.

    Args:
        links: the connections that are to be to the master.
        on_moved: called when they were dropped because another server is the master.

    Attributes:
        unquestioned: True when nothing can raise doubts: everything is admitted, always.
    """

    unquestioned = True

    def __init__(self, connector: Connector, links: Sequence[Link], on_moved: Callable[[], None]) -> None:
        self._connector = connector
        self._links = links
        self._on_moved = on_moved
        self._certainty = asyncio.Event()
        self._when_admitted: list[Callable[[], None]] = []

    @property
    def sure(self) -> bool:
        """True when the links are to a server that is the master as surely as can be known."""
        return True

    @property
    def steady(self) -> bool:
        """True unless the server is known to be about to be replaced."""
        return True

    def admits(self, *, once: bool) -> bool:
        """Return whether work may be published now."""
        return self.sure if once else self.steady

    async def wait(self) -> None:
        """Wait until it is sure."""
        while not self.sure:
            await self._certainty.wait()

    def when_admitted(self, callback: Callable[[], None]) -> None:
        """Call back, perhaps often, when work that waits to be published may be."""
        self._when_admitted.append(callback)

    async def run(self) -> None:
        """Follow who is the master, until cancelled."""

    def look(self) -> None:
        """Take in that a connection was opened."""

    def demoted(self, why: str) -> None:
        """Drop the links, because their server said that it is no master; who heard that looks for the master in its own time."""
        self._drop(self._links, why)

    def compare(self) -> None:
        """Drop the links when they are to different servers."""
        servers = {link.server.run_id for link in self._links if link.connected and link.server is not None}
        if len(servers) > 1:
            self._move(self._links, "the connections are to different servers")

    def _move(self, links: Sequence[Link], why: str) -> None:
        self._drop(links, why)
        self._on_moved()

    def _drop(self, links: Sequence[Link], why: str) -> None:
        telemetry.log.warning("server.moved", server=self._connector.display, reason=why)
        for link in links:
            link.relocate()

    def _links_elsewhere(self, node: Node) -> list[Link]:
        """Return the links that are to another server, or not yet to any."""
        return [link for link in self._links if not link.connected or (link.server is not None and link.server.node != node)]


class InClusterMastership(Mastership):
    """A cluster's nodes refuse what is not theirs, so it is asked again only when the server is silent."""

    async def run(self) -> None:
        """Look for another master while the server owes an answer."""
        while True:
            await asyncio.sleep(_POLL / 2)
            server = self._links[0].server
            if self._links[0].silence < _SILENT or server is None:
                continue
            try:
                node = await self._connector.find()
            except BrokerError:
                continue
            if node is not None and node != server.node and self._links[0].silence >= _SILENT:
                self._move(self._links_elsewhere(node), f"{node.host}:{node.port} serves the slot now")


class BySentinelMastership(Mastership):
    """The mastership as Sentinels report it: a connection to each brings its events, and each is asked every second.

    When a majority names another master, the links are dropped. The server is surely the master while a majority has said so within
    three seconds, and none that it is being replaced, or has been: that is believed of one Sentinel for five seconds, in which the
    others hear of it.
    """

    unquestioned = False

    def __init__(
        self,
        connector: Connector,
        links: Sequence[Link],
        on_moved: Callable[[], None],
        discovery: BySentinel,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connector, links, on_moved)
        self._monotonic = monotonic
        self._discovery = discovery
        self._reports: dict[Node, tuple[SentinelReport, float]] = {}
        self._followed: SentinelReport | None = None
        self._was_sure: bool | None = None
        self._doubted: dict[Node, float] = {}
        self._outvoted: set[Node] = set()

    @property
    def sure(self) -> bool:
        """True when a majority of the Sentinels says so, and none that it is being replaced."""
        nodes = self._connected_to()
        since = self._monotonic() - _RECENT
        reports = [report for report, heard in self._reports.values() if heard >= since]
        if len(nodes) > 1 or not self.steady or any(report.replacing for report in reports):
            return False
        return sum(report.node in nodes and not report.down for report in reports) >= self._discovery.majority

    @property
    def steady(self) -> bool:
        """True when no Sentinel doubts the server, or has for long: a failover may come to nothing."""
        return not self._doubted or self._monotonic() - max(self._doubted.values()) > _REPLACING

    def _connected_to(self) -> set[Node | None]:
        return {link.server.node if link.connected and link.server is not None else None for link in self._links}

    async def run(self) -> None:
        """Follow every Sentinel."""
        async with asyncio.TaskGroup() as tasks:
            for node in self._discovery.nodes:
                tasks.create_task(self._follow(node))

    async def _follow(self, node: Node) -> None:
        delay = _RETRY_FIRST
        while True:
            observer = Observer(self._connector.at(node), self._discovery, node)
            opened = self._monotonic()
            try:
                await observer.open()
                while True:
                    asked = self._monotonic()
                    report = await observer.ask()
                    # One that answers and ends the connection each time is not asked more often than one that does not answer.
                    if asked - opened > _RECENT:
                        delay = _RETRY_FIRST
                    self.hear(node, report, asked)
                    await observer.event(_POLL_CLOSELY if report.down or report.replacing else _POLL)
            except Exception as error:  # noqa: BLE001 - whatever one Sentinel answers, it is asked again, and the others are heard
                telemetry.log.info("sentinel.lost", server=f"{node.host}:{node.port}", error=reason_of(error))
            finally:
                observer.close()
                self._reports.pop(node, None)
                self._judge()
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            delay = min(2 * delay, _RETRY_MOST)

    def hear(self, node: Node, report: SentinelReport, asked: float) -> None:
        """Take in a Sentinel's report, which was asked for at a local monotonic time."""
        self._reports[node] = (report, asked)
        self._judge()

    def _judge(self) -> None:
        agreed = agreed_report([report for report, _ in self._reports.values() if not report.down], self._discovery.majority)
        self._discovery.agreed = agreed
        if agreed is not None:
            before, self._followed = self._followed, agreed
            # By the first one the links are where they belong, unless the master was replaced since they were opened.
            right = self._connected_to() <= {agreed.node, None} if before is None else before.node == agreed.node
            if not right or (before is not None and agreed.epoch > before.epoch):
                self._move(self._links_elsewhere(agreed.node), f"{agreed.node.host}:{agreed.node.port} is the master now")
        self._take_doubts(-1 if self._followed is None else self._followed.epoch)
        self.look()

    def _take_doubts(self, epoch: int) -> None:
        nodes, now = self._connected_to(), self._monotonic()
        for sentinel in self._discovery.nodes:
            report, _ = self._reports.get(sentinel, (None, 0.0))
            moved = report is not None and report.node not in nodes and report.epoch > epoch
            if report is None or not (moved or report.replacing):
                self._doubted.pop(sentinel, None)
                self._outvoted.discard(sentinel)
            elif now - self._doubted.setdefault(sentinel, now) > _REPLACING and moved and sentinel not in self._outvoted:
                self._outvoted.add(sentinel)
                said, name = f"{report.node.host}:{report.node.port}", f"{sentinel.host}:{sentinel.port}"
                telemetry.log.warning("sentinel.outvoted", server=self._connector.display, sentinel=name, says=said, epoch=report.epoch)

    def look(self) -> None:
        """Let go on what waits and may."""
        sure = self.sure
        if self._was_sure and not sure:
            said = [f"{node.host}:{node.port}" for node in self._reports]
            telemetry.log.warning("server.doubtful", server=self._connector.display, heard=said)
        self._was_sure = sure
        if sure:
            self._certainty.set()
            self._certainty.clear()
        if sure or self.steady:
            for callback in self._when_admitted:
                callback()


def mastership(connector: Connector, links: Sequence[Link], on_moved: Callable[[], None]) -> Mastership:
    """Return the mastership of the server that a connector finds."""
    discovery = connector.discovery
    if isinstance(discovery, BySentinel):
        return BySentinelMastership(connector, links, on_moved, discovery)
    if isinstance(discovery, InCluster):
        return InClusterMastership(connector, links, on_moved)
    return Mastership(connector, links, on_moved)


_Written = asyncio.Future[bool]


class Replication:
    """Runs scripts and waits until so many replicas have what they wrote.

    Everything that was written within a tick is waited for at once. The link is its own, unless ``replicas``
    is 0, since the server carries out nothing more of a connection that waits.

    Args:
        replicas: how many; with 0 nothing is waited for.
        timeout: seconds that they have.
    """

    def __init__(self, link: Link, replicas: int, timeout: float) -> None:
        self._link = link
        self._replicas = replicas
        self._timeout_ms = max(1, int(timeout * 1000))
        self._gathering: list[_Written] | None = None

    @property
    def shortage(self) -> str:
        """The reason for messages when replicas did not confirm."""
        return f"fewer than {self._replicas} replicas have confirmed it within {self._timeout_ms / 1000:g} s"

    async def run(self, script: Script, keys: tuple[object, ...], args: tuple[object, ...]) -> tuple[Reply, bool]:
        """Return the script's answer, and whether what it wrote is on the replicas. It is repeated after a lost connection.

        Raises:
            BrokerError: it was not answered; it may have been carried out.
        """
        answer: asyncio.Future[tuple[Reply, bool]] = asyncio.get_running_loop().create_future()

        def done(reply: Reply, confirmed: bool) -> None:
            settle(answer, reply if isinstance(reply, BrokerError) else (reply, confirmed))

        self.write(script, keys, args, done)
        return await answer

    def write(self, script: Script, keys: tuple[object, ...], args: tuple[object, ...], done: Callable[[Reply, bool], None]) -> None:
        """Run a script, and tell ``done`` its answer, and whether what it wrote is on the replicas. It is repeated like that of ``run``."""
        if not self._replicas:
            self._link.run(script, keys, args, lambda reply: done(reply, True), repeatable=True)
            return

        def answered(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                done(reply, False)
                return
            confirmed: _Written = asyncio.get_running_loop().create_future()
            confirmed.add_done_callback(lambda _: done(reply, confirmed.result()))
            # While the answer is taken in, the connection is certainly the one that wrote: WAIT is about what its own connection wrote.
            self._await_replicas(confirmed)

        self._link.run(script, keys, args, answered, repeatable=True)

    def _await_replicas(self, confirmed: _Written) -> None:
        if self._gathering is not None:
            self._gathering.append(confirmed)
            return
        gathered = self._gathering = [confirmed]
        connects = self._link.statistics().connects

        def done(reply: Reply) -> None:
            same = self._link.statistics().connects == connects
            enough = same and isinstance(reply, int) and reply >= self._replicas
            for each in gathered:
                if not each.done():
                    each.set_result(enough)

        def ask() -> None:
            self._gathering = None
            self._link.send(("WAIT", self._replicas, self._timeout_ms), done)

        asyncio.get_running_loop().call_soon(ask)
