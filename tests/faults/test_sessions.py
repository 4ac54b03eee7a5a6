"""Sessions when agents and workers die: real processes, and the scripts by hand where timing decides."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.faults.notes import Notes
from tests.faults.programs import LEASE, place_of, programs
from tests.forking import ForkServer, Program
from tests.servers import eventually
from toolbus import ToolBus, ToolResult
from toolbus.bus.broker.admin import overview_keys
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.events import Started

pytestmark = pytest.mark.anyio

Spawn = Callable[..., Program]


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on Valkey, with the processes' lease."""
    return place_of(server, namespace)


@pytest.fixture
def ends(tmp_path: Path) -> Path:
    """The file in which workers write the ends of sessions."""
    return tmp_path / "ends"


@pytest.fixture
def spawn(place: Place, forks: ForkServer, ends: Path) -> Iterator[Spawn]:
    """Starts a worker, or an agent in a session."""
    settings = place.settings

    with programs(forks) as start:

        def spawned(role: str = "worker", last: object = ends) -> Program:
            return start("tests.faults.notes", role, settings.url, settings.namespace, str(LEASE), str(last))

        yield spawned


async def workers_up(bus: ToolBus, count: int) -> None:
    """Wait until so many workers take calls."""
    await bus.wait_for_tool("note", timeout=20)
    seen: set[str] = set()

    async def all_answer() -> bool:
        results = await asyncio.gather(*(bus.call("note", {"seconds": 0.01}) for _ in range(2 * count)))
        seen.update(str(result.output).split()[0] for result in results)
        return len(seen) == count

    await eventually(all_answer, timeout=20)


def ended(ends: Path) -> list[str]:
    """The sessions that workers cleaned up after."""
    return ends.read_text().split() if ends.exists() else []


async def note(bus: ToolBus, session: str, seconds: float = 0.0) -> tuple[int, int]:
    """Take a note in a session; the process that has it, and its number of notes."""
    result = await bus.call("note", {"seconds": seconds}, session=session, user="ann", timeout=30.0)
    assert result.success, result.error
    pid, count = str(result.output).split()
    return int(pid), int(count)


async def test_sessions_stay_at_their_workers_under_load(place: Place, spawn: Spawn) -> None:
    """50 sessions with interleaved calls, three processes: each session has one process, and that has all its notes."""
    for _ in range(3):
        spawn()
    async with place.bus() as bus:
        await workers_up(bus, 3)

        async def converse(session: str) -> list[tuple[int, int]]:
            return [await note(bus, session, 0.001) for _ in range(8)]

        said = await asyncio.gather(*(converse(f"s{number}") for number in range(50)))
        assert [[count for _, count in answers] for answers in said] == [list(range(1, 9))] * 50
        assert all(len({pid for pid, _ in answers}) == 1 for answers in said)
        assert len({answers[0][0] for answers in said}) > 1, "not all at one worker"


@pytest.mark.usefixtures("slow")
async def test_sessions_of_a_killed_worker_go_on_elsewhere(place: Place, spawn: Spawn) -> None:
    """Its running calls and the next ones are answered by another, in sessions that start anew there and stay."""
    workers = {process.pid: process for process in (spawn(), spawn())}
    async with place.bus() as bus:
        await workers_up(bus, 2)
        homes = {f"s{number}": (await note(bus, f"s{number}"))[0] for number in range(12)}
        victim = homes["s0"]
        running = [asyncio.create_task(note(bus, session, 0.5)) for session in homes]
        await eventually(lambda: bus.statistics()["in_flight"] == 12)
        workers[victim].kill()
        # Calls wait for the dead worker until its lease is over.
        running += [asyncio.create_task(note(bus, session)) for session in homes]
        answers = await asyncio.gather(*running)
        (survivor,) = workers.keys() - {victim}
        for (session, home), first, second in zip(homes.items(), answers[:12], answers[12:], strict=True):
            assert {first[0], second[0]} == {survivor}
            assert sorted((first[1], second[1])) in ([1, 2], [2, 2]) if home == victim else max(first[1], second[1]) == 3, session
        assert [(await note(bus, session))[0] for session in homes] == [survivor] * 12


@pytest.mark.usefixtures("slow")
async def test_a_paused_worker_that_wakes_up_starts_no_second_life_of_a_session(place: Place, spawn: Spawn) -> None:
    """A session that moved on while its worker was stopped stays there: the old worker hands calls over and drops its state."""
    workers = [spawn(), spawn()]
    async with place.bus() as bus:
        await workers_up(bus, 2)
        first, _ = await note(bus, "s")
        os.kill(first, signal.SIGSTOP)
        answers = [await note(bus, "s"), await note(bus, "s")]
        (second,) = {worker.pid for worker in workers} - {first}
        assert answers == [(second, 1), (second, 2)]
        os.kill(first, signal.SIGCONT)
        said = await asyncio.gather(*(note(bus, "s", 0.01) for _ in range(50)))
        await workers_up(bus, 2)
        # Both wait for requests, so that they take them in turn.
        said += [await note(bus, "s") for _ in range(20)]
        assert {pid for pid, _ in said} == {second}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("more", [0, 1], ids=["alone", "before another call"])
async def test_a_woken_worker_answers_nothing_in_a_session_that_has_moved_on(place: Place, spawn: Spawn, more: int) -> None:
    """A call in progress when the lease ended goes to the session's new worker, unanswered, though nobody had taken it over yet.

    Also when the worker had beaten while it was registered, since that beat did not prolong the lease of its service; and when another
    call of the session has told the worker of its loss.
    """
    worker, keys = spawn("late"), Keys(place.settings.namespace)
    with redis.Redis.from_url(place.settings.url, decode_responses=True) as client:

        def holders() -> list[str]:
            return [each["consumer"] for each in client.xpending_range(keys.queue("notes"), "g", "-", "+", 10)]

        async with place.bus() as bus:
            await bus.wait_for_tool("note", timeout=20)
            began = asyncio.Event()

            async def noted() -> ToolResult:
                async with bus.stream("note", {"seconds": 1.2}, session="s", user="ann", timeout=30.0) as note:
                    async for event in note.events():
                        if isinstance(event, Started):
                            began.set()
                    return await note.result()

            call = asyncio.create_task(noted())
            # Its handler runs: one that began after the worker woke up would not be in progress.
            await asyncio.wait_for(began.wait(), 20)
            (instance,) = holders()
            os.kill(worker.pid, signal.SIGSTOP)
            # Another worker, which looks for no work of the dead, and serves what this one does.
            start, _, digest = str(client.hget(keys.instances("notes"), f"i:{instance}")).partition(":")
            client.hset(keys.instances("notes"), "i:ghost", f"{int(start) + 1}:{digest}")
            client.zadd(keys.live, {"notes/ghost": int((time.time() + 60) * 1000)})
            # In whole milliseconds, as the scripts judge.
            await eventually(lambda: (client.zscore(keys.live, f"notes/{instance}") or 0) < int(time.time() * 1000), timeout=10)
            (owner,) = client.scan_iter(f"{keys.prefix}sess:*")
            client.set(owner, "ghost", px=60_000)
            os.kill(worker.pid, signal.SIGCONT)
            others = [asyncio.create_task(note(bus, "s")) for _ in range(more)]
            await eventually(lambda: holders() == ["~to:ghost"] * (1 + more), timeout=10)
            assert not call.done()
            client.hdel(keys.instances("notes"), "i:ghost")
            client.zrem(keys.live, "notes/ghost")
            assert (await call).output == f"{worker.pid} 1", "in a life of the session that begins anew"
            assert [await other for other in others] == [(worker.pid, 2)] * more


async def test_a_drained_worker_hands_its_sessions_on(place: Place, spawn: Spawn, ends: Path) -> None:
    """SIGTERM in the middle of conversations costs no call, and every session it had is cleaned up."""
    leaving = spawn()
    async with place.bus() as bus:
        await workers_up(bus, 1)
        for number in range(10):
            assert (await note(bus, f"s{number}"))[0] == leaving.pid
        staying = spawn()
        await workers_up(bus, 2)
        running = [asyncio.create_task(note(bus, f"s{number}", 0.01)) for number in range(10) for _ in range(5)]
        leaving.terminate()
        answers = await asyncio.gather(*running)
        await eventually(lambda: leaving.poll() is not None, timeout=15)
        assert leaving.returncode == 0
        assert {pid for pid, _ in answers} <= {leaving.pid, staying.pid}
        assert sorted(ended(ends)) == [f"ann/s{number}" for number in range(10)]
        assert {(await note(bus, f"s{number}"))[0] for number in range(10)} == {staying.pid}


@pytest.mark.usefixtures("slow")
async def test_a_killed_agent_ends_its_sessions(place: Place, spawn: Spawn, ends: Path) -> None:
    """Nobody signs off: the worker notices that the agent's lease is over. What another agent uses too goes on."""
    spawn()
    async with place.bus() as bus:
        await workers_up(bus, 1)
        agents = [spawn("agent", session) for session in ("own", "shared")]
        told = [str(await asyncio.to_thread(agent.stdout.readline)).split() for agent in agents if agent.stdout is not None]
        assert [words[2] for words in told] == ["1", "1"]
        await note(bus, "shared")
        with redis.Redis.from_url(place.settings.url) as client:
            for agent, (name, *_) in zip(agents, told, strict=True):
                agent.kill()
                # Ten seconds pass.
                assert client.pexpire(Keys(place.settings.namespace).replies(name), 50)
        await eventually(lambda: ended(ends) == ["ann/own"], timeout=10)
        assert (await note(bus, "shared"))[1] == 3
        await bus.bind(user="ann", session="shared").close_session()
        await eventually(lambda: ended(ends) == ["ann/own", "ann/shared"])


async def test_sessions_survive_a_server_without_its_keys(place: Place) -> None:
    """After FLUSHALL the worker registers again, and a session goes on, at one worker."""
    services = [Notes(), Notes()]
    async with place.worker(services[0]), place.worker(services[1]), place.bus() as bus:
        await bus.wait_for_tool("note")
        for session in range(5):
            await note(bus, f"s{session}")
        with redis.Redis.from_url(place.settings.url) as client:
            for key in client.scan_iter(f"tb:{{{place.settings.namespace}}}:*"):
                client.delete(key)

        async def converse(session: str) -> list[int]:
            counts: list[int] = []
            while len(counts) < 5:
                result = await bus.call("note", session=session, user="ann", timeout=10.0, wait=10.0)
                if result.success:
                    counts.append(int(str(result.output).split()[1]))
            return counts

        for counts in await asyncio.gather(*(converse(f"s{number}") for number in range(5))):
            assert counts == list(range(counts[0], counts[0] + 5))


# -- the scripts --------------------------------------------------------------------------------------


class Pool:
    """A request stream of a sticky service whose workers are played by hand."""

    def __init__(self, place: Place) -> None:
        self.client = redis.Redis.from_url(place.settings.url, decode_responses=True)
        self.keys = Keys(place.settings.namespace)
        self.queue, self.fence = self.keys.queue("pool"), self.keys.fence("pool")
        self.client.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.client.hset(self.fence, mapping={"generation": "0.one", "c:ann": 0, "c:bob": 0})
        self.client.hset(self.keys.instances("pool"), mapping={"i:ann": "1:d", "i:bob": "2:d"})
        self.live(ann=60, bob=60)
        now = int(time.time() * 1000)
        self.client.set(self.keys.pulse, f"{now} {now - 1}", px=60_000)
        for key in (self.queue, self.fence, self.keys.live, self.keys.instances("pool")):
            self.client.expire(key, 60)

    def live(self, **seconds: float) -> None:
        """Set when leases end, from now."""
        self.client.zadd(self.keys.live, {f"pool/{name}": int((time.time() + left) * 1000) for name, left in seconds.items()})

    def take(self, name: str, attempt: int = 1) -> str:
        """Publish a request and have a worker take it, as if it had been lost before."""
        entry = str(self.client.xadd(self.queue, {"r": "{}", "d": "1"}))
        self.client.xreadgroup("g", name, {self.queue: ">"})
        self.client.xclaim(self.queue, "g", name, 0, [entry], retrycount=attempt, justid=True)
        return entry

    def own(self, name: str, *entries: str, session: str = "s", attempt: int = 1, begun: bool = False) -> list[str]:
        """Ask as a worker whose a session is."""
        instances, owner = self.keys.instances("pool"), self.keys.session("pool", session)
        keys = (self.queue, self.fence, self.keys.live, self.keys.pulse, instances, owner)
        args: list[Any] = [name, "pool", "0.one", 60_000, 60_000, self.keys.wake("pool")]
        for entry in entries:
            args += (len(keys), entry, attempt, int(begun))
        answer: Any = self.client.eval(scripts.OWN.source, len(keys), *keys, *args)
        return list(answer[3])

    def pending(self) -> list[tuple[str, int]]:
        """Return the consumer and the delivery count of each pending entry."""
        return [(each["consumer"], each["times_delivered"]) for each in self.client.xpending_range(self.queue, "g", "-", "+", 100)]

    def reap(self, name: str, room: int = 10, *, handed_back_only: bool = False, busy: bool = False) -> list[int]:
        """Reap as a worker; the attempts that its runs would be."""
        keys = (self.queue, self.fence, self.keys.live, self.keys.pulse)
        args = (name, "pool", room, 60_000, int(handed_back_only), int(busy), 4, 1, self.keys.pause("pool", ""))
        answer: Any = self.client.eval(scripts.REAP.source, len(keys), *keys, *args)
        return [delivered + counted for _, delivered, counted, *_ in answer[2]]


@pytest.fixture
def pool(place: Place) -> Iterator[Pool]:
    """A pool of two live workers, ann and bob."""
    made = Pool(place)
    yield made
    made.client.close()


def test_a_call_is_handed_to_the_sessions_owner_alone(pool: Pool) -> None:
    """It keeps its number, its taker's fence moves, others can't reap it, and the owner gets it at once."""
    assert pool.own("ann", pool.take("ann")) == ["new"]
    assert pool.own("ann", pool.take("ann")) == ["mine"]
    entry = pool.take("bob")
    assert pool.own("bob", entry) == ["moved"]
    assert pool.own("bob", entry) == ["lost"], "a script that is sent again moves nothing"
    assert pool.client.hget(pool.fence, "c:bob") != "0"
    assert pool.pending()[2] == ("~to:ann", 1)
    assert pool.reap("bob") == []
    assert pool.reap("ann", handed_back_only=True) == [1]
    assert [owner for owner, _ in pool.pending()] == ["ann"] * 3
    assert pool.own("bob", entry) == ["lost"], "nor does it steal what its owner has taken"


def test_a_call_that_had_begun_elsewhere_is_handed_over_as_the_next_attempt(pool: Pool) -> None:
    """Its session went to another worker while it ran: two runs with one number could not be told apart."""
    entry = pool.take("bob", attempt=2)
    pool.own("ann", pool.take("ann"))
    assert pool.own("bob", entry, attempt=2, begun=True) == ["moved"]
    assert pool.own("bob", entry, attempt=2, begun=True) == ["lost"], "a script that is sent again counts once"
    assert pool.reap("ann", handed_back_only=True) == [3]


def inherited(verdicts: list[str]) -> bool:
    """Return whether the session's state was lost with its owner, as of now."""
    (verdict,) = verdicts
    word, _, milliseconds = verdict.partition(" ")
    return word == "heir" and abs(int(milliseconds) / 1000 - time.time()) < 3600


def test_a_session_of_a_dead_worker_is_free(pool: Pool) -> None:
    """Its lease is over, or it is not registered; but after a silence of the server nobody's lease counts as over."""
    pool.own("ann", pool.take("ann"))
    pool.live(ann=-1)
    pool.client.delete(pool.keys.pulse)
    assert pool.own("bob", pool.take("bob")) == ["moved"]
    now = int(time.time() * 1000)
    pool.client.set(pool.keys.pulse, f"{now} {now - 1}", px=60_000)
    assert inherited(pool.own("bob", pool.take("bob")))
    pool.client.zrem(pool.keys.live, "pool/bob")
    pool.client.delete(pool.keys.pulse)
    pool.live(ann=60)
    assert inherited(pool.own("ann", pool.take("ann")))


def test_what_waits_for_a_dead_worker_is_taken_over_uncounted(pool: Pool) -> None:
    """Nobody died of it: its next run has the number that it had, and the pseudo consumer goes."""
    pool.own("ann", pool.take("ann"))
    assert pool.own("bob", pool.take("bob", attempt=2), attempt=2) == ["moved"]
    pool.live(ann=-1)
    # What ann took itself was being tried.
    assert sorted(pool.reap("bob")) == [2, 2]
    # Swept from the registry, it is forgotten here, too.
    pool.client.zrem(pool.keys.live, "pool/ann")
    pool.reap("bob")
    consumers = {each["name"] for each in pool.client.xinfo_consumers(pool.queue, "g")}
    assert consumers == {"bob"}


def test_what_must_run_alone_waits_for_an_idle_owner(pool: Pool) -> None:
    """A suspect that was handed over is taken by its owner when that holds nothing, and is not taken beside others."""
    pool.own("ann", pool.take("ann"))
    assert pool.own("bob", pool.take("bob", attempt=4), attempt=4) == ["moved"]
    assert pool.reap("ann", busy=True) == []
    assert pool.reap("ann") == [4]


def test_cancelling_removes_what_waits_and_never_ran(pool: Pool) -> None:
    """A first attempt that waits for its owner is removed for certain; a later one may have run, and is signalled."""
    pool.own("ann", pool.take("ann"))
    fates = []
    for attempt in (1, 2):
        entry = pool.take("bob", attempt)
        pool.own("bob", entry, attempt=attempt)
        keys = (pool.queue, pool.keys.cancelled("pool"))
        fates.append(pool.client.eval(scripts.CANCEL.source, 2, *keys, entry, f"c{attempt}", 5000, pool.keys.wake("pool")))
    assert fates == ["removed", "signalled"]
    assert [owner for owner, _ in pool.pending()] == ["ann", "~to:ann"]


def test_what_waits_for_a_worker_counts_as_queued_and_is_purged(pool: Pool) -> None:
    """The overview counts it as queued, and a purge removes it and leaves what runs."""
    pool.own("ann", pool.take("ann"))
    entry = pool.take("bob")
    pool.own("bob", entry)
    keys = overview_keys(pool.keys, "pool", "pool")
    assert pool.client.eval(scripts.OVERVIEW.source, len(keys), *keys, "pool")[0][:2] == [1, 1]
    purge = (pool.queue, pool.fence, pool.keys.dead_letters("pool"), "", "", "", entry, *7 * [""], "", "")
    assert pool.client.eval(scripts.BURY.source, 3, *purge) == 1
    running = pool.pending()
    assert running == [("ann", 1)]
    assert pool.client.xlen(pool.queue) == 1


def test_a_worker_that_drains_has_no_sessions(pool: Pool) -> None:
    """It has left the registry and keeps a lease for what it still runs; its sessions begin anew elsewhere."""
    assert pool.own("ann", pool.take("ann")) == ["new"]
    pool.client.hdel(pool.keys.instances("pool"), "i:ann")
    assert inherited(pool.own("bob", pool.take("bob")))


def test_a_worker_that_leaves_passes_on_what_waits_for_it(pool: Pool) -> None:
    """It is anybody's then, still the same attempt, and the leaver's consumers go."""
    pool.own("ann", pool.take("ann"))
    pool.own("bob", pool.take("bob"))
    words = ("ann", "", "", pool.keys.wake("pool"), "pool", "", 256, "")
    assert pool.client.eval(scripts.HAND_BACK.source, 2, pool.queue, pool.fence, *words) == 1
    assert pool.reap("bob", handed_back_only=True) == [1]
    pool.client.xack(pool.queue, "g", *[each["message_id"] for each in pool.client.xpending_range(pool.queue, "g", "-", "+", 10)])
    keys = (pool.queue, pool.fence, pool.keys.cancelled("pool"), pool.keys.instances("pool"), pool.keys.live)
    pool.client.eval(scripts.RETIRE.source, len(keys), *keys, "ann", "pool")
    assert {each["name"] for each in pool.client.xinfo_consumers(pool.queue, "g")} == {"bob", "~back"}
