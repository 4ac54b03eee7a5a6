"""The health of a process: HTTP probes, the metrics of its worker, or of its children together, and a file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import itertools
import operator
import os
import stat
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.statistics.answers import ToolStatistics
from toolbus.bus.support.files import replace
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.telemetry.metrics import MEDIA_TYPE, OTHER, Exposition
from toolbus.bus.telemetry.output import lines_lost
from toolbus.bus.worker.statistics import SECONDS

if TYPE_CHECKING:
    from toolbus.bus.values.settings import Settings
    from toolbus.bus.worker.process.supervisor import Supervisor
    from toolbus.bus.worker.worker import Worker

# -- reports ------------------------------------------------------------------------------------------

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessCounts(msgspec.Struct, frozen=True):
    """The worker processes of a command.

    Attributes:
        wanted: how many should run.
        least, most: between which the load decides how many.
        restarts: how often one was started again.
        added, dismissed: how many the load has added, and let go.
        use: processes in use, as the sum of their shares; 0 when the number is fixed.
    """

    wanted: int = 1
    least: int = 1
    most: int = 1
    restarts: int = 0
    added: int = 0
    dismissed: int = 0
    use: float = 0.0


class Report(msgspec.Struct):
    """The counts of one worker process, or of several together.

    Attributes:
        namespace: where it serves.
        healthy: whether any process takes requests.
        ready: how many do.
        leaving: how many take no more and finish what they run.
        reason: why one takes none.
        instances: their ids.
        version, python: of toolbus and Python.
        slots, running, waiting: as in ``InstanceAnswer``.
        sessions: open ones by service.
        tools: counts by service and tool, without the last errors.
        counts: those of the broker, by name.
        cpu: seconds of processor time.
        memory: resident bytes.
        processes: of the command that started them.
    """

    namespace: str = ""
    healthy: bool = False
    ready: int = 0
    leaving: int = 0
    reason: str = ""
    instances: list[str] = []
    version: str = ""
    python: str = ""
    slots: int = 0
    running: int = 0
    waiting: int = 0
    sessions: dict[str, int] = {}
    tools: list[ToolStatistics] = []
    counts: dict[str, int] = {}
    cpu: float = 0.0
    memory: int = 0
    processes: ProcessCounts = ProcessCounts()


async def report_of(worker: Worker) -> Report:
    """Return the report of a worker that was opened in this process."""
    answer = await worker.answer()
    return Report(
        namespace=worker.settings.namespace,
        healthy=worker.healthy,
        ready=int(worker.healthy),
        leaving=int(worker.leaving),
        reason=worker.unready,
        instances=[worker.instance],
        **{name: getattr(answer, name) for name in ("version", "python", "slots", "running", "waiting")},
        sessions={each.id: each.sessions for each in answer.services},
        # Anybody may read it, and an error may tell more than its type.
        tools=await asyncio.to_thread(lambda: [msgspec.structs.replace(each, last_error=None) for each in answer.tools]),
        counts={**worker.statistics(), "lines_lost": lines_lost()},
        cpu=time.process_time(),
        memory=_resident(),
    )


def summed(reports: Iterable[Report]) -> Report:
    """Return the sum of reports; the versions are those of the last one that tells them."""
    total, sessions, counts = Report(), Counter[str](), Counter[str]()
    tools: dict[tuple[str, str], ToolStatistics] = {}
    for each in reports:
        total.healthy |= each.healthy
        total.reason = total.reason or each.reason
        for name in ("ready", "leaving", "instances", "slots", "running", "waiting", "cpu", "memory"):
            setattr(total, name, getattr(total, name) + getattr(each, name))
        total.version, total.python = each.version or total.version, each.python or total.python
        sessions.update(each.sessions)
        counts.update(each.counts)
        for tool in each.tools:
            key = tool.service, tool.tool
            tools[key] = _combined(tools[key], tool, operator.add) if key in tools else tool
    total.sessions, total.counts, total.tools = dict(sessions), dict(counts), list(tools.values())
    return total


def _ended(report: Report) -> Report:
    """Return what remains of the report of a process that has ended: its counters, since a counter that falls looks like a new one."""
    tools = [msgspec.structs.replace(each, running=0) for each in report.tools]
    return Report(tools=tools, counts=report.counts, cpu=report.cpu)


def _combined(one: ToolStatistics, other: ToolStatistics, by: Callable[[Any, Any], Any]) -> ToolStatistics:
    """Return counts to which others were added, or from which they were taken, as ``by`` does with two numbers or two counters."""
    return msgspec.structs.replace(
        one,
        **{name: by(getattr(one, name), getattr(other, name)) for name in _NUMBERS},
        failed=dict(by(Counter(one.failed), Counter(other.failed))),
        refused=dict(by(Counter(one.refused), Counter(other.refused))),
        buckets=tuple(itertools.starmap(by, itertools.zip_longest(one.buckets, other.buckets, fillvalue=0))),
    )


_NUMBERS = ("started", "succeeded", "cancelled", "retaken", "running", "total_ms")


class Busiest:
    """Tells the tools that are used most apart from the others, which are counted as one.

    The counters of that one never fall, as a tool that rises among the first, or falls behind them, would have them do: it counts what each
    tool does while it is not among the first.

    Args:
        most: how many are told apart.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._before: dict[tuple[str, str], ToolStatistics] = {}
        self._others = ToolStatistics(OTHER, OTHER)

    def of(self, tools: Sequence[ToolStatistics]) -> list[ToolStatistics]:
        """Return the counts of the busiest tools, and of the others together."""
        counted = {(each.service, each.tool): each for each in tools}
        first = heapq.nlargest(self._most, counted, key=lambda name: counted[name].started + sum(counted[name].refused.values()))
        for name in counted.keys() - set(first):
            now, before = counted[name], self._before.get(name)
            if now != before:
                since = now if before is None else _combined(now, before, operator.sub)
                self._others = _combined(self._others, since, operator.add)
        self._before = counted
        return [*(counted[name] for name in first), *([self._others] if self._others.started or self._others.refused else ())]


def _resident() -> int:
    """Return the bytes of memory that this process has; 0 where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    return 0


# Counts of processes, and of the broker, by the metrics that show them.
_OF_PROCESSES = {
    "toolbus_worker_processes": "wanted",
    "toolbus_worker_processes_least": "least",
    "toolbus_worker_processes_most": "most",
    "toolbus_worker_processes_added_total": "added",
    "toolbus_worker_processes_dismissed_total": "dismissed",
    "toolbus_worker_processes_used": "use",
    "toolbus_worker_restarts_total": "restarts",
}
_COUNTS = {
    "toolbus_worker_recovered_total": "calls_recovered",
    "toolbus_worker_lost_total": "calls_lost",
    "toolbus_worker_malformed_total": "malformed",
    "toolbus_worker_frames_total": "frames_sent",
    "toolbus_worker_commands_total": "commands",
    "toolbus_worker_connects_total": "connects",
    "toolbus_log_lines_lost_total": "lines_lost",
}


def worker_metrics(report: Report) -> str:
    """Return the metrics of a worker, from the report of its processes together."""
    made, processes = Exposition(report.namespace), report.processes
    made.add("toolbus_up", int(report.healthy))
    made.add("toolbus_worker_info", 1, {"version": report.version, "python": report.python})
    for name, field in _OF_PROCESSES.items():
        made.add(name, round(getattr(processes, field), 3))
    for field in ("slots", "running", "waiting"):
        made.add(f"toolbus_worker_{field}", getattr(report, field))
    made.add("toolbus_worker_processes_ready", report.ready)
    made.add("toolbus_worker_processes_leaving", report.leaving)
    for service, sessions in sorted(report.sessions.items()):
        made.add("toolbus_worker_sessions", sessions, _of(service))
    for tool in sorted(report.tools, key=lambda each: (each.service, each.tool)):
        _add_tool(made, tool)
    for name, count in _COUNTS.items():
        made.add(name, report.counts.get(count, 0))
    made.add("process_cpu_seconds_total", round(report.cpu, 3))
    made.add("process_resident_memory_bytes", report.memory)
    return made.text()


def _add_tool(made: Exposition, tool: ToolStatistics) -> None:
    labels = _of(tool.service, tool.tool)
    made.add("toolbus_worker_attempts_total", tool.started, labels)
    made.add("toolbus_worker_cancelled_total", tool.cancelled, labels)
    for name, errors in (("toolbus_worker_failures_total", tool.failed), ("toolbus_worker_refused_total", tool.refused)):
        for kind, count in sorted(errors.items()):
            made.add(name, count, {**labels, "error_type": kind})
    made.add_histogram("toolbus_worker_duration_seconds", SECONDS, tool.buckets, tool.total_ms / 1000, labels)


def _of(service: str, tool: str = "") -> dict[str, str]:
    return {"messaging_destination_name": service, "gen_ai_tool_name": tool}


# -- probes -------------------------------------------------------------------------------------------

_REQUEST_LIMIT = 8192
_MOST_CLIENTS = 64
_PATIENCE = 5.0
_STATUS = {200: b"200 OK", 404: b"404 Not Found", 405: b"405 Method Not Allowed", 503: b"503 Service Unavailable"}


class Probed:
    """A process, as far as probes are concerned: one that serves nothing.

    Args:
        settings: how many tools have metrics of their own.

    Attributes:
        started: true once it has served.
    """

    started = False

    def __init__(self, settings: Settings) -> None:
        self._busiest = Busiest(settings.metric_tools)
        self._asked = asyncio.Lock()

    async def unready(self) -> str:
        """Return why it can't do its work now; empty when it can."""
        found = await self.report()
        return "" if found.healthy else found.reason or "no process serves: its log says what it waits for"

    async def report(self) -> Any:
        """Return its counts, as a value that can be written as JSON."""
        return Report()

    async def metrics(self) -> str:
        """Return its metrics in the text format of Prometheus."""
        async with self._asked:
            return await asyncio.to_thread(self._exposed, await self.report())

    def _exposed(self, report: Report) -> str:
        return worker_metrics(msgspec.structs.replace(report, tools=self._busiest.of(report.tools)))


class ProbedWorker(Probed):
    """Answers probes for a worker, which has no counts before it has served."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.settings)
        self._worker = worker

    async def report(self) -> Report:
        """Return its counts."""
        return await report_of(self._worker) if self.started else Report(namespace=self._worker.settings.namespace)


@contextlib.asynccontextmanager
async def probes(probed: Probed, host: str, port: int) -> AsyncIterator[int]:
    """Answer probes at an address, and yield the port; for port 0, a free one is chosen.

    ``/live`` answers as long as the event loop runs; ``/startup`` and ``/ready`` answer 503 until they hold. Of too many clients that
    send nothing, the first ones are dropped.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    # The tasks that answer, the oldest one first.
    clients: dict[asyncio.Task[None], None] = {}

    # No coroutine: the task in which a stream runs one logs a traceback when it is cancelled.
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def ended(answering: asyncio.Task[None]) -> None:
            clients.pop(answering, None)
            # One that does not read its answer would keep the descriptor.
            writer.transport.abort()

        if len(clients) >= _MOST_CLIENTS:
            oldest = next(iter(clients))
            del clients[oldest]
            oldest.cancel()
        answering = asyncio.create_task(_reply(probed, reader, writer))
        clients[answering] = None
        answering.add_done_callback(ended)

    server = await asyncio.start_server(accept, host, port, limit=_REQUEST_LIMIT)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await cancelled(*clients)
        await server.wait_closed()


async def _reply(probed: Probed, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_PATIENCE):
            request = await reader.readuntil(b"\r\n\r\n")
            method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            path = rest.partition(" ")[0].partition("?")[0]
            status, kind, body = await _answer(probed, method, path)
            head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (_STATUS[status], kind.encode(), len(body)) + (b"" if method == "HEAD" else body))
            await writer.drain()
            writer.close()
            await writer.wait_closed()


async def _answer(probed: Probed, method: str, path: str) -> tuple[int, str, bytes]:
    """Return the status, the media type and the body of an answer."""
    if method not in {"GET", "HEAD"}:
        return _json(405, {"error": "ask with GET"})
    match path:
        case "/live":
            return _json(200, {"live": True})
        case "/startup":
            return _json(200 if probed.started else 503, {"started": probed.started})
        case "/ready":
            reason = await probed.unready()
            return _json(503, {"ready": False, "reason": reason}) if reason else _json(200, {"ready": True})
        case "/metrics":
            return 200, MEDIA_TYPE, (await probed.metrics()).encode()
        case "/":
            return _json(503 if await probed.unready() else 200, await probed.report())
        case _:
            return _json(404, {"error": "there are /live, /startup, /ready, /metrics, and / with all counts"})


def _json(status: int, about: Any) -> tuple[int, str, bytes]:
    return status, "application/json", msgspec.json.encode(about)


# -- probes of several processes ----------------------------------------------------------------------

CHILD_HOST = "127.0.0.1"
"""The address at which children answer their supervisor."""

# Seconds for a child's answer: less than people give a scrape, which otherwise fails as a whole for one child that stands still.
_CHILD_PATIENCE = 1.0
_MOST_BYTES = 16_777_216
_reports = msgspec.json.Decoder(Report)


class ProbedChildren(Probed):
    """Answers probes for the children of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        super().__init__(supervisor.settings)
        self._supervisor = supervisor
        # By slot and number of the start: the last report of each process that lives.
        self._last: dict[tuple[int, int], Report] = {}
        # Of the processes that have ended, as they were asked last.
        self._past = Report()

    async def report(self) -> Report:
        """Return the sum of their counts; one that does not answer counts as it did before, and is not ready."""
        ports = self._ports()
        await asyncio.gather(*(self._ask(key, port) for key, port in ports.items()))
        ports = self._ports()
        for key in [*self._last]:
            if key not in ports:
                self._past = summed([self._past, _ended(self._last.pop(key))])
        # Thousands of tools take long, and this process follows the load of its children.
        total = await asyncio.to_thread(summed, [self._past, *self._last.values()])
        total.namespace, total.processes = self._supervisor.settings.namespace, self._counts()
        return total

    def _ports(self) -> dict[tuple[int, int], int]:
        """Return where each process that serves answers."""
        children = self._supervisor.children.values()
        return {(child.slot, child.starts): child.state.probes for child in children if child.state.probes}

    def _counts(self) -> ProcessCounts:
        supervisor, wanted = self._supervisor, self._supervisor.wanted
        least, most = supervisor.processes
        return ProcessCounts(
            wanted=len(wanted),
            least=least,
            most=most,
            restarts=supervisor.restarts,
            added=max(0, supervisor.added - least),
            dismissed=supervisor.dismissed,
            use=sum(child.load.use for child in wanted),
        )

    async def _ask(self, key: tuple[int, int], port: int) -> None:
        try:
            async with asyncio.timeout(_CHILD_PATIENCE):
                found = await _report(port)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            # TimeoutError is an OSError.
            found = self._last.get(key, Report())
            found.healthy, found.ready, found.reason = False, 0, "a process does not answer"
        # The counts of one that has ended meanwhile may be among the past ones.
        if key in self._ports():
            self._last[key] = found


async def _report(port: int) -> Report:
    """Ask a child.

    Raises:
        OSError: it can't be asked.
        ValueError: it answers something else.
        asyncio.IncompleteReadError: it ended meanwhile.
    """
    reader, writer = await asyncio.open_connection(CHILD_HOST, port, limit=_MOST_BYTES)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return _reports.decode(await reader.readexactly(int(length)))
    finally:
        writer.transport.abort()


# -- the health file ----------------------------------------------------------------------------------

_EVERY = 2.0


async def keep_file(worker: Worker, path: Path) -> None:
    """Write the report to a file every two seconds while the worker is healthy; remove it when it is not, and at the end.

    Raises:
        OSError: it can't be written at the start, or something else than a file is there; later failures are logged, and it is tried
            again.
    """
    _write(path, _content(worker))
    failed = False
    try:
        while True:
            await asyncio.sleep(_EVERY)
            try:
                _write(path, _content(worker))
            except OSError as error:
                if not failed:
                    telemetry.log.warning("health.file_failed", file=str(path), error=error.strerror or str(error))
                failed = True
            else:
                failed = False
    finally:
        with contextlib.suppress(OSError):
            _write(path, None)


def _content(worker: Worker) -> bytes | None:
    if not worker.healthy:
        return None
    return msgspec.json.encode({"healthy": True, "instance": worker.instance, "time": time.time(), **worker.statistics()})


def _write(path: Path, content: bytes | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        # A link is replaced, and not what it leads to; a device, a pipe or a socket is somebody else's.
        if stat.S_IFMT(path.lstat().st_mode) not in {stat.S_IFREG, stat.S_IFLNK}:
            raise OSError(errno.EEXIST, "it exists and is no regular file", str(path))
    if content is None:
        path.unlink(missing_ok=True)
    else:
        # A probe never reads half of it.
        replace(path, content, lasting=False)
