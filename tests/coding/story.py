"""The whole story: a task becomes a tool that a host serves, its program is killed, its code is broken, and it is repaired."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.agent.endpoint import Canned, calls, endpoint, says
from tests.coding.model import MAIN, REGISTER, STEPS
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.protocols import Creation
from toolbus.bus.values.results import ToolbusError
from toolbus.platform.records import RecordedTool, ToolRoute
from toolbus.platform.states import tool_routes
from toolbus.platform.store import Records

# Generous: two cores may be shared with much else.
PATIENCE = 90.0
LEASE = 2.0
TOOL = "reverse_text"

REPAIR: list[Canned] = [
    calls(("read_file", {"path": f"{TOOL}/main.py"})),
    calls(("write_file", {"path": f"{TOOL}/main.py", "content": MAIN})),
    calls(("register_tool", REGISTER | {"project": TOOL})),
    says("It turns texts around again."),
]


class Processes:
    """The processes of a deployment, each started again when it was killed."""

    def __init__(self, url: str, namespace: str, environment: dict[str, str], folder: Path) -> None:
        self._words = [sys.executable, "-m", "toolbus", "--url", url, "--namespace", namespace]
        self._environment = environment
        self._folder = folder
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.killed: list[str] = []

    async def start(self, name: str) -> None:
        """Start ``worker`` or ``host``."""
        words = {"worker": ["worker", "coding-agent"], "host": ["platform", "host"]}[name]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                *self._words, *words, "--lease", str(LEASE), env=self._environment, stdout=log, stderr=log
            )

    async def kill(self, name: str) -> None:
        """Kill one, and start it again."""
        self.killed.append(name)
        process = self._running[name]
        process.kill()
        await process.wait()
        await self.start(name)

    async def offering(self, bus: ToolBus, name: str) -> None:
        """Wait until a tool is offered; a process that has ended by itself will offer none, and fails the wait at once."""

        def offered() -> bool:
            assert [name for name, each in self._running.items() if each.returncode is not None] == [], self.logs()
            return name in bus.tools

        await eventually(offered, timeout=PATIENCE)

    async def stop(self) -> None:
        """End all, in order."""
        for process in self._running.values():
            if process.returncode is None:
                process.terminate()
        for process in self._running.values():
            try:
                async with asyncio.timeout(30):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def logs(self) -> str:
        """The ends of their logs."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-4_000:]}" for path in sorted(self._folder.glob("*.log")))


class Story:
    """One deployment, and a person who asks, approves, calls, and breaks things."""

    def __init__(self, bus: ToolBus, processes: Processes, on_point: Callable[[str], Any]) -> None:
        self.bus = bus
        self.processes = processes
        self.records = Records(bus)
        self._on_point = on_point

    async def tell(self) -> None:
        """Go through all of it."""
        await self.processes.offering(self.bus, "submit_task")
        await self._on_point("before the task")
        task = await self._submitted()
        await self._on_point("after the task")
        await self._done(task)
        await self._approved(1)
        await self._on_point("before the first call")
        await self._answers()
        route = await self._route("running")
        assert route.pid > 0
        await self._on_point("before the program is killed")
        _kill(await self._pid())
        await self._answers()
        await self._on_point("before the code is broken")
        tool = (await self.records.all()).tools[TOOL]
        pid = await self._pid()
        _break(Path(tool.sources[0].host_dir, "main.py"))
        _kill(pid)
        repair = await self._repair()
        await self._on_point("during the repair")
        await self._done(repair.id)
        await self._approved(2)
        await self._on_point("before the last call")
        await self._answers()
        listed = await self.bus.creations.overview()
        assert [each.about for each in (*listed.running, *listed.queued)] == []
        assert sorted(each.about for each in listed.recent if each.status == "done") == ["", TOOL]

    async def _submitted(self) -> str:
        result = await self.bus.call("submit_task", {"spec": "turn a text around"}, timeout=PATIENCE, idempotency_key="story")
        assert result.success, result.error
        return str(result.data["task_id"])

    async def _done(self, task: str) -> None:
        async def ended() -> Creation | None:
            found = await self.bus.creations.get(task)
            return found if found is not None and not found.open else None

        found = await eventually(ended, timeout=PATIENCE, interval=0.1)
        assert found.status == "done", (found.result, found.log)
        assert json.loads(found.result)["tool_id"] == TOOL

    async def _approved(self, revision: int) -> None:
        """Approve what waits, as `toolbus secure approve` does."""

        async def waiting() -> RecordedTool | None:
            found = (await self.records.all()).pending.get(TOOL)
            return found if found is not None and found.revision == revision else None

        await eventually(waiting, timeout=PATIENCE, interval=0.1)

        async def approved() -> bool:
            try:
                return (await self.records.approve(TOOL)).revision == revision
            except ToolbusError:
                found = (await self.records.all()).tools.get(TOOL)
                return found is not None and found.revision == revision

        await eventually(approved, timeout=PATIENCE, interval=0.1)

    async def _answers(self) -> None:
        """Call it until it answers; what fails meanwhile fails clearly."""

        async def answered() -> bool:
            result = await self.bus.call(TOOL, {"text": "bus"}, timeout=20.0, wait=20.0)
            if result.success:
                assert result.data == {"text": "sub"}, result
                return True
            assert result.error.type in {"unavailable", "tool_error", "outcome_unknown", "not_found", "deadline_exceeded"}, result.error
            return False

        await eventually(answered, timeout=PATIENCE, interval=0.2)

    async def _route(self, state: str) -> ToolRoute:
        async def found() -> ToolRoute | None:
            routes = await tool_routes(self.bus.routes)
            return next((each for each in routes if each.tool_id == TOOL and each.state == state), None)

        return await eventually(found, timeout=PATIENCE, interval=0.1)

    async def _pid(self) -> int:
        """The program's process, which the host may have to start first."""
        await self._answers()
        return (await self._route("running")).pid

    async def _repair(self) -> Creation:
        """Call the broken tool until somebody repairs it."""

        async def repair() -> Creation | None:
            listed = await self.bus.creations.overview()
            found = next((each for each in (*listed.running, *listed.queued, *listed.recent) if each.about == TOOL), None)
            if found is None:
                await self.bus.call(TOOL, {"text": "bus"}, timeout=5.0, wait=5.0)
            return found

        return await eventually(repair, timeout=PATIENCE, interval=0.2)


def _break(path: Path) -> None:
    path.write_text("raise SystemExit('broken')\n")


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def model(on_request: Callable[[int], Any]) -> Callable[[dict[str, Any]], Canned]:
    """A model that writes the tool, and repairs it when it is asked to; it answers the same when it is asked again."""
    count = 0

    def script(body: dict[str, Any]) -> Canned:
        nonlocal count
        count += 1
        on_request(count)
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        answers = REPAIR if "Repair the tool" in asked else STEPS
        return answers[min(spoken, len(answers) - 1)]

    return script


@asynccontextmanager
async def story(
    url: str,
    namespace: str,
    folder: Path,
    *,
    on_request: Callable[[int], Any] = lambda count: None,
    on_point: Callable[[str], Any] | None = None,
) -> AsyncIterator[Story]:
    """A worker and a host in processes of their own, and a model in this one."""

    async def nothing(point: str) -> None:
        return

    async with endpoint(model(on_request)) as served:
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "k",
            "OPENAI_MODEL": "m",
            "OPENAI_BASE_URL": served.url,
            "TOOLBUS_TOOLS_DIR": str(folder / "tools"),
            "TOOLBUS_CODING_WORKSPACES": str(folder / "tasks"),
            "TOOLBUS_CODING_REPAIR": "true",
            "UV_OFFLINE": "1",
        }
        processes = Processes(url, namespace, environment, folder)
        try:
            await processes.start("worker")
            await processes.start("host")
            async with ToolBus(url, namespace=namespace) as bus:
                yield Story(bus, processes, on_point or nothing)
        except BaseException:
            print(processes.logs(), file=sys.stderr)  # noqa: T201 - a failed run is understood by them alone
            raise
        finally:
            await processes.stop()
