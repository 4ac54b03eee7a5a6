"""Probes of a process over HTTP: what each path answers, and what several processes answer together."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest

from tests.servers import eventually, plain_metrics
from toolbus.bus.broker.statistics.answers import ToolStatistics
from toolbus.bus.telemetry.metrics import EXPOSED, Exposition
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.health import Probed, ProbedChildren, ProcessCounts, Report, probes, worker_metrics
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


async def test_a_process_that_does_not_answer_is_not_ready() -> None:
    """Its counts stay what they were."""
    children = ProbedChildren(supervisor := supervisor_of(1))
    async with probes(Process(calls=3), "127.0.0.1", 0) as port:
        served(supervisor, 0, port)
        assert await children.unready() == ""
    found: Any = msgspec.to_builtins(await children.report())
    assert (found["healthy"], found["ready"], found["tools"][0]["started"]) == (False, 0, 3)
