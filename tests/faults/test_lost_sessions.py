"""Sessions whose workers are killed: real processes. No call ever runs silently on another state than it was meant for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.contract import Place
from tests.faults.programs import LEASE, place_of, programs
from tests.forking import ForkServer, Program
from tests.servers import eventually
from toolbus import ToolBus, ToolResult
from toolbus.bus.broker.server.keys import Keys, session_digest

pytestmark = pytest.mark.anyio

WORDS = 24
SESSIONS = 6
# Of a rolling restart: sessions, words of each, and how many of them are published at once.
ROLLED, ROLLED_WORDS, AT_ONCE = 12, 60, 5


@pytest.fixture
def place(url: str, namespace: str) -> Place:
    """A namespace on Valkey, with the processes' lease."""
    return place_of(url, namespace)


@pytest.fixture
def spawn(place: Place, forks: ForkServer) -> Iterator[Callable[[str], Program]]:
    """Starts a worker with a policy."""
    settings = place.settings
    with programs(forks) as start:
        yield lambda policy: start("tests.faults.baskets", settings.url, settings.namespace, str(LEASE), policy)


async def put(bus: ToolBus, session: str, what: str, seconds: float = 0.0) -> ToolResult:
    """Put a word into the basket of a session."""
    return await bus.call("put", {"what": what, "seconds": seconds}, session=session, timeout=60.0)


async def home(bus: ToolBus, session: str) -> int:
    """Return the process that has a session."""
    return int(str((await bus.call("home", session=session, timeout=60.0)).output))


@pytest.mark.usefixtures("slow")
async def test_a_killed_worker_is_told_and_never_silently_replaced(place: Place, spawn: Callable[[str], Program]) -> None:
    """The agent's next call in the session says that its state is gone, and so do those that ran or waited; none of them is run again."""
    workers = {process.pid: process for process in (spawn("error"), spawn("error"))}
    async with place.bus() as bus:
        await bus.wait_for_tool("put", timeout=30)
        assert (await put(bus, "s", "a")).output == "a"
        victim = await home(bus, "s")
        running = asyncio.create_task(put(bus, "s", "b", 30.0))
        waiting = [asyncio.create_task(put(bus, "s", f"{number}")) for number in range(5)]
        assert (await put(bus, "other", "x")).success
        workers[victim].kill()
        for result in await asyncio.gather(running, *waiting):
            assert result.error is not None
            assert (result.error.type, result.error.code) == ("tool_error", "session_lost")
        assert (await put(bus, "s", "c")).output == "c"
        assert await home(bus, "s") != victim


@pytest.mark.parametrize("policy", ["error", "restart", "restore"])
async def test_no_session_is_silently_wrong_while_workers_are_killed(place: Place, spawn: Callable[[str], Program], policy: str) -> None:
    """Each answer has what was put in since the last time that a loss was told; with snapshots nothing is ever lost."""
    chance = random.Random(7)
    workers = [spawn(policy) for _ in range(3)]
    losses = 0

    async def fill(bus: ToolBus, session: str) -> None:
        nonlocal losses
        believed: list[str] = []
        for number in range(WORDS):
            result = await put(bus, session, f"{number}", chance.uniform(0.0, 0.05))
            if result.error is not None and result.error.code == "answer_lost":
                # A snapshot has what the call did, so that it was not run again.
                assert policy == "restore", result.error
                believed.append(f"{number}")
                continue
            if result.error is not None:
                assert result.error.code == "session_lost", result.error
                losses += 1
                believed = []
                continue
            if result.meta.restarted:
                losses += 1
                believed = []
            believed.append(f"{number}")
            assert result.output == " ".join(believed), (session, result)

    async with place.bus() as bus:
        await bus.wait_for_tool("put", timeout=30)
        filling = asyncio.gather(*(fill(bus, f"s{number}") for number in range(SESSIONS)))
        kills = 0
        while not filling.done() and kills < 3:
            await asyncio.wait([filling], timeout=1.2)
            workers.pop(chance.randrange(len(workers))).kill()
            workers.append(spawn(policy))
            kills += 1
        await filling
        if policy == "restore":
            assert losses == 0
            key = Keys(place.settings.namespace).snapshot("baskets", session_digest("", "s0"))
            with redis.Redis.from_url(place.settings.url) as server:
                assert server.exists(key)
                assert server.ttl(key) > 0
                await bus.bind(session="s0").close_session()
                assert not server.exists(key)


@pytest.mark.usefixtures("slow")
async def test_pipelined_calls_go_on_from_a_snapshot(place: Place, spawn: Callable[[str], Program]) -> None:
    """Calls that were published at once, before their worker was killed, run once each, in order, on one state."""
    workers = {process.pid: process for process in (spawn("restore"), spawn("restore"))}
    async with place.bus() as bus:
        await bus.wait_for_tool("put", timeout=30)
        victim = await home(bus, "s")
        calls = [asyncio.create_task(put(bus, "s", f"{number}", 0.02)) for number in range(30)]
        await calls[10]
        workers[victim].kill()
        results = await asyncio.gather(*calls)
        assert [result.output for result in results] == [" ".join(map(str, range(number + 1))) for number in range(30)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("signal", ["TERM", "KILL"])
async def test_a_rolling_restart_costs_no_session_its_state(place: Place, spawn: Callable[[str], Program], signal: str) -> None:
    """While one worker after another leaves or dies under load, each call of a session has what all calls before it put in."""
    chance = random.Random(3)
    workers = [spawn("restore") for _ in range(3)]
    done = 0

    async def fill(bus: ToolBus, session: str) -> None:
        nonlocal done
        words: list[str] = []
        while len(words) < ROLLED_WORDS:
            new = [f"{len(words) + number}" for number in range(AT_ONCE)]
            calls = [asyncio.create_task(put(bus, session, word, chance.uniform(0.0, 0.1))) for word in new]
            beside = asyncio.create_task(home(bus, session))
            for word, result in zip(new, await asyncio.gather(*calls), strict=True):
                words.append(word)
                if result.error is not None:
                    # The worker died just when it had answered.
                    assert (signal, result.error.code) == ("KILL", "answer_lost"), result.error
                else:
                    assert result.output == " ".join(words), (session, result)
                done += 1
            await beside

    async with place.bus() as bus:
        await bus.wait_for_tool("put", timeout=30)
        filling = asyncio.gather(*(fill(bus, f"s{number}") for number in range(ROLLED)))
        for turn in range(6):
            least = (turn + 1) * ROLLED * ROLLED_WORDS // 8
            await eventually(lambda least=least: filling.done() or done >= least, timeout=120.0)  # type: ignore[misc] # bound now
            workers.append(spawn("restore"))
            oldest = workers.pop(0)
            (oldest.terminate if signal == "TERM" else oldest.kill)()
        await filling
    assert done == ROLLED * ROLLED_WORDS


@pytest.mark.usefixtures("slow")
async def test_a_session_whose_first_call_dies_with_its_worker_has_lost_nothing(place: Place, spawn: Callable[[str], Program]) -> None:
    """Killed before the first snapshot was kept, it begins again with that call, at another worker."""
    first = spawn("restore")
    key = Keys(place.settings.namespace).snapshot("baskets", session_digest("", "s"))
    with redis.Redis.from_url(place.settings.url) as server:
        async with place.bus() as bus:
            await bus.wait_for_tool("put", timeout=30)
            running = asyncio.create_task(put(bus, "s", "a", 3.0))
            await eventually(lambda: server.exists(key))
            # As if it had died before that.
            server.delete(key)
            first.kill()
            spawn("restore")
            assert (await running).output == "a"
            assert (await put(bus, "s", "b")).output == "a b"
