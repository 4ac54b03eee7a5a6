"""Steps that a connection, a beat and a push set going in a worker and an agent, without a server."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench, FakeListener, Times
from tests.broker.finishing import Finishing
from toolbus.bus.broker.agent import AgentBroker, AgentSteps
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.lease.thread import Beat, LeaseThread, Renewal
from toolbus.bus.broker.take.requests import UNSURE, Fence, epoch_of
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.worker import WorkerBroker, WorkerSteps
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


def trusted_clock() -> ServerClock:
    """Return a clock that has heard of the server all the time."""
    times = Times()
    clock = ServerClock(SETTINGS.lease, times)
    for _ in range(5):
        clock.observe(times.now * 1000, times.now, times.now)
        times.now += SETTINGS.lease / 4
    clock.observe(times.now * 1000, times.now, times.now)
    assert clock.trusted
    return clock


@pytest.fixture
async def steps() -> WorkerSteps:
    """The steps of a worker that has not connected."""
    return WorkerSteps(SETTINGS, Connector.of(SETTINGS), KEYS, "mine", trusted_clock(), cast("Any", FakeListener()))


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_any_connect_a_worker_judges_no_lease_for_one_lease(steps: WorkerSteps, restarted: bool) -> None:
    """The reconnect may have kept the beats of all workers away."""
    steps.connected(restarted)
    assert not steps._clock.trusted


async def test_after_any_connect_an_agent_judges_no_lease_for_one_lease() -> None:
    """It sweeps the registry, too; and what it knows of the registry may be old."""
    listener: Any = FakeListener()
    agent = AgentSteps(SETTINGS, Connector.of(SETTINGS), KEYS, "agent", trusted_clock(), listener)
    agent._connected(False)
    assert not agent._clock.trusted
    assert agent.reader.resync


@pytest.mark.parametrize("made", [WorkerBroker, AgentBroker])
async def test_a_broker_that_is_not_open_says_so(made: Any) -> None:
    """Every use before ``open`` is an error that callers know."""
    with pytest.raises(BrokerUnavailable, match="not open"):
        made(SETTINGS).statistics()


async def test_frames_leave_before_what_sent_them_is_handed_back() -> None:
    """No frame of the next run may come before one of the run that was cut off."""
    finishing = Finishing()
    bench, broker = finishing.bench, WorkerBroker(SETTINGS)
    broker.steps = cast("Any", SimpleNamespace(outbox=finishing.outbox, link=bench.link))
    delivery = bench.hold()
    finishing.outbox.send(delivery, b"{}")
    await broker.hand_back([delivery])
    assert bench.link.names == ["send", "hand_back"]


class Beating:
    """One worker and the effects of beats on it; ``said`` has the callbacks in order."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.said: list[Any] = []
        self.beats: list[float] = []
        connector = Connector.of(SETTINGS)
        self.steps = cast("Any", WorkerSteps(SETTINGS, connector, KEYS, "mine", self.bench.clock, self.bench.as_listener))
        self.steps.streams = self.bench.streams
        self.steps.ownership = self
        self.steps.links.mastership = self
        self.steps.key_repair = SimpleNamespace(request=lambda: self.said.append("failed"))
        self.steps.wake = SimpleNamespace(listed=self.listed, pause=lambda *paused: self.said.append(("paused", *paused)))
        self.steps.intake = SimpleNamespace(beaten=self.beats.append, unbeaten=lambda why: None)
        self.steps._register_again = lambda services: self.said.append(("missing", services))

    def listed(self, service: str, why: str) -> None:
        """Take note of it on the stream."""
        self.bench.streams[service].unlisted = why

    def compare(self) -> None:
        """Compare the servers of the links."""
        self.said.append("compared")

    def beaten(self, asked: float, answered: float, services: Collection[str], *, missing: bool) -> None:
        """Take in a beat."""
        self.said.append(("owned", asked, answered, list(services), missing))

    def beat(self, **fields: Any) -> Beat:
        """Return a beat that was answered at once."""
        now = self.bench.times.now
        return Beat(**{"server_ms": now * 1000, "asked": now, "answered": now, "missing": [], "paused": {}, "renewed": {}, **fields})


async def test_a_beat_that_failed_asks_for_a_repair_of_the_keys() -> None:
    """One of them may be of a wrong type; nothing else is known."""
    beating = Beating()
    beating.steps.beaten(None)
    assert beating.beats == []
    assert beating.said == ["failed"]


async def test_a_beat_tells_the_time_pauses_and_lost_registrations() -> None:
    """Services of other streams are not meant."""
    beating = Beating()
    beating.steps.beaten(beating.beat(missing=["pool/mine"], paused={"pool": True, "other": True}, renewed={"pool": []}))
    assert beating.said == ["compared", ("owned", 100.0, 100.0, ["pool"], True), ("paused", "pool", True, 100.0), ("missing", ["pool"])]
    assert beating.bench.clock._known
    beating.said.clear()
    beat = beating.beat()
    beating.steps.beaten(beat)
    assert beating.beats[-1] == beat.asked
    assert beating.said == ["compared", ("owned", 100.0, 100.0, [], False)]


async def test_a_stream_is_unlisted_until_a_beat_finds_its_service() -> None:
    """A beat that did not name the service tells nothing of it, and one that misses it once more leaves the reason that is known."""
    beating = Beating()
    stream = beating.bench.stream
    beating.steps.beaten(beating.beat(missing=["pool/mine"], renewed={"pool": []}))
    assert stream.unlisted == "its lease was lost there"
    stream.unlisted = "OOM no memory"
    beating.steps.beaten(beating.beat(missing=["pool/mine"], renewed={"pool": []}))
    beating.steps.beaten(beating.beat())
    assert stream.unlisted == "OOM no memory"
    beating.steps.beaten(beating.beat(renewed={"pool": []}))
    assert stream.unlisted == ""


async def test_renewed_deliveries_are_ours_under_the_new_fence_and_lost_ones_are_let_go() -> None:
    """A renewal proves what it looked at, and the stream knows the newest fence."""
    beating = Beating()
    kept, lost = beating.bench.hold(b"1-0"), beating.bench.hold(b"2-0")
    newer = Fence(FENCE.generation, b"6")
    beating.steps.beaten(beating.beat(renewed={"pool": [Renewal(newer, [kept], [lost])]}))
    assert kept.fence == beating.bench.stream.fence_known == newer
    assert beating.bench.listener.lost == [lost]
    assert set(beating.bench.stream.held) == {b"1-0"}


async def test_a_renewal_says_nothing_of_what_is_being_counted() -> None:
    """It may be carried out after the count, and does not know the new number: the count's own answer decides."""
    beating = Beating()
    one = beating.bench.hold(b"1-0")
    renewed = {"pool": [Renewal(FENCE, [], [one])]}

    def overtaken(*_: Any) -> int:
        beating.steps.beaten(beating.beat(renewed=renewed))
        return 1

    beating.bench.link.answers["count"] = overtaken
    again = await beating.bench.stream.retry(beating.bench.as_link, one)
    assert again is not None
    assert beating.bench.listener.lost == []
    beating.steps.beaten(beating.beat(renewed={"pool": [Renewal(FENCE, [], [again])]}))
    assert beating.bench.listener.lost == [again]


async def test_a_group_that_was_made_anew_takes_everything_of_the_old_one() -> None:
    """A delivery of another generation belongs to no worker, whatever its number; the epoch counts generations."""
    bench = Bench()
    old, new = bench.hold(b"1-0"), bench.hold(b"2-0", fence=Fence(b"2.b", b"0"))
    bench.stream.fence_is(b"2.b", b"0")
    assert bench.listener.lost == [old]
    assert bench.stream.held == {b"2-0": new}
    assert (old.epoch, new.epoch) == (1, 2)
    assert epoch_of(b"nonsense") == 0


class Client:
    """The lease thread's connection; ``gone`` are entries that are another worker's."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.gone: set[bytes] = set()

    def evalsha(self, sha: str, count: int, *words: Any) -> Any:
        """Answer as renew.lua would."""
        self.asked.append(words)
        return [FENCE.generation, b"9", [word for word in words[5::2] if word in self.gone]]


async def test_renewals_are_bounded_and_tell_what_is_lost() -> None:
    """Deliveries whose time is up are not renewed, a long list goes in parts, and unequal fences make the script look at each."""
    bench, client = Bench(), Client()
    for number in range(300):
        bench.hold(f"{number}-0".encode())
    thread = LeaseThread(*bench.own, cast("Any", None), report=lambda _: None, demoted=pytest.fail)
    bench.stream.held[b"0-0"].deadline = bench.times.now
    client.gone = {b"7-0", b"299-0"}
    first, second = thread._renew(cast("Any", client), bench.stream)
    assert [len(words) for words in client.asked] == [5 + 2 * 256, 5 + 2 * 43]
    assert client.asked[0][:5] == (bench.stream.key, bench.stream.fence, "mine", *FENCE)
    assert b"0-0" not in client.asked[0]
    assert ([each.entry for each in first.lost], [each.entry for each in second.lost]) == ([b"7-0"], [b"299-0"])
    assert len(first.kept) == 255
    assert first.fence == Fence(FENCE.generation, b"9")
    first.kept[0].fence = Fence(FENCE.generation, b"1")
    thread._renew(cast("Any", client), bench.stream)
    assert client.asked[2][4] == UNSURE
