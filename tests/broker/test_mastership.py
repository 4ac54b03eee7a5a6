"""Certainty that the server is the master, from its Sentinels' reports: every branch, without a server or waiting."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.broker.conftest import Observed
from tests.broker.fakes import Times
from toolbus.bus.broker.transport.connection import Connector, ServerInfo
from toolbus.bus.broker.transport.discovery import BySentinel, Node, SentinelReport
from toolbus.bus.broker.transport.mastership import BySentinelMastership, Mastership

pytestmark = pytest.mark.anyio

OLD, NEW = Node("old", 6379), Node("new", 6379)
SENTINELS = [Node(name, 26379) for name in ("one", "two", "three")]


class FakeLink:
    """A connection to a server of the test's choice."""

    def __init__(self, node: Node = OLD) -> None:
        self.connected = True
        self.server: ServerInfo | None = ServerInfo("Valkey", "9.0", node.host, 1, node)
        self.relocated = 0

    def relocate(self) -> None:
        """Count."""
        self.relocated += 1


class Watching:
    """A mastership by three Sentinels, over two connections."""

    def __init__(self) -> None:
        connector = Connector("redis+sentinel://one,two,three/mymaster")
        self.times = Times()
        self.links = [FakeLink(), FakeLink()]
        self.moved = self.admitted = 0
        discovery = connector.discovery
        assert isinstance(discovery, BySentinel)
        self.discovery = discovery
        self.mastership = BySentinelMastership(connector, cast("Any", self.links), self._moved, discovery, self.times)
        self.mastership.when_admitted(self._admitted)

    def _moved(self) -> None:
        self.moved += 1

    def _admitted(self) -> None:
        self.admitted += 1

    def say(self, *sentinels: int, node: Node = OLD, epoch: int = 1, down: bool = False, replacing: bool = False) -> None:
        """Let some Sentinels report now."""
        for index in sentinels:
            self.mastership.hear(SENTINELS[index], SentinelReport(node, epoch, down, replacing), self.times.now)

    @property
    def sure(self) -> bool:
        """Return whether ``once`` work may be published."""
        assert self.mastership.admits(once=True) == self.mastership.sure
        return self.mastership.sure

    @property
    def steady(self) -> bool:
        """Return whether other work may be published."""
        assert self.mastership.admits(once=False) == self.mastership.steady
        return self.mastership.steady


@pytest.fixture
async def watching() -> Watching:
    """A mastership of which nothing was heard yet."""
    return Watching()


async def test_a_majority_makes_it_sure(watching: Watching) -> None:
    """One of three Sentinels is not enough, and what a majority said holds for three seconds."""
    assert (watching.sure, watching.steady) == (False, True)
    watching.say(0)
    assert not watching.sure
    watching.say(1)
    assert watching.sure
    watching.times.now += 3.0
    assert watching.sure
    watching.times.now += 0.01
    assert not watching.sure


@pytest.mark.parametrize("said", [{"down": True}, {"node": NEW, "epoch": 0}])
async def test_other_reports_do_not_count(watching: Watching, said: dict[str, Any]) -> None:
    """A Sentinel that finds the server silent, or an older report of another one."""
    watching.say(0)
    watching.say(1, **said)
    assert not watching.sure
    assert watching.moved == 0


async def test_a_replacement_makes_it_doubtful_and_unsteady_for_a_while(watching: Watching) -> None:
    """One Sentinel that says so is enough; after five seconds other work goes on, since a failover may come to nothing."""
    watching.say(0, 1, 2)
    watching.say(2, replacing=True)
    assert (watching.sure, watching.steady) == (False, False)
    watching.times.now += 5.01
    watching.say(2, replacing=True)
    assert (watching.sure, watching.steady) == (False, True)
    watching.say(0, 1, 2)
    assert (watching.sure, watching.steady) == (True, True)


async def test_a_new_master_drops_the_connections_once(watching: Watching) -> None:
    """As soon as a majority names it; those to the new one stay, and the same again is no news."""
    watching.say(0, 1, 2)
    watching.links[1] = FakeLink(NEW)
    watching.say(2, node=NEW, epoch=2)
    assert watching.moved == 0
    watching.say(0, node=NEW, epoch=2)
    assert ([link.relocated for link in watching.links], watching.moved) == ([1, 0], 1)
    assert not watching.sure, "the connections are to two servers"
    watching.say(0, 1, node=NEW, epoch=2)
    assert watching.moved == 1


async def test_a_master_that_was_replaced_before_anything_was_heard_is_left(watching: Watching) -> None:
    """The first that a majority says drops connections to another server, and no others."""
    watching.say(0, 1, node=NEW, epoch=2)
    assert ([link.relocated for link in watching.links], watching.moved) == ([1, 1], 1)


async def test_from_the_first_news_of_another_master_on_work_waits(watching: Watching) -> None:
    """The Sentinel that replaces a master is the first to name the new one, and what the old one takes meanwhile is lost."""
    watching.say(0, 1, 2)
    watching.say(0, replacing=True)
    assert (watching.sure, watching.steady) == (False, False)
    watching.say(0, node=NEW, epoch=2)
    assert (watching.sure, watching.steady) == (False, False)


async def test_a_sentinel_that_names_another_master_is_outvoted(watching: Watching, observed: Observed) -> None:
    """With an epoch however late; it is told once, and believed for five seconds."""
    watching.say(0, 1, 2)
    for _ in range(3):
        watching.say(0, node=NEW, epoch=10**15)
        watching.times.now += 2.51
        watching.say(1, 2)
    watching.say(0, node=NEW, epoch=10**15)
    assert (watching.sure, watching.steady, watching.moved) == (True, True, 0)
    [told] = [event for event in observed.events if event["event"] == "sentinel.outvoted"]
    assert (told["level"], told["sentinel"], told["says"]) == ("WARNING", "one:26379", "new:6379")


@pytest.mark.parametrize("later", [1, 2])
async def test_an_epoch_that_one_sentinel_made_up_hides_no_failover(watching: Watching, later: int) -> None:
    """Once a Sentinel had the right master with an epoch beyond all others; then the others replace the master."""
    watching.say(0, epoch=10**15)
    watching.say(1, 2)
    assert watching.sure
    watching.say(0)
    watching.say(1, 2, node=NEW, epoch=later + 1)
    assert watching.moved == 1


async def test_sentinels_that_begin_anew_are_followed(watching: Watching) -> None:
    """When they are set up again their epochs begin again, too, and a failover then is followed nevertheless."""
    watching.say(0, 1, 2, epoch=7)
    watching.say(0, 1, 2, epoch=0)
    assert watching.moved == 0
    watching.say(0, 1, node=NEW, epoch=1)
    assert watching.moved == 1


async def test_work_that_waits_is_let_go_when_it_is_sure(watching: Watching) -> None:
    """When certainty comes, a waiting task goes on and publishers are called back."""
    waiting = asyncio.create_task(watching.mastership.wait())
    await asyncio.sleep(0)
    before = watching.admitted
    watching.say(0)
    assert not waiting.done()
    watching.say(1)
    await asyncio.wait_for(waiting, 2.0)
    assert watching.admitted > before


async def test_connections_to_two_servers_are_dropped(watching: Watching) -> None:
    """Also where no Sentinel is asked; one that is not connected does not count."""
    links = [FakeLink(), FakeLink(NEW)]
    mastership = Mastership(Connector("redis://server"), cast("Any", links), watching._moved)
    links[1].connected = False
    mastership.compare()
    assert watching.moved == 0
    links[1].connected = True
    mastership.compare()
    assert ([link.relocated for link in links], watching.moved) == ([1, 1], 1)
    mastership.demoted("it is a replica now")
    assert [link.relocated for link in links] == [2, 2]
    assert watching.moved == 1, "who has heard it looks for the master in its own time"
