"""The lease thread, on a server that is played by hand: what it sends, when, and what it makes of answers and failures."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import msgspec
import pytest
import redis

from tests.broker.conftest import Observed
from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench
from tests.servers import eventually
from toolbus.bus import telemetry
from toolbus.bus.broker.lease.thread import Beat, LeaseThread
from toolbus.bus.broker.registry.registry import TTL
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.mastership import Mastership
from toolbus.bus.telemetry.background import MOST_FAILURES
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError

pytestmark = pytest.mark.anyio

LEASE = 6.0
MASTER = [b"master", 0, []]
REPLICA = [b"slave", b"127.0.0.1", 1, b"connected", 0]


class Alarm(threading.Event):
    """Waits until the test says, and takes note of how long the thread would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the test."""
        self.waited.append(timeout or 0.0)
        return super().wait(30.0)


class Client:
    """One connection of the thread; it is its own socket, too."""

    def __init__(self, beating: Beating) -> None:
        self.beating = beating
        self.connection = self._sock = self
        self.closed = 0
        self.down: list[int] = []
        self.commands: list[tuple[Any, ...]] = []

    def pack_commands(self, commands: Any) -> Any:
        """Leave them as they are."""
        return commands

    def send_packed_command(self, commands: Any) -> None:
        """Take the commands of one write."""
        self.beating.writes.append(list(commands))
        self.commands += commands

    def read_response(self) -> Any:
        """Answer the next command, half a second later."""
        self.beating.bench.times.now += 0.5
        return self.beating.answer(self.commands.pop(0)[0])

    def evalsha(self, sha: str, count: int, *words: Any) -> Any:
        """Answer a script that is sent by itself."""
        self.beating.writes.append([("EVALSHA", sha, count, *words)])
        return self.beating.answer("EVALSHA" if sha == scripts.BEAT.sha else "renew")

    def eval(self, source: str, count: int, *words: Any) -> Any:
        """Answer a script that was not known."""
        self.beating.writes.append([("EVAL", source, count, *words)])
        self.beating.bench.times.now += 0.25
        return self.beating.answer("EVAL")

    def shutdown(self, how: int) -> None:
        """Take note."""
        self.down.append(how)
        if self.beating.shutdown_fails:
            raise OSError("not connected")

    def close(self) -> None:
        """Take note."""
        self.closed += 1


FAILED = {"level": "WARNING", "event": "lease.beat_failed", "server": "redis://server", "namespace": "unit"}


class Beating:
    """A lease thread; it is the thread's connector, too."""

    display = "redis://server"

    def __init__(self, lease: float = LEASE) -> None:
        self.bench = Bench()
        self.answers: dict[str, Any] = {"EVALSHA": [b"5000", [], []], "ROLE": MASTER, "renew": [*FENCE, []]}
        self.writes: list[list[tuple[Any, ...]]] = []
        self.clients: list[Client] = []
        self.timeouts: list[float] = []
        self.beats: list[Beat | None] = []
        self.failures: list[ToolbusError] = []
        self.demoted = 0
        self.shutdown_fails = False
        self.connects_with: BaseException | None = None
        self.alarm = Alarm()
        self.bench.listener.on_failed = self.failures.append  # type: ignore[method-assign,assignment]
        self.bench.settings = msgspec.structs.replace(SETTINGS, lease=lease)
        self.thread = LeaseThread(*self.bench.own, cast("Any", self), report=self.beats.append, demoted=self._demote)
        self.thread._wake = self.alarm

    def sync_client(self, timeout: float) -> Client:
        """Connect."""
        if self.connects_with is not None:
            raise self.connects_with
        self.timeouts.append(timeout)
        self.clients.append(Client(self))
        return self.clients[-1]

    def _demote(self) -> None:
        self.demoted += 1

    def answer(self, name: str) -> Any:
        """Answer as the test says."""
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def beat(self, act: Callable[[], None] | None = None) -> Beat | None:
        """Have the thread beat, and return what it reports."""
        heard = len(self.beats)
        (act or self.thread.nudge)()
        await eventually(lambda: len(self.beats) > heard and len(self.alarm.waited) > len(self.beats))
        return self.beats[-1]


@pytest.fixture
async def beating() -> AsyncIterator[Beating]:
    """A thread that has not started."""
    made = Beating()
    yield made
    if made.thread._thread.ident is not None:
        made.thread.stop()


async def test_a_beat_says_what_is_served_and_what_to_keep_alive(beating: Beating) -> None:
    """It comes at once; the script and the question for the server's role go in one write."""
    beating.answers["EVALSHA"] = [b"5000", [1], [b"pool", b"unknown"]]
    beating.bench.streams["other"] = beating.bench.new_stream("other")
    beat = await beating.beat(beating.thread.start)
    keys = [KEYS.live, KEYS.paused, KEYS.pulse]
    for stream in beating.bench.streams.values():
        keys += [stream.key, stream.fence]
    script = ("EVALSHA", scripts.BEAT.sha, len(keys), *keys, 6_000, TTL * 1000, "pool/mine", "other/mine")
    assert beating.writes == [[script, ("ROLE",)]]
    assert beat == Beat(5000.0, 100.0, 101.0, ["pool/mine"], {"pool": True, "other": False}, {"pool": [], "other": []})
    assert beating.thread._thread.daemon, "it keeps no process alive"
    assert beating.thread._thread.name == "toolbus-leases"


async def test_what_is_held_is_renewed_with_the_beat(beating: Beating) -> None:
    """On the same connection, and the answer goes with the beat's."""
    held = beating.bench.hold()
    beat = await beating.beat(beating.thread.start)
    stream = beating.bench.stream
    assert beating.writes[1] == [("EVALSHA", scripts.RENEW.sha, 2, stream.key, stream.fence, "mine", *FENCE, b"1-0", 1)]
    assert beat is not None
    [renewal] = beat.renewed["pool"]
    assert (renewal.fence, renewal.kept, renewal.lost) == (FENCE, [held], [])


async def test_scripts_that_the_server_does_not_know_are_sent_whole(beating: Beating) -> None:
    """After a restart; the beat was answered when the second answer came."""
    beating.answers |= {"EVALSHA": redis.exceptions.NoScriptError("NOSCRIPT"), "EVAL": [b"7000", [], []]}
    beat = await beating.beat(beating.thread.start)
    (_, sha, *words), role = beating.writes[0]
    assert (sha, role) == (scripts.BEAT.sha, ("ROLE",))
    assert beating.writes[-1] == [("EVAL", scripts.BEAT.source, *words)]
    assert beat is not None
    assert (beat.server_ms, beat.asked, beat.answered) == (7000.0, 100.0, 101.25)
    beating.bench.hold()
    beating.answers |= {"EVALSHA": [b"5000", [], []], "renew": redis.exceptions.NoScriptError("NOSCRIPT"), "EVAL": [*FENCE, []]}
    beat = await beating.beat()
    assert beat is not None
    assert beat.renewed["pool"][0].fence == FENCE
    stream = beating.bench.stream
    assert beating.writes[-1] == [("EVAL", scripts.RENEW.source, 2, stream.key, stream.fence, "mine", *FENCE, b"1-0", 1)]


@pytest.mark.parametrize(("lease", "timeout"), [(0.6, 0.5), (6.0, 3.0), (60.0, 7.0)])
async def test_one_connection_is_kept_and_waited_for_at_most_half_a_lease(lease: float, timeout: float) -> None:
    """A beat that hangs for longer loses the lease all the same."""
    beating = Beating(lease)
    await beating.beat(beating.thread.start)
    await beating.beat()
    assert beating.timeouts == [timeout]
    beating.thread.stop()
    assert not beating.thread._thread.is_alive()
    assert beating.clients[0].closed == 1
    assert len(beating.beats) == 2


async def test_beats_come_three_times_a_lease_and_sooner_after_a_failure(beating: Beating) -> None:
    """Some jitter keeps workers apart; an answer that took a second leaves a second less, and a failure is retried soon."""
    await beating.beat(beating.thread.start)
    for _ in range(60):
        await beating.beat()
    first, *later = beating.alarm.waited
    assert 0.9 * LEASE / 3 <= first <= LEASE / 3
    assert all(0.9 <= each <= 1.0 for each in later), "of the two seconds, one has passed with the answer"
    assert len(set(later)) > 1
    beating.answers["EVALSHA"] = redis.exceptions.ConnectionError("lost")
    await beating.beat()
    assert 0.9 * 0.5 <= beating.alarm.waited[-1] <= 0.5


async def test_a_short_lease_is_retried_sooner() -> None:
    """Ten tries fit into it."""
    beating = Beating(1.0)
    beating.answers["EVALSHA"] = redis.exceptions.ConnectionError("lost")
    await beating.beat(beating.thread.start)
    assert 0.09 <= beating.alarm.waited[-1] <= 0.1
    beating.thread.stop()


@pytest.mark.parametrize("how", ["role", "script"])
async def test_a_server_that_is_a_replica_is_left(beating: Beating, observed: Observed, how: str) -> None:
    """Its leases are nobody's; the next beat looks afresh for the master."""
    if how == "role":
        beating.answers["ROLE"] = REPLICA
    else:
        beating.answers["EVALSHA"] = redis.exceptions.ReadOnlyError("the server is a replica now")
    assert await beating.beat(beating.thread.start) is None
    await eventually(lambda: beating.demoted == 1)
    assert beating.clients[0].closed == 1
    assert observed.events == [FAILED | {"error": "the server is a replica now"}]
    beating.answers |= {"ROLE": MASTER, "EVALSHA": [b"5000", [], []]}
    assert await beating.beat() is not None
    assert len(beating.clients) == 2
    assert beating.demoted == 1


async def test_a_replica_is_asked_as_seldom_as_a_server_that_fails(beating: Beating) -> None:
    """Dropping the worker's connections, which may all lead back to it, does not wake the thread that has found that out."""
    mastership = Mastership(Connector("redis://server"), [], beating.thread.relocate)

    def demoted() -> None:
        mastership.demoted("it is a replica now")
        beating.demoted += 1

    beating.thread.demoted, beating.answers["ROLE"] = demoted, REPLICA
    assert await beating.beat(beating.thread.start) is None
    await eventually(lambda: beating.demoted == 1)
    assert not beating.alarm.is_set()
    assert len(beating.alarm.waited) == 2
    assert 0.9 * 0.5 <= beating.alarm.waited[-1] <= 0.5


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (redis.exceptions.ConnectionError("lost"), "lost"),
        (redis.exceptions.ResponseError("OOM"), "OOM"),
        (OSError("unreachable"), "unreachable"),
        (BrokerUnavailable("no master"), "no master"),
        (redis.exceptions.TimeoutError(), "TimeoutError"),
    ],
)
async def test_a_failure_of_the_server_is_told_and_ends_nothing(beating: Beating, observed: Observed, error: Exception, told: str) -> None:
    """However often: who reaches it again has a lease again, if nobody has taken over."""
    beating.answers["EVALSHA"] = error
    await beating.beat(beating.thread.start)
    for _ in range(MOST_FAILURES):
        await beating.beat()
    assert beating.beats == [None] * (MOST_FAILURES + 1)
    assert observed.events[0] == FAILED | {"error": told}
    assert (beating.failures, beating.demoted) == ([], 0)
    assert len(beating.clients) == MOST_FAILURES + 1
    assert all(client.closed == 1 for client in beating.clients)


async def test_bugs_in_a_row_fail_the_worker(beating: Beating, observed: Observed) -> None:
    """A beat in between begins the count anew, and the failure is told once."""
    beating.answers["EVALSHA"] = [b"nonsense", [], []]
    await beating.beat(beating.thread.start)
    for _ in range(MOST_FAILURES - 2):
        await beating.beat()
    beating.answers["EVALSHA"] = [b"5000", [], []]
    assert await beating.beat() is not None
    beating.answers["EVALSHA"] = [b"nonsense", [], []]
    for _ in range(MOST_FAILURES - 1):
        await beating.beat()
    assert beating.failures == []
    for _ in range(2):
        await beating.beat()
    [failure] = beating.failures
    assert f"{MOST_FAILURES} times" in str(failure)
    assert "ValueError" in str(failure)
    first = observed.events[0]
    assert (first["level"], first["event"], first["task"], first["failures"]) == ("ERROR", "task.failed", "leases", 1)
    assert [event["failures"] for event in observed.events][-2:] == [MOST_FAILURES, MOST_FAILURES + 1]


async def test_the_traceback_of_a_bug_is_logged(beating: Beating, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody could find it otherwise."""
    beating.answers["EVALSHA"] = [b"nonsense", [], []]
    await beating.beat(beating.thread.start)
    assert caplog.records[0].exc_info is not None


async def test_what_can_not_be_logged_ends_no_thread(beating: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a connection that can't be closed; the worker fails when it goes on."""

    def fail(*_: Any, **__: Any) -> str:
        raise ValueError("no words")

    monkeypatch.setattr(Client, "close", fail)
    monkeypatch.setattr(type(telemetry.log), "warning", fail)
    beating.answers["EVALSHA"] = redis.exceptions.ConnectionError("lost")
    await beating.beat(beating.thread.start)
    beating.answers["EVALSHA"] = [b"5000", [], []]
    assert await beating.beat() is not None
    beating.answers["EVALSHA"] = redis.exceptions.ConnectionError("lost")
    for _ in range(MOST_FAILURES):
        assert beating.failures == []
        await beating.beat()
    await eventually(lambda: beating.failures)
    assert "no words" in str(beating.failures[0])


async def test_the_end_of_the_thread_fails_the_worker(beating: Beating, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that does not beat must not run on as if it did, for any reason."""
    beating.connects_with = SystemExit(3)
    beating.thread.start()
    await eventually(lambda: beating.failures)
    assert str(beating.failures[0]) == "the lease thread ended with SystemExit: 3"
    assert "task.given_up" in caplog.text
    await eventually(lambda: not beating.thread._thread.is_alive())


@pytest.mark.parametrize("fails", [False, True])
async def test_relocating_ends_a_read_and_takes_another_connection(beating: Beating, fails: bool) -> None:
    """The thread may wait for an answer of a server that is no master any more; it alone closes the connection."""
    beating.shutdown_fails = fails
    await beating.beat(beating.thread.start)
    await beating.beat(beating.thread.relocate)
    assert beating.clients[0].down == [socket.SHUT_RDWR]
    assert [client.closed for client in beating.clients] == [1, 0]
    await beating.beat()
    assert len(beating.clients) == 2, "once is enough"


async def test_before_the_first_connection_there_is_nothing_to_relocate(beating: Beating) -> None:
    """The first beat looks for the master anyway."""
    beating.thread.relocate()
    assert await beating.beat(beating.thread.start) is not None
    assert len(beating.clients) == 1


def test_a_loop_that_was_closed_ends_the_thread() -> None:
    """The process is going away; the thread must not fail, nor beat on."""

    async def start() -> Beating:
        beating = Beating()
        await beating.beat(beating.thread.start)
        return beating

    beating = asyncio.run(start())
    beating.thread.nudge()
    beating.thread._thread.join(10.0)
    assert not beating.thread._thread.is_alive()
    assert beating.clients[0].closed == 1
    assert len(beating.writes) == 2
