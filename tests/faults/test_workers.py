"""Workers that die, pause, block and poison: real processes and real signals."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.contract import Place
from tests.forking import ForkServer, Program
from tests.servers import eventually, plain_metrics, put_down
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin, ServiceOverview
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.values.events import Finished, Reset, Started, Text
from toolbus.bus.values.results import StreamReset
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.metrics import metrics_of
from toolbus.edges.gateway.options import Everyone

pytestmark = pytest.mark.anyio

LEASE = 1.0
EXPECTED = "".join(f"{number} " for number in range(60))

Spawn = Callable[..., Program]


@pytest.fixture
def spawn(place: Place, forks: ForkServer) -> Iterator[Spawn]:
    """Starts worker processes of the test's namespace, with changed settings; whatever is left of them is killed."""
    started: list[Program] = []

    def start(version: str = "1", **changes: object) -> Program:
        settings = place.settings
        command = ["-m", "tests.faults.serve", settings.url, settings.namespace, str(LEASE)]
        command += [f"{name}={value}" for name, value in changes.items()]
        started.append(forks.start(*command, environment={**os.environ, "TEST_VERSION": version}))
        return started[-1]

    yield start
    for process in started:
        put_down(process)


def bus_of(place: Place) -> ToolBus:
    """A bus whose lease fits the workers'."""
    return place.bus(lease=LEASE)


def pid_of(instance: str) -> int:
    """The pid in an instance id (host-pid-random)."""
    return int(instance.rsplit("-", 2)[1])


def pending(place: Place) -> int:
    """Return how many requests workers hold."""
    with redis.Redis.from_url(place.settings.url) as client:
        return int(client.xpending(f"tb:{{{place.settings.namespace}}}:q:faults", "g")["pending"])


async def workers_up(bus: ToolBus, place: Place, count: int) -> None:
    """Wait until so many workers are registered."""
    client = redis.Redis.from_url(place.settings.url)
    try:
        await bus.wait_for_tool("count", timeout=15)
        live = f"tb:{{{place.settings.namespace}}}:live"
        await eventually(lambda: client.zcard(live) >= count, timeout=15)
    finally:
        client.close()


@pytest.mark.parametrize(
    ("how", "width", "at"),
    [(signal.SIGKILL, 0, 10), (signal.SIGSTOP, 0, 10), pytest.param(signal.SIGKILL, 60_000, 55, marks=pytest.mark.slow)],
    ids=["killed", "paused", "long"],
)
async def test_a_worker_lost_in_mid_stream_costs_the_caller_nothing_it_can_see(
    place: Place, spawn: Spawn, how: signal.Signals, width: int, at: int
) -> None:
    """Killed or paused, another worker goes on: no piece lost, repeated or reordered, and one end, also after millions of characters."""
    spawn()
    spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 2)
        pieces: list[str] = []
        ends: list[Finished] = []
        first = ""
        async with bus.stream("count", {"n": 60, "width": width}, timeout=30.0) as call:
            async for event in call.events():
                assert not isinstance(event, Reset)
                if isinstance(event, Started):
                    first = event.worker
                elif isinstance(event, Text):
                    pieces.append(event.text)
                    if len(pieces) == at:
                        os.kill(pid_of(first), how)
                elif isinstance(event, Finished):
                    ends.append(event)
        assert "".join(pieces) == "".join(f"{number:{width}} " for number in range(60))
        assert [(end.result.success, end.result.meta.attempts) for end in ends] == [(True, 2)]
        assert ends[0].result.meta.worker != first
        if how == signal.SIGSTOP:
            # What moved on is fenced: the one that wakes up may say nothing more, and serves new calls again.
            os.kill(pid_of(first), signal.SIGCONT)
            results = await asyncio.gather(*(bus.call("count", {"n": 2}) for _ in range(20)))
            assert {result.output for result in results} == {"0 1 "}


@pytest.mark.parametrize("waiting", [0, 2])
@pytest.mark.parametrize(("how", "state"), [(signal.SIGKILL, "down"), (signal.SIGTERM, "withdrawn")], ids=["killed", "stopped"])
async def test_a_service_without_workers_stays_visible(place: Place, spawn: Spawn, how: signal.Signals, state: str, waiting: int) -> None:
    """Operators and metrics see it, what waits for it, and whether it was stopped on purpose, until a worker serves it again."""
    process = spawn()
    async with bus_of(place) as bus, Admin(place.settings) as admin:
        gateway = Gateway(bus, Everyone())
        await workers_up(bus, place, 1)
        await admin.pause("faults")
        calls = [asyncio.create_task(bus.call("count", {"n": 1})) for _ in range(waiting)]

        async def seen(workers: int) -> ServiceOverview | None:
            [found] = await admin.services()
            return found if (found.workers, found.queued, found.running) == (workers, waiting, 0) else None

        await eventually(lambda: seen(1))
        assert "faults" in bus.services
        process.send_signal(how)
        await asyncio.to_thread(process.wait, 20)
        found = await eventually(lambda: seen(0), timeout=20.0)
        assert (found.live, found.state) == (False, state)
        # When its lease has ended, the bus takes a worker that was killed out of the registry.
        await eventually(lambda: "faults" not in bus.services, timeout=20.0)
        found = await seen(0)
        assert found is not None
        assert (found.state, found.down, found.paused) == (state, state == "down", True)
        assert 0 <= await admin.now() - found.gone < 60
        samples = plain_metrics(await metrics_of(gateway)).splitlines()
        labels = 'messaging_destination_name="faults"'
        assert f"toolbus_workers{{{labels}}} 0" in samples
        assert f'toolbus_queue_length{{{labels},state="queued"}} {waiting}' in samples
        assert f"toolbus_service_down{{{labels}}} {int(state == 'down')}" in samples
        await admin.resume("faults")
        spawn()
        assert [(await call).output for call in calls] == ["0 "] * waiting
        await workers_up(bus, place, 1)
        [found] = await admin.services()
        assert (found.state, found.workers, found.gone, found.down) == ("live", 1, 0.0, False)


async def test_the_lost_attempt_of_a_killed_worker_is_told(place: Place, spawn: Spawn) -> None:
    """Operators see both attempts of the call, at which workers they were, and how many calls a worker has taken over."""
    spawn()
    spawn()
    async with bus_of(place) as bus, Admin(place.settings) as admin:
        await workers_up(bus, place, 2)
        first = ""
        async with bus.stream("count", {"n": 60}, timeout=30.0, user="ann") as call:
            async for event in call.events():
                if isinstance(event, Started):
                    first = event.worker
                    os.kill(pid_of(first), signal.SIGKILL)

        async def told() -> list[RecentCall]:
            found = [each for each in await admin.recent() if each.id == call.id]
            return found if len(found) == 2 else []

        last, lost = await eventually(told, timeout=20.0)
        statistics = await admin.statistics(patience=20.0)
    assert (lost.attempt, lost.outcome, lost.instance, lost.user, lost.tool) == (1, "lost", first, "ann", "count")
    assert (last.attempt, last.outcome, last.instance) == (2, "succeeded", lost.by)
    assert lost.queued == last.queued <= lost.ended <= last.ended
    [answer] = statistics.answers.values()
    assert (answer.instance, [tool.retaken for tool in answer.tools]) == (lost.by, [1])


@pytest.mark.parametrize("plain", [False, True], ids=["events", "plain"])
async def test_a_diverging_attempt_is_an_explicit_reset(place: Place, spawn: Spawn, plain: bool) -> None:
    """When the new run says something else, events carry a Reset and plain iteration raises."""
    spawn()
    spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 2)
        resets, text, worker = 0, "", ""
        async with bus.stream("diverge", {"n": 40}, timeout=30.0) as call:
            try:
                async for event in call if plain else call.events():
                    if isinstance(event, Started):
                        worker = event.worker
                    elif isinstance(event, Reset):
                        resets += 1
                        text = ""
                    elif isinstance(event, (Text, str)):
                        text += event.text if isinstance(event, Text) else event
                        worker = worker or f"-{text.partition(':')[0]}-x"
                        if text.count(" ") == 5 and not resets:
                            os.kill(pid_of(worker), signal.SIGKILL)
            except StreamReset:
                assert plain
                resets += 1
        assert resets == 1
        if not plain:
            survivor = text.partition(":")[0]
            assert text == "".join(f"{survivor}:{number} " for number in range(40))


async def test_work_that_is_once_is_never_run_again(place: Place, spawn: Spawn) -> None:
    """A once handler whose worker is killed ends as outcome_unknown, although another worker is there."""
    process = spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        call = asyncio.create_task(bus.call("pay", {"seconds": 20.0}, timeout=30.0))
        client = redis.Redis.from_url(place.settings.url)
        prefix = f"tb:{{{place.settings.namespace}}}:started:*"
        await eventually(lambda: list(client.scan_iter(prefix)))
        client.close()
        process.kill()
        spawn()
        result = await call
    assert result.error is not None
    assert result.error.type == "outcome_unknown"


async def test_a_blocked_event_loop_loses_nothing(place: Place, spawn: Spawn) -> None:
    """A handler that blocks its loop for several leases keeps its call: one attempt, one answer."""
    spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        spawn()
        await workers_up(bus, place, 2)
        result = await bus.call("block", {"seconds": 2.5 * LEASE}, timeout=30.0)
    assert (result.output, result.meta.attempts) == ("unblocked", 1)


@pytest.mark.usefixtures("slow")
async def test_long_work_is_not_run_twice_because_it_is_long(place: Place, spawn: Spawn) -> None:
    """A call of several leases runs once."""
    spawn()
    spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 2)
        result = await bus.call("count", {"n": 4, "delay": LEASE}, timeout=30.0)
    assert (result.output, result.meta.attempts) == ("0 1 2 3 ", 1)


async def test_poison_ends_as_a_dead_letter_and_the_pool_survives(place: Place, spawn: Spawn) -> None:
    """A request that kills its workers is given up after max_deliveries, with one error and a dead letter."""
    processes = [spawn() for _ in range(3)]
    async with bus_of(place) as bus:
        await workers_up(bus, place, 3)
        result = await bus.call("poison", timeout=30.0)
        assert result.error is not None
        assert (result.error.type, result.error.code) == ("tool_error", "max_deliveries")
        assert sum(process.poll() is not None for process in processes) == 2
        assert (await bus.call("count", {"n": 1})).output == "0 "
        client = redis.Redis.from_url(place.settings.url)
        letters = client.xrange(f"tb:{{{place.settings.namespace}}}:dlq:faults")
        client.close()
    assert len(letters) == 1
    assert letters[0][1][b"reason"] == b"max_deliveries"
    assert b"given up" in letters[0][1][b"error"]


async def test_a_service_whose_workers_crash_is_gone_after_the_lease(place: Place, spawn: Spawn) -> None:
    """When the last worker is killed its tools disappear from agents without anybody signing off."""
    process = spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        process.kill()
        await eventually(lambda: "count" not in bus.tools, timeout=10 * LEASE)


async def test_sigterm_drains_and_exits_with_zero(place: Place, spawn: Spawn) -> None:
    """A terminated worker finishes its call, signs off, and exits cleanly."""
    process = spawn()
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        async with bus.stream("count", {"n": 30}) as call:
            async for text in call:
                if text == "3 ":
                    process.terminate()
            assert (await call.result()).success
        await eventually(lambda: process.poll() is not None, timeout=10)
        assert process.returncode == 0
        assert "count" not in bus.tools


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("tool", "arguments"), [("count", {"n": 60, "delay": 0.1}), ("pay", {"seconds": 6.0})])
async def test_what_a_drain_finishes_nobody_else_begins(place: Place, spawn: Spawn, tool: str, arguments: dict[str, float]) -> None:
    """Another worker looks for work of the dead all the while; what the leaving one still runs, for leases, is not among it."""
    leaving = spawn(grace=20.0)
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        call = asyncio.create_task(bus.call(tool, arguments, timeout=30.0))
        await eventually(lambda: pending(place))
        spawn()
        await workers_up(bus, place, 2)
        leaving.terminate()
        result = await call
    assert result.success, result.error
    assert (result.meta.attempts, pid_of(result.meta.worker), leaving.wait()) == (1, leaving.pid, 0)


def runs_behind(gate: Path) -> list[tuple[str, str]]:
    """Return call and attempt of each run that has come to a gate."""
    return sorted((call, attempt) for call, attempt, _ in (path.name.split(".")[1:] for path in gate.parent.glob("gate.*")))


async def test_what_a_drain_cuts_off_is_handed_back_and_goes_on_elsewhere(place: Place, spawn: Spawn, tmp_path: Path) -> None:
    """Worker after worker hands its streams on at the end of its grace: each run is an attempt of its own, and callers see nothing of it.

    As many workers may leave a call as like to: none of them died of it.
    """
    gate = tmp_path / "gate"
    gate.touch()
    settings = {"grace": 0.2, "max_deliveries": 2}
    worker = spawn(**settings)
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        calls = [asyncio.create_task(bus.call("count_behind", {"gate": str(gate), "n": 60}, timeout=60.0)) for _ in range(4)]
        for runs in range(1, 5):
            await eventually(lambda runs=runs: len(runs_behind(gate)) == runs * len(calls), timeout=20)
            leaving, worker = worker, spawn(**settings)
            await workers_up(bus, place, 2)
            leaving.terminate()
            await eventually(lambda leaving=leaving: leaving.poll() is not None, timeout=20)
            assert leaving.returncode == 0
        gate.unlink()
        results = await asyncio.gather(*calls)
    assert runs_behind(gate) == sorted((result.meta.id, str(attempt)) for result in results for attempt in range(1, 6))
    assert [result.output for result in results] == [EXPECTED] * len(calls)
    assert [(result.meta.attempts, pid_of(result.meta.worker)) for result in results] == [(5, worker.pid)] * len(calls)


async def test_once_work_that_a_drain_cuts_off_is_answered_as_unknown(place: Place, spawn: Spawn) -> None:
    """It may not run again, so its caller hears at the end of the grace that nobody knows."""
    leaving = spawn(grace=0.2)
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        call = asyncio.create_task(bus.call("pay", {"seconds": 20.0}, timeout=30.0))
        client = redis.Redis.from_url(place.settings.url)
        await eventually(lambda: list(client.scan_iter(f"tb:{{{place.settings.namespace}}}:started:*")))
        client.close()
        spawn()
        leaving.terminate()
        result = await call
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("outcome_unknown", "worker_stopped")


async def test_a_rolling_restart_to_another_release_costs_callers_nothing_but_latency(place: Place, spawn: Spawn) -> None:
    """Under load every worker is replaced by one whose descriptors differ: each call is answered, by one attempt."""
    old = [spawn(), spawn()]
    async with bus_of(place) as bus:
        await workers_up(bus, place, 2)
        stop, results = asyncio.Event(), []

        async def load() -> None:
            while not stop.is_set():
                results.append(await bus.call("count", {"n": 3, "delay": 0.005}, timeout=30.0))

        callers = [asyncio.create_task(load()) for _ in range(20)]
        client = redis.Redis.from_url(place.settings.url)
        live = f"tb:{{{place.settings.namespace}}}:live"
        for process in old:
            answered = len(results)
            await eventually(lambda answered=answered: len(results) > answered + len(callers), timeout=15)
            before = client.zcard(live)
            spawn(version="2")
            await eventually(lambda before=before: client.zcard(live) > before, timeout=15)
            process.terminate()
            await eventually(lambda process=process: process.poll() is not None, timeout=15)
        answered = len(results)
        await eventually(lambda: len(results) > answered + len(callers), timeout=15)
        await eventually(lambda: "release 2" in bus.tools["count"].description)
        stop.set()
        await asyncio.gather(*callers)
        client.close()
    assert [process.returncode for process in old] == [0, 0]
    assert {(result.output, result.meta.attempts) for result in results} == {("0 1 2 ", 1)}
    called = {pid_of(result.meta.worker) for result in results}
    assert called & {process.pid for process in old}, "the old release was never called"
    assert called - {process.pid for process in old}, "the new release was never called"


@pytest.mark.usefixtures("slow")
async def test_poison_takes_its_neighbours_with_it_only_until_it_runs_alone(place: Place, spawn: Spawn) -> None:
    """Its last two attempts of four it dies alone: calls that ran beside it are answered by their third attempt at the latest."""
    processes = [spawn(max_deliveries=4) for _ in range(2)]
    async with bus_of(place) as bus:
        await workers_up(bus, place, 2)
        neighbours = [asyncio.create_task(bus.call("count", {"n": 100, "delay": 0.02}, timeout=60.0)) for _ in range(6)]
        poison = asyncio.create_task(bus.call("poison", timeout=60.0))
        while not poison.done():
            await asyncio.wait([poison], timeout=0.1)
            for number, process in enumerate(processes):
                if process.poll() is not None:
                    processes[number] = spawn(max_deliveries=4)
        results = await asyncio.gather(*neighbours)
    error = poison.result().error
    assert error is not None
    assert (error.type, error.code) == ("tool_error", "max_deliveries")
    assert all(result.success for result in results)
    assert max(result.meta.attempts for result in results) <= 3


@pytest.mark.usefixtures("slow")
async def test_what_waits_behind_a_request_that_kills_at_once_loses_nothing_by_it(place: Place, spawn: Spawn) -> None:
    """Taken over together with it, the others have not been tried, and begin before it the next time: at worst it meets them once more."""
    processes = [spawn(max_deliveries=5)]
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        poison = asyncio.create_task(bus.call("poison", timeout=60.0))
        behind = [asyncio.create_task(bus.call("count", {"n": 1}, timeout=60.0)) for _ in range(6)]
        while not all(task.done() for task in behind):
            await asyncio.wait(behind, timeout=0.05)
            if processes[-1].poll() is not None:
                processes.append(spawn(max_deliveries=5))
        poison.cancel()
    assert len(processes) >= 3, "it took two workers down before the others were done"
    assert max(task.result().meta.attempts for task in behind) <= 3


@pytest.mark.usefixtures("slow")
async def test_a_stuck_handler_keeps_no_suspect_waiting(place: Place, spawn: Spawn) -> None:
    """A worker with a thread that can't be stopped still runs what must run alone, and goes on taking."""
    spawn(max_deliveries=4)
    async with bus_of(place) as bus:
        await workers_up(bus, place, 1)
        stuck = await bus.call("stick", {"seconds": 60.0}, timeout=0.5)
        assert stuck.error is not None
        assert stuck.error.type == "deadline_exceeded"
        client = redis.Redis.from_url(place.settings.url)
        queue = f"tb:{{{place.settings.namespace}}}:q:faults"
        call = asyncio.create_task(bus.call("count", {"n": 100, "delay": 0.05}, timeout=30.0))
        [(entry, _)] = await eventually(lambda: client.xrange(queue))
        await eventually(lambda: client.xpending(queue, "g")["pending"] == 1)
        # As after two crashes: the next one to take it over runs it alone.
        client.xclaim(queue, "g", "dead", 0, [entry])
        client.xclaim(queue, "g", "dead", 0, [entry])
        client.hset(f"tb:{{{place.settings.namespace}}}:fence:faults", "c:" + (await worker_name(client, place)), "moved")
        assert (await call).success
        assert (await bus.call("count", {"n": 1}, timeout=10.0)).output == "0 "
        client.close()


async def worker_name(client: redis.Redis, place: Place) -> str:
    """The instance id of the one live worker."""
    [member] = client.zrange(f"tb:{{{place.settings.namespace}}}:live", 0, -1)
    return member.decode().partition("/")[2]
