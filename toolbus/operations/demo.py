"""``toolbus demo``: start a server and workers, be their agent, kill one worker, and check the results."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toolbus import Settings, ToolBus, ToolResult
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.client.bus import BusView
from toolbus.bus.values.events import Finished, Reset, Started, Text
from toolbus.bus.values.results import ToolbusError

UNARY_CALLS = 600
STREAMS = 12
_WORKERS = 3
_LEASE = 1.0
_LIMIT = 60.0
_LENGTH = 12_000
_KILL_AT = 0.3
_PLUGGED = "plugged_in"

_PLUGIN = f'''"""A tool that was not there when the agent started."""

import time

from toolbus import tool


@tool(effect="read")
def {_PLUGGED}(name: str) -> str:
    """Greet an agent.

    Args:
        name: whom to greet
    """
    return f"hello {{name}}, I was not here when you started"
'''


_SHOWN: Mapping[str, str] = {
    "discovered": "discovered  {count} tools in {seconds} s",
    "unary": "unary       {right} of {calls} sums right in {seconds} s\n            {joke}",
    "streams": "streams     {whole} of {streams} came back whole, {pieces} pieces in {seconds} s",
    "kill": "kill -9     worker {pid}, after {characters} characters of a stream",
    "survived": f"survived    the stream ended on attempt {{attempts}}; longest silence {{gap}} s (lease {_LEASE:g} s)",
    "ready_for_plug": "hot plug    a new service starts (pid {pid})",
    "plugged": '            the running agent called it: "{output}"',
    "unplugged": "            it stopped, and the agent saw it go",
}
"""The lines that are printed for what the agent sees."""


class Check(NamedTuple):
    """One promise of the demo, whether it held, and the evidence."""

    name: str
    held: bool
    evidence: str


class Demo:
    """One run of the demo; ``report`` prints progress."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._document = read_document()
        self._seen: dict[str, dict[str, Any]] = {}
        self._children: list[asyncio.subprocess.Process] = []
        self._environment: dict[str, str] = {}
        self._killed: int | None = None
        self._results: list[ToolResult] = []

    @property
    def summary(self) -> dict[str, Any]:
        """The agent's counts, with the recovery and hot-plug times."""
        survived, plugged, unplugged = (self._seen.get(name, {}) for name in ("survived", "plugged", "unplugged"))
        return {
            **self._seen.get("summary", {}),
            "workers": _WORKERS + 1,
            "killed": int(self._killed is not None),
            "recovery_s": survived.get("gap"),
            "plug_s": plugged.get("seconds"),
            "unplug_s": unplugged.get("seconds"),
        }

    async def run(self) -> list[Check]:
        """Run everything and return the checks.

        Raises:
            ToolbusError: a part could not be started, or the demo took longer than a minute.
        """
        try:
            async with asyncio.timeout(_LIMIT):
                await self._play()
        except TimeoutError as error:
            late = str(error) or f"the demo did not end within {_LIMIT:g} s"
            raise ToolbusError(f"{late}; seen so far: {', '.join(self._seen) or 'nothing'}") from None
        return evaluate(self._seen, self._killed)

    async def _play(self) -> None:
        with EmbeddedServer() as server:
            self._report(f"server      {server.url} (pid {server.pid})")
            self._environment = {**os.environ, "TOOLBUS_URL": server.url, "TOOLBUS_LEASE": str(_LEASE), "TOOLBUS_LOG_LEVEL": "error"}
            try:
                for _ in range(_WORKERS):
                    worker = await self._start("--examples")
                    self._report(f"worker      pid {worker.pid}")
                self._report(f"agent       pid {os.getpid()}")
                async with ToolBus(settings=Settings.load(self._environment)) as bus:
                    await self._act(bus)
            finally:
                # While the server still runs, so that the workers can sign off.
                await self._stop_children()

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a worker."""
        command = (sys.executable, "-m", "toolbus", "worker", *arguments)
        child = await asyncio.create_subprocess_exec(*command, env=self._environment, start_new_session=True)
        self._children.append(child)
        return child

    async def _stop_children(self) -> None:
        running = [child for child in self._children if child.returncode is None]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
        for child in running:
            try:
                async with asyncio.timeout(5):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()
        self._children.clear()

    def _saw(self, event: str, **fields: Any) -> None:
        """Keep what the agent saw, and print it."""
        self._seen[event] = fields
        if text := _SHOWN.get(event):
            for line in text.format(**fields).split("\n"):
                self._report(line)

    # -- the agent -------------------------------------------------------------------------------------

    async def _act(self, bus: ToolBus) -> None:
        """Run every part, then count the calls."""
        caller = bus.bind(user="demo")
        await self._discover(bus)
        latencies = await self._unary(caller)
        await self._streams(caller)
        await self._survive(caller)
        await self._meet(bus, caller)
        self._saw(
            "summary",
            calls=len(self._results),
            failed=sum(not each.success for each in self._results),
            recovered=sum(each.meta.attempts > 1 for each in self._results),
            p50_ms=latencies[len(latencies) // 2],
            p99_ms=latencies[int(len(latencies) * 0.99)],
            **{name: value for name, value in bus.statistics().items() if name in {"frames", "malformed", "commands", "connects"}},
        )

    async def _discover(self, bus: ToolBus) -> None:
        """Wait for the example tools."""
        started = time.monotonic()
        for name in ("calculator", "tell-pun", "text_stream", "text_stats", "json_query"):
            await bus.wait_for_tool(name, timeout=15)
        tools = list(bus.tools)
        self._saw("discovered", tools=tools, count=len(tools), seconds=round(time.monotonic() - started, 3))

    async def _unary(self, caller: BusView) -> list[float]:
        """Make many calls at once, each with a known answer; return their milliseconds, sorted."""
        chance = random.Random(7)  # noqa: S311 - the same sums in every demo
        sums = [(chance.randrange(10**6), chance.randrange(10**6)) for _ in range(UNARY_CALLS)]
        started = time.monotonic()
        results = await asyncio.gather(*(caller.call("calculator", {"expression": f"{left} * {right}"}) for left, right in sums))
        seconds = time.monotonic() - started
        right = sum(each.success and each.data == {"result": left * right} for each, (left, right) in zip(results, sums, strict=True))
        joke = await caller.call("tell-pun", {"topic": "queues"})
        self._results += [*results, joke]
        told = joke.observation.replace("\n\n", " ").replace("\n", " ")
        self._saw("unary", calls=len(results), right=right, seconds=round(seconds, 3), joke=told)
        return sorted(each.meta.ms for each in results)

    async def _streams(self, caller: BusView) -> None:
        """Stream the document many times at once; each stream must return it unchanged."""

        async def one() -> list[str]:
            async with caller.stream("text_stream", {"text": self._document, "part": 200}) as call:
                text = [piece async for piece in call]
                self._results.append(await call.result())
            return text

        started = time.monotonic()
        texts = await asyncio.gather(*(one() for _ in range(STREAMS)))
        self._saw(
            "streams",
            streams=len(texts),
            whole=sum("".join(text) == self._document for text in texts),
            pieces=sum(map(len, texts)),
            seconds=round(time.monotonic() - started, 3),
        )

    async def _survive(self, caller: BusView) -> None:
        """Read a slow stream whose worker is killed in the middle; the text must still be the document."""
        text: list[str] = []
        length = resets = 0
        gap, last = 0.0, time.monotonic()
        worker = ""
        arguments = {"text": self._document, "part": 200, "delay_ms": 20}
        async with caller.stream("text_stream", arguments, timeout=30.0) as call:
            async for event in call.events():
                now = time.monotonic()
                gap, last = max(gap, now - last), now
                if isinstance(event, Started):
                    worker = event.worker
                elif isinstance(event, Reset):
                    resets += 1
                    text.clear()
                elif isinstance(event, Text):
                    text.append(event.text)
                    length += len(event.text)
                    if self._killed is None and length > _KILL_AT * len(self._document):
                        # An instance id reads host-pid-random.
                        self._killed = int(worker.rsplit("-", 2)[1])
                        os.kill(self._killed, signal.SIGKILL)
                        self._saw("kill", pid=self._killed, characters=length)
                elif isinstance(event, Finished):
                    self._results.append(event.result)
                    self._saw(
                        "survived",
                        whole="".join(text) == self._document,
                        attempts=event.result.meta.attempts,
                        first=worker,
                        last=event.result.meta.worker,
                        resets=resets,
                        gap=round(gap, 3),
                        error=None if event.result.error is None else str(event.result.error),
                    )

    async def _meet(self, bus: ToolBus, caller: BusView) -> None:
        """Call a tool that appears while this process runs, and wait until it is gone again."""
        with tempfile.TemporaryDirectory(prefix="toolbus-demo-") as folder:
            file = Path(folder, f"{_PLUGGED}_tools.py")
            await asyncio.to_thread(file.write_text, _PLUGIN, "utf-8")
            since = time.monotonic()
            plugin = await self._start(str(file))
            self._saw("ready_for_plug", pid=plugin.pid)
            async for change in bus.tools.changes():
                if change.name != _PLUGGED:
                    continue
                seconds = round(time.monotonic() - since, 3)
                if change.kind == "removed":
                    self._saw("unplugged", seconds=seconds)
                    return
                result = await caller.call(_PLUGGED, {"name": "agent"})
                self._results.append(result)
                self._saw("plugged", seconds=seconds, output=result.output, ok=result.success)
                since = time.monotonic()
                plugin.terminate()


def evaluate(seen: dict[str, dict[str, Any]], killed: int | None) -> list[Check]:
    """Return the checks, made from the events of the agent."""
    unary, streams, survived = seen.get("unary", {}), seen.get("streams", {}), seen.get("survived", {})
    tools = seen.get("discovered", {}).get("tools", ())
    plugged, unplugged, summary = seen.get("plugged", {}), "unplugged" in seen, seen.get("summary", {})
    return [
        Check("the agent discovered the tools by itself", len(tools) >= 5, f"{len(tools)} tools"),
        Check("every concurrent call was answered rightly", unary.get("right") == UNARY_CALLS, f"{unary.get('right')} of {UNARY_CALLS}"),
        Check("every stream came back whole", streams.get("whole") == STREAMS, f"{streams.get('whole')} of {STREAMS}"),
        Check("a worker was killed in the middle of a stream", killed is not None, f"pid {killed}"),
        Check(
            "the stream went on elsewhere, whole and in order",
            bool(survived.get("whole")) and survived.get("resets") == 0 and survived.get("error") is None,
            f"whole: {survived.get('whole')}, resets: {survived.get('resets')}, error: {survived.get('error')}",
        ),
        Check(
            "another worker finished it on a later attempt",
            survived.get("attempts", 0) > 1 and survived.get("first") != survived.get("last"),
            f"attempt {survived.get('attempts')} on {survived.get('last')}",
        ),
        Check("a service plugged in was called by the running agent", bool(plugged.get("ok")), str(plugged.get("output"))),
        Check("it was gone from the agent when it stopped", unplugged, "seen to go" if unplugged else "never seen to go"),
        Check(
            "no call failed, no frame was malformed",
            summary.get("failed") == 0 and summary.get("malformed") == 0 and summary.get("calls", 0) > UNARY_CALLS,
            f"{summary.get('calls')} calls, {summary.get('failed')} failed, {summary.get('malformed')} malformed frames",
        ),
    ]


def read_document() -> str:
    """Return a real document: this project's README, from the checkout or from the installed distribution."""
    checkout = Path(__file__).resolve().parents[2] / "README.md"
    text = checkout.read_text("utf-8") if checkout.is_file() else _long_description()
    # A short one is repeated: the stream must last long enough to be killed in the middle.
    return (text * (_LENGTH // max(1, len(text)) + 1))[:_LENGTH]


def _long_description() -> str:
    payload = importlib.metadata.metadata("toolbus").get_payload()  # type: ignore[attr-defined] # importlib.metadata types it as an email message
    return str(payload)
