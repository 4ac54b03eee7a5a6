"""Conduct the demo: start the server, the workers and the agent, kill one worker, and check the results."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from toolbus.bus.broker.embedded import EmbeddedServer
from toolbus.bus.values.results import ToolbusError
from toolbus.operations.demo.agent import PLUGGED, STREAMS, UNARY_CALLS

WORKERS = 3
LEASE = 1.0
_LIMIT = 60.0
_LENGTH = 12_000

_PLUGIN = f'''"""A tool that was not there when the agent started."""

import time

from toolbus import tool


@tool(effect="read")
def {PLUGGED}(name: str) -> str:
    """Greet an agent.

    Args:
        name: whom to greet
    """
    return f"hello {{name}}, I was not here when you started"
'''


class Check(NamedTuple):
    """One promise of the demo, whether it held, and the evidence."""

    name: str
    held: bool
    evidence: str


class Demo:
    """One run of the demo; ``say`` prints progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
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
            "workers": WORKERS + 1,
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
        plugin = folder / f"{PLUGGED}_tools.py"
        plugin.write_text(_PLUGIN, "utf-8")
        with EmbeddedServer() as server:
            self._say(f"server      {server.url} (pid {server.pid})")
            environment = {**os.environ, "TOOLBUS_URL": server.url, "TOOLBUS_LEASE": str(LEASE), "TOOLBUS_LOG_LEVEL": "error"}
            try:
                await self._play_on(environment, document, plugin)
            finally:
                # While the server still runs, so that the workers can sign off.
                await self._stop_children()

    async def _play_on(self, environment: dict[str, str], document: Path, plugin: Path) -> None:
        for _ in range(WORKERS):
            worker = await self._start(environment, "-m", "toolbus", "worker", "--examples")
            self._say(f"worker      pid {worker.pid}")
        agent = await self._start(environment, "-m", "toolbus.operations.demo.agent", str(document), output=True)
        self._say(f"agent       pid {agent.pid}")
        async for line in _lines(agent):
            self._seen[line["event"]] = line
            await self._answer(line, environment, plugin)
        if await agent.wait() != 0:
            raise ToolbusError(f"the agent ended with exit code {agent.returncode}; seen so far: {', '.join(self._seen) or 'nothing'}")

    async def _answer(self, line: dict[str, Any], environment: dict[str, str], plugin: Path) -> None:
        match line["event"]:
            case "discovered":
                self._say(f"discovered  {len(line['tools'])} tools in {line['seconds']} s")
            case "unary":
                self._say(f"unary       {line['right']} of {line['calls']} sums right in {line['seconds']} s")
                self._say("            " + line["joke"].replace("\n\n", " ").replace("\n", " "))
            case "streams":
                self._say(
                    f"streams     {line['whole']} of {line['streams']} came back whole, {line['pieces']} pieces in {line['seconds']} s"
                )
            case "kill":
                # An instance id reads host-pid-random.
                self._killed = int(line["worker"].rsplit("-", 2)[1])
                self._say(f"kill -9     worker {self._killed}, after {line['characters']} characters of a stream")
                os.kill(self._killed, signal.SIGKILL)
            case "survived":
                self._say(
                    f"survived    the stream ended on attempt {line['attempts']}; longest silence {line['gap']} s (lease {LEASE:g} s)"
                )
            case "ready_for_plug":
                self._plug_started = time.time()
                self._plugin = await self._start(environment, "-m", "toolbus", "worker", str(plugin))
                self._say(f"hot plug    a new service starts (pid {self._plugin.pid})")
            case "plugged":
                self._say(f'            the running agent called it: "{line["output"]}"')
                if self._plugin is not None:
                    self._plug_stopped = time.time()
                    self._plugin.terminate()
            case "unplugged":
                self._say("            it stopped, and the agent saw it go")

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
    plugged, unplugged, summary = seen.get("plugged", {}), "unplugged" in seen, seen.get("summary", {})
    return [
        Check(
            "the agent discovered the tools by itself",
            len(seen.get("discovered", {}).get("tools", ())) >= 5,
            _count(seen, "discovered", "tools"),
        ),
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


def _count(seen: dict[str, dict[str, Any]], event: str, field: str) -> str:
    value = seen.get(event, {}).get(field, ())
    return f"{len(value)} tools"


async def _lines(process: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    if process.stdout is None:
        return
    async for line in process.stdout:
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line, type=dict[str, Any])
