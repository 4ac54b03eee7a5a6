"""Probes of a process over HTTP: what each path answers, and what several processes answer together."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest

from tests.servers import eventually, plain_metrics
from toolbus import ToolBus, Worker, tool
from toolbus.bus.broker.statistics.answers import ToolStatistics
from toolbus.bus.telemetry.metrics import EXPOSED, OTHER, Exposition
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.health import Busiest, Probed, ProbedChildren, ProcessCounts, Report, probes, report_of, worker_metrics
from toolbus.bus.worker.process.lifeline import Bounds, ChildState
from toolbus.bus.worker.process.supervisor import Child, Supervisor

pytestmark = pytest.mark.anyio


class Process(Probed):
    """A process that says what it is told to."""

    def __init__(self, *, started: bool = True, ready: bool = True, calls: int = 0) -> None:
        self.started = started
        self.calls = calls
        self._ready = ready

    async def unready(self) -> str:
        """Return why it takes no requests."""
        return "" if self._ready else "its lease has ended"

    async def report(self) -> Report:
        """Return a few counts."""
        tool = ToolStatistics("s", "t", started=self.calls, failed={"tool_error": 1}, running=1, total_ms=5.0, buckets=(0, self.calls))
        return Report(healthy=self._ready, ready=int(self._ready), slots=10, running=1, tools=[tool], counts={"commands": 7}, memory=100)

    async def metrics(self) -> str:
        """Return its metrics."""
        return worker_metrics(await self.report())


def served(supervisor: Supervisor, slot: int, port: int) -> None:
    """Have a process of a slot serve, whose probes are at a port."""
    child = supervisor.children.setdefault(slot, Child(slot))
    child.starts += 1
    child.state = ChildState(serving=True, probes=port)
    supervisor.served = True


def supervisor_of(processes: int) -> Supervisor:
    """Return a supervisor that starts nothing."""
    return Supervisor([], {}, Settings.load({}), complain=pytest.fail, processes=Bounds(processes, processes))


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the body of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return int(head.split()[1]), body
    finally:
        writer.transport.abort()


def values_of(text: str) -> dict[str, float]:
    """Return the samples of an exposition."""
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


@pytest.mark.parametrize(
    ("started", "ready", "statuses"),
    [
        (False, False, {"/live": 200, "/startup": 503, "/ready": 503, "/": 503}),
        (True, False, {"/live": 200, "/startup": 200, "/ready": 503, "/": 503}),
        (True, True, {"/live": 200, "/startup": 200, "/ready": 200, "/": 200, "/ready?verbose": 200, "/metrics": 200, "/healthz": 404}),
    ],
)
async def test_each_path_answers_its_question(started: bool, ready: bool, statuses: dict[str, int]) -> None:
    """A process that starts or drains lives and is not ready; a path that there is not names those that there are."""
    async with probes(Process(started=started, ready=ready), "127.0.0.1", 0) as port:
        found = {path: await ask(port, path) for path in statuses}
        assert {path: status for path, (status, _) in found.items()} == statuses
        assert all("/startup" in body for status, body in found.values() if status == 404)
        told = {"ready": True} if ready else {"ready": False, "reason": "its lease has ended"}
        assert json.loads(found["/ready"][1]) == told


async def test_probes_only_read() -> None:
    """HEAD answers the head alone, and other methods are refused."""
    async with probes(Process(), "127.0.0.1", 0) as port:
        assert await ask(port, "/metrics", "HEAD") == (200, "")
        assert (await ask(port, "/live", "POST"))[0] == 405


@pytest.mark.parametrize("path", ["/", "/ready", "/metrics"])
def test_an_answer_that_is_being_made_ends_with_its_process(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its client is hung up on, and nobody reads a traceback of it."""
    asked = asyncio.Event()

    class Held(Process):
        async def unready(self) -> str:
            return (await self.report()).reason

        async def report(self) -> Report:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def live() -> bytes:
        async with probes(Held(), "127.0.0.1", 0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            await asked.wait()
        try:
            return await reader.read()
        finally:
            writer.close()

    assert asyncio.run(live()) == b""
    assert caplog.messages == []


async def test_silent_clients_do_not_use_up_descriptors() -> None:
    """However many connect and say nothing, a probe is answered; the first of them are dropped."""
    async with probes(Process(), "127.0.0.1", 0) as port:
        clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return None

        for _ in range(300):
            client = await eventually(connect)
            assert client is not None
            clients.append(client)
        assert (await ask(port, "/live"))[0] == 200
        dropped = clients[:200]
        await eventually(lambda: all(each.at_eof() or each.exception() is not None for each, _ in dropped), timeout=30)
        for _, each in clients:
            each.transport.abort()


def test_every_metric_of_a_worker_is_in_the_table() -> None:
    """Its kind and description stand before its samples, histograms are cumulative, and labels are escaped."""
    tool = ToolStatistics('a"b\\', "t", started=3, failed={"tool_error": 1}, refused={"not_found": 2}, total_ms=4.0, buckets=(1, 2))
    processes = ProcessCounts(wanted=2, least=1, most=4, restarts=1, added=1)
    report = Report(healthy=True, ready=1, version="1", python="3", sessions={"s": 2}, tools=[tool], processes=processes)
    text = worker_metrics(report)
    told = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert told == {name for name in EXPOSED if name.startswith(("toolbus_up", "toolbus_worker_", "process_", "toolbus_log_"))}
    values = values_of(text)
    labels = 'messaging_destination_name="a\\"b\\\\",gen_ai_tool_name="t"'
    name = "toolbus_worker_duration_seconds"
    assert [values[f'{name}_bucket{{{labels},le="{bound}"}}'] for bound in ("0.0001", "0.00025", "0.0005", "+Inf")] == [1, 3, 3, 3]
    assert (values[f"{name}_sum{{{labels}}}"], values[f"{name}_count{{{labels}}}"]) == (0.004, 3)
    assert values[f'toolbus_worker_refused_total{{{labels},error_type="not_found"}}'] == 2
    with pytest.raises(KeyError):
        Exposition().add("toolbus_unknown", 1)


async def test_several_processes_are_told_as_one_and_counters_never_fall() -> None:
    """Counts are sums; those of a process that has ended stay, and what it had running does not."""
    children = ProbedChildren(supervisor := supervisor_of(2))
    assert (children.started, await children.unready()) == (False, "no process serves: its log says what it waits for")
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(probes(Process(calls=calls), "127.0.0.1", 0)) for calls in (3, 4)]
        for slot, port in enumerate(ports):
            served(supervisor, slot, port)
        name, labels = "toolbus_worker_attempts_total", '{messaging_destination_name="s",gen_ai_tool_name="t"}'
        both = values_of(plain_metrics(await children.metrics()))
        assert (both[name + labels], both["toolbus_worker_processes_ready"], both["toolbus_worker_running"]) == (7, 2, 2)
        supervisor.children[0].end(0.0)
        supervisor.restarts += 1
        one = values_of(plain_metrics(await children.metrics()))
        assert (one[name + labels], one["toolbus_worker_processes_ready"], one["toolbus_worker_running"]) == (7, 1, 1)
        assert (one["toolbus_worker_restarts_total"], one["toolbus_worker_processes"]) == (1, 2)
        assert await children.unready() == ""
        served(supervisor, 0, ports[0])
        assert values_of(plain_metrics(await children.metrics()))[name + labels] == 10


async def test_a_worker_that_drains_says_that_it_leaves(server: str, namespace: str) -> None:
    """While it finishes what it runs it is not up, and its metric tells it from one that is cut off."""
    began, end = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        began.set()
        await end.wait()
        return "done"

    settings = Settings.load({}, url=server, namespace=namespace)
    async with Worker([hold], settings=settings) as worker, ToolBus(settings=settings) as bus:
        calling = asyncio.create_task(bus.call("hold", {}, timeout=30.0))
        await began.wait()
        assert (await report_of(worker)).leaving == 0
        draining = asyncio.create_task(worker.drain())
        await eventually(lambda: not worker.healthy)
        values = values_of(plain_metrics(worker_metrics(await report_of(worker))))
        assert (values["toolbus_up"], values["toolbus_worker_processes_leaving"], values["toolbus_worker_running"]) == (0, 1, 1)
        end.set()
        assert (await calling).output == "done"
        await draining


def counts(tool: str, calls: int, failures: int = 0) -> ToolStatistics:
    """Return the counts of a tool whose calls took a millisecond."""
    failed = {"tool_error": failures} if failures else {}
    return ToolStatistics("s", tool, started=calls, failed=failed, total_ms=float(calls), buckets=(0, calls))


def test_the_busiest_tools_have_metrics_of_their_own() -> None:
    """The others are counted as one, whose counters neither fall nor jump when a tool rises among the first or falls behind."""
    busiest = Busiest(2)

    def told(*tools: ToolStatistics) -> dict[str, tuple[int, int, float, int]]:
        found = busiest.of(tools)
        return {each.tool: (each.started, each.failed.get("tool_error", 0), each.total_ms, sum(each.buckets)) for each in found}

    assert told(counts("a", 9), counts("b", 8)) == {"a": (9, 0, 9.0, 9), "b": (8, 0, 8.0, 8)}
    assert told(counts("a", 9), counts("b", 8), counts("c", 3, 1)) == {"a": (9, 0, 9.0, 9), "b": (8, 0, 8.0, 8), OTHER: (3, 1, 3.0, 3)}
    risen = told(counts("a", 9), counts("b", 10), counts("c", 20, 1))
    assert risen == {"b": (10, 0, 10.0, 10), "c": (20, 1, 20.0, 20), OTHER: (3, 1, 3.0, 3)}
    assert told(counts("a", 10, 1), counts("b", 11), counts("c", 21, 1))[OTHER] == (4, 2, 4.0, 4)
    assert told(counts("a", 40, 1), counts("b", 11), counts("c", 21, 1))[OTHER] == (4, 2, 4.0, 4)
    assert told(counts("a", 40, 1), counts("b", 12), counts("c", 21, 1))[OTHER] == (5, 2, 5.0, 5)


async def test_the_metrics_of_thousands_of_tools_are_bounded() -> None:
    """A setting says how many tools have their own; the sums over all of them stay true."""

    class Many(Probed):
        async def report(self) -> Report:
            return Report(healthy=True, tools=[counts(f"tool{number:04}", number + 1) for number in range(5_000)])

    async with probes(Many(Settings.load({}, metric_tools=50)), "127.0.0.1", 0) as port:
        _, text = await ask(port, "/metrics")
    values = values_of(text)
    attempts = {name: value for name, value in values.items() if name.startswith("toolbus_worker_attempts_total")}
    assert len(attempts) == 51
    assert sum(attempts.values()) == sum(range(5_001))
    assert f'toolbus_worker_attempts_total{{messaging_destination_name="{OTHER}",gen_ai_tool_name="{OTHER}"}}' in attempts
    assert 'toolbus_worker_attempts_total{messaging_destination_name="s",gen_ai_tool_name="tool4999"}' in attempts
    assert len(text) < 200_000


async def test_a_process_that_does_not_answer_is_not_ready() -> None:
    """Its counts stay what they were."""
    children = ProbedChildren(supervisor := supervisor_of(1))
    async with probes(Process(calls=3), "127.0.0.1", 0) as port:
        served(supervisor, 0, port)
        assert await children.unready() == ""
    found: Any = msgspec.to_builtins(await children.report())
    assert (found["healthy"], found["ready"], found["tools"][0]["started"]) == (False, 0, 3)
