"""The board keeps a bounded past, tells each page what has changed, and rests while nobody looks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.values.results import BrokerError
from toolbus.bus.watch.views import ServiceView, Snapshot
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.page.board import _MOST_PENDING, HOUR, Audience, Board, History, Watcher, changes

pytestmark = pytest.mark.anyio

EVERYTHING = Principal("olga", may=frozenset({"call", "observe", "operate"}))


class Sampler:
    """Takes the snapshots that a test gives it; without one it fails."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = Snapshot(at=1.0)
        self.taken = 0

    async def sample(self) -> Snapshot:
        """Return the snapshot."""
        self.taken += 1
        if self.snapshot is None:
            raise BrokerError("the server is away")
        return self.snapshot


def events(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and documents of events."""
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in data.decode().split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks]


async def test_a_page_gets_the_state_and_then_what_has_changed(bus: ToolBus) -> None:
    """The first event has everything, the next ones have the rows that changed and the keys that went."""
    sampler = Sampler()
    board = Board(bus, sampler)
    sampler.snapshot = Snapshot(at=1.0, services=(ServiceView(id="a"), ServiceView(id="b")))
    async with board.running():
        with board.watched(EVERYTHING) as watcher:
            await eventually(board.history.samples)
            await watcher.wait(5.0)
            ((name, state),) = events(board.news(watcher))
            assert name == "snapshot"
            assert [row["id"] for row in state["services"]["set"]] == ["a", "b"]
            sampler.snapshot = Snapshot(at=2.0, services=(ServiceView(id="b", queued=1),))
            found: list[dict[str, Any]] = []

            async def told() -> bool:
                await watcher.wait(0.1)
                found.extend(document for _, document in events(board.news(watcher)))
                return any("services" in document for document in found)

            await eventually(told, timeout=30.0)
            change = next(document["services"] for document in found if "services" in document)
            assert change["drop"] == ["a"]
            assert [(row["id"], row["queued"]) for row in change["set"]] == [("b", 1)]


@pytest.mark.usefixtures("slow")
async def test_a_server_that_is_away_is_told_once(bus: ToolBus) -> None:
    """A failed sample becomes a problem, which a later sample takes back."""
    sampler = Sampler()
    board = Board(bus, sampler)
    sampler.snapshot = None
    async with board.running():
        with board.watched(EVERYTHING) as watcher:
            await eventually(lambda: sampler.taken > 1, timeout=30.0)
            ((_, state),) = events(board.news(watcher))
            assert "the server is away" in state["problems"][0]
            assert state["away"]
            sampler.snapshot = Snapshot(at=3.0)
            found: list[tuple[list[str], bool]] = []

            async def told() -> bool:
                await watcher.wait(0.1)
                news = [document for _, document in events(board.news(watcher)) if "problems" in document]
                found.extend((document["problems"], document["away"]) for document in news)
                return bool(found)

            await eventually(told, timeout=30.0)
            assert found == [([], False)]


async def test_a_page_that_reads_nothing_costs_a_bounded_amount(bus: ToolBus) -> None:
    """Changes that a page has not read are forgotten when they are too many; it gets the state again."""
    watcher = Watcher(EVERYTHING, Audience(bus, EVERYTHING))
    watcher.stale = False
    for _ in range(100):
        watcher.put(b"x" * (_MOST_PENDING // 50))
    assert watcher.stale
    assert watcher.take() == b""


def test_the_history_of_an_hour_is_bounded() -> None:
    """However often it is sampled, an hour is a few hundred samples, the newest ones all of them; what is older is gone."""
    history = History()
    for second in range(3 * int(HOUR)):
        history.add(Snapshot(at=float(second)))
    found = [sample[0] for sample in history.samples()]
    assert found == sorted(found)
    assert found[-300:] == [float(each) for each in range(10_500, 10_800)]
    assert found[0] >= 10_800 - HOUR - 1
    assert len(found) < 700


def test_changes_make_the_new_state_of_the_old_one() -> None:
    """Rows that are set and keys that are dropped turn any state into any other; equal states have none."""
    before = {"a": {"1": "x", "2": "y"}, "b": {"3": "z"}}
    after = {"a": {"2": "y", "4": "w"}, "b": {"3": "z"}}
    assert changes(before, after) == {"a": {"set": ["w"], "drop": ["1"]}}
    assert changes(after, after) == {}
