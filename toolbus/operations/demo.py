"""``toolbus demo``: start a server, workers and an agent, kill one worker, and check the results.

The agent is a process of its own, ``python -m toolbus.operations.demo DOCUMENT``, which reports events as JSON lines on standard output.
"""

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
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolbus import Settings, ToolBus, ToolResult
from toolbus.bus.broker.transport.embedded import EmbeddedServer
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
"""The lines that are printed for the agent's events."""


class Check(NamedTuple):
    """One promise of the demo, whether it held, and the evidence."""

    name: str
    held: bool
    evidence: str


class Demo:
    """One run of the demo; ``report`` prints progress."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._seen: dict[str, dict[str, Any]] = {}
        self._children: list[asyncio.subprocess.Process] = []
        self._killed: int | None = None
        self._plug_started = 0.0
        self._plug_stopped = 0.0
        self._plugin: asyncio.subprocess.Process | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The agent's counts, with the recovery and hot-plug times."""
        survived, plugged, unplugged = (self._seen.get(name, {}) for name in ("survived", "plugged", "unplugged"))
        return {
            **{key: value for key, value in self._seen.get("summary", {}).items() if key != "event"},
            "workers": _WORKERS + 1,
            "killed": int(self._killed is not None),
            "recovery_s": survived.get("gap"),
            "plug_s": round(plugged["at"] - self._plug_started, 3) if "at" in plugged else None,
            "unplug_s": round(unplugged["at"] - self._plug_stopped, 3) if "at" in unplugged else None,
        }

    async def run(self) -> list[Check]:
        """Run everything and return the checks.

        Raises:
            ToolbusError: a part could not be started, or the demo took longer than a minute.
        """
        with tempfile.TemporaryDirectory(prefix="toolbus-demo-") as folder:
            try:
                async with asyncio.timeout(_LIMIT):
                    await self._play(Path(folder))
            except TimeoutError:
                raise ToolbusError(f"the demo did not end within {_LIMIT:g} s; seen so far: {', '.join(self._seen) or 'nothing'}") from None
        return evaluate(self._seen, self._killed)

    async def _play(self, folder: Path) -> None:
        document = folder / "document.md"
        document.write_text(read_document(), "utf-8")
        plugin = folder / f"{_PLUGGED}_tools.py"
        plugin.write_text(_PLUGIN, "utf-8")
        with EmbeddedServer() as server:
            self._report(f"server      {server.url} (pid {server.pid})")
            environment = {**os.environ, "TOOLBUS_URL": server.url, "TOOLBUS_LEASE": str(_LEASE), "TOOLBUS_LOG_LEVEL": "error"}
            try:
                await self._play_on(environment, document, plugin)
            finally:
                # While the server still runs, so that the workers can sign off.
                await self._stop_children()

    async def _play_on(self, environment: dict[str, str], document: Path, plugin: Path) -> None:
        for _ in range(_WORKERS):
            worker = await self._start(environment, "-m", "toolbus", "worker", "--examples")
            self._report(f"worker      pid {worker.pid}")
        agent = await self._start(environment, "-m", "toolbus.operations.demo", str(document), output=True)
        self._report(f"agent       pid {agent.pid}")
        async for line in _lines(agent):
            self._seen[line["event"]] = line
            await self._answer(line, environment, plugin)
        if await agent.wait() != 0:
            raise ToolbusError(f"the agent ended with exit code {agent.returncode}; seen so far: {', '.join(self._seen) or 'nothing'}")

    async def _answer(self, event: dict[str, Any], environment: dict[str, str], plugin: Path) -> None:
        """Print what the agent did, and do to its workers what comes next."""
        match event["event"]:
            case "kill":
                # An instance id reads host-pid-random.
                self._killed = event["pid"] = int(event["worker"].rsplit("-", 2)[1])
                os.kill(self._killed, signal.SIGKILL)
            case "ready_for_plug":
                self._plug_started = time.time()
                self._plugin = await self._start(environment, "-m", "toolbus", "worker", str(plugin))
                event["pid"] = self._plugin.pid
            case "plugged" if self._plugin is not None:
                self._plug_stopped = time.time()
                self._plugin.terminate()
        if text := _SHOWN.get(event["event"]):
            for line in text.format(**event).split("\n"):
                self._report(line)

    async def _start(self, environment: dict[str, str], *command: str, output: bool = False) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            env=environment,
            stdout=asyncio.subprocess.PIPE if output else None,
            start_new_session=True,
            limit=1_000_000,
        )
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


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    if process.stdout is None:
        return
    async for line in process.stdout:
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line, type=dict[str, Any])


# -- the agent -----------------------------------------------------------------------------------------


def _report(event: str, **fields: Any) -> None:
    """Print one event for the conductor."""
    sys.stdout.write(msgspec.json.encode({"event": event, **fields}).decode() + "\n")
    sys.stdout.flush()


class _Agent:
    """Calls tools and counts the results."""

    def __init__(self, bus: ToolBus, document: str) -> None:
        self._bus = bus.bind(user="demo")
        self._tools = bus
        self._document = document
        self.calls = self.failed = self.recovered = 0
        self.latencies: list[float] = []

    def count(self, result: ToolResult) -> None:
        """Add a finished call to the summary."""
        self.calls += 1
        self.failed += not result.success
        self.recovered += result.meta.attempts > 1

    async def discover(self) -> None:
        """Wait for the example tools."""
        started = time.monotonic()
        for name in ("calculator", "tell-pun", "text_stream", "text_stats", "json_query"):
            await self._tools.wait_for_tool(name, timeout=15)
        tools = list(self._tools.tools)
        _report("discovered", tools=tools, count=len(tools), seconds=round(time.monotonic() - started, 3))

    async def unary(self) -> None:
        """Make many calls at once, each with a known answer."""
        chance = random.Random(7)  # noqa: S311 - the same sums in every demo
        sums = [(chance.randrange(10**6), chance.randrange(10**6)) for _ in range(UNARY_CALLS)]

        async def one(left: int, right: int) -> bool:
            result = await self._bus.call("calculator", {"expression": f"{left} * {right}"})
            self.count(result)
            self.latencies.append(result.meta.ms)
            return bool(result.success and result.data == {"result": left * right})

        started = time.monotonic()
        right = await asyncio.gather(*(one(*pair) for pair in sums))
        seconds = time.monotonic() - started
        joke = await self._bus.call("tell-pun", {"topic": "queues"})
        self.count(joke)
        told = joke.observation.replace("\n\n", " ").replace("\n", " ")
        _report("unary", calls=len(right), right=sum(right), seconds=round(seconds, 3), joke=told)

    async def streams(self) -> None:
        """Stream the document many times at once; each stream must return it unchanged."""

        async def one() -> tuple[bool, int]:
            pieces = 0
            text = []
            async with self._bus.stream("text_stream", {"text": self._document, "part": 200}) as call:
                async for piece in call:
                    pieces += 1
                    text.append(piece)
                self.count(await call.result())
            return "".join(text) == self._document, pieces

        started = time.monotonic()
        seen = await asyncio.gather(*(one() for _ in range(STREAMS)))
        _report(
            "streams",
            streams=len(seen),
            whole=sum(whole for whole, _ in seen),
            pieces=sum(pieces for _, pieces in seen),
            seconds=round(time.monotonic() - started, 3),
        )

    async def survive(self) -> None:
        """Read a slow stream whose worker is killed in the middle; the text must still be the document."""
        part, delay = 200, 20
        text: list[str] = []
        length = resets = 0
        gap, last = 0.0, time.monotonic()
        worker, killed = "", False
        arguments = {"text": self._document, "part": part, "delay_ms": delay}
        async with self._bus.stream("text_stream", arguments, timeout=30.0) as call:
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
                    if not killed and length > _KILL_AT * len(self._document):
                        killed = True
                        _report("kill", worker=worker, characters=length)
                elif isinstance(event, Finished):
                    self.count(event.result)
                    _report(
                        "survived",
                        whole="".join(text) == self._document,
                        attempts=event.result.meta.attempts,
                        first=worker,
                        last=event.result.meta.worker,
                        resets=resets,
                        gap=round(gap, 3),
                        error=None if event.result.error is None else str(event.result.error),
                    )

    async def meet(self) -> None:
        """Call a tool that appears while this process runs, and wait until it is gone again."""
        _report("ready_for_plug")
        async for change in self._tools.tools.changes():
            if change.name != _PLUGGED:
                continue
            if change.kind == "removed":
                _report("unplugged", at=time.time())
                return
            seen = time.time()
            result = await self._bus.call(_PLUGGED, {"name": "agent"})
            self.count(result)
            _report("plugged", at=seen, output=result.output, ok=result.success)


async def _main(document: str) -> None:
    """Run every part, then report the summary."""
    async with ToolBus(settings=Settings.load()) as bus:
        agent = _Agent(bus, document)
        await agent.discover()
        await agent.unary()
        await agent.streams()
        await agent.survive()
        async with asyncio.timeout(20):
            await agent.meet()
        latencies = sorted(agent.latencies)
        _report(
            "summary",
            calls=agent.calls,
            failed=agent.failed,
            recovered=agent.recovered,
            p50_ms=latencies[len(latencies) // 2],
            p99_ms=latencies[int(len(latencies) * 0.99)],
            **{name: value for name, value in bus.statistics().items() if name in {"frames", "malformed", "commands", "connects"}},
        )


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]).read_text("utf-8")))
