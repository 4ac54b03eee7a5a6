"""Writes missing tools: takes tasks, writes, tries and registers what they ask for.

``toolbus worker coding-agent`` (needs ``toolbus[platform]``). Any number of these workers share the tasks, which outlive them. What a
task made waits for approval (``toolbus secure approve``) until a person has seen it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from toolbus import ToolService, invocation, tool
from toolbus.bus.broker.protocols import Creation
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.platform.catalogue import hook_of
from toolbus.platform.coding.jobs import Puller
from toolbus.platform.coding.options import Deployment, Model, deployment_of
from toolbus.platform.coding.registering import STAGING, Forms
from toolbus.platform.coding.repair import Repairs
from toolbus.platform.coding.run import TaskRuns
from toolbus.platform.store import Records

if TYPE_CHECKING:
    from toolbus.bus.broker.held.creations import Creations

# Folders of tasks that the server does not know, such as those of another namespace, are kept for so many seconds.
_UNKNOWN = 14 * 86_400.0
_STAGED = 86_400.0
_TASKS = "create_*"


class Leftovers:
    """Makes the folders, and removes the workspaces of tasks that have ended and the code that no record names any more.

    Args:
        bus: open; it knows the tasks and the records.
        deployment: where the folders are.
    """

    def __init__(self, bus: ToolBus, deployment: Deployment) -> None:
        self._creations = bus.creations
        self._records = Records(bus)
        self._forms = Forms(deployment.tools, bus.settings)
        self._deployment = deployment

    async def prepare(self) -> None:
        """Make the folders, and remove what ended tasks and killed processes left in them.

        Raises:
            ConfigurationError: a folder can't be written.
            BrokerError: the server could not be asked.
        """
        for name, folder in (("TOOLBUS_TOOLS_DIR", self._deployment.tools), ("TOOLBUS_CODING_WORKSPACES", self._deployment.workspaces)):
            try:
                await asyncio.to_thread(folder.mkdir, mode=0o755, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(f"the folder {str(folder)!r} can't be made ({error.strerror}); set {name}") from None
        for path in await asyncio.to_thread(_listed, self._deployment.workspaces, _TASKS):
            task = await self._creations.get(path.name)
            if (task is None and _age(path) > _UNKNOWN) or (task is not None and not task.open):
                await self.forget(path.name)
        for path in await asyncio.to_thread(_listed, self._deployment.tools / STAGING, "*"):
            if _age(path) > _STAGED:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

        await asyncio.to_thread(self._forms.clean, await self._records.all())

    async def forget(self, task: str) -> None:
        """Remove the workspace of a task."""
        await asyncio.to_thread(shutil.rmtree, self._deployment.workspaces / task, ignore_errors=True)


def _listed(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_dir() and not path.is_symlink()]


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


SETTINGS = {
    "OPENAI_API_KEY": "the endpoint's key, any word for one that needs none; required",
    "OPENAI_MODEL": "the model's name; required",
    "OPENAI_BASE_URL": "the endpoint; OpenAI's own when left out",
    "TOOLBUS_TOOLS_DIR": "folder of the tools that were written, where hosts find them (~/.local/share/toolbus/tools)",
    "TOOLBUS_MODEL_PRICES": "prices for a million tokens, like gpt-5=1.25/10, gpt-5-mini=0.25/2",
    "TOOLBUS_CATALOGUE": "external catalogue in which recorded tools are connected: a JSON file, or the URL of an API",
    "TOOLBUS_CATALOGUE_TOKEN": "where the bearer token of that API is: env:VARIABLE or file:PATH",
    "TOOLBUS_CODING_AT_ONCE": "tasks that one worker runs at once (2)",
    "TOOLBUS_CODING_REQUESTS": "most requests to the model for one task (80)",
    "TOOLBUS_CODING_SECONDS": "most seconds of one task (3600)",
    "TOOLBUS_CODING_TOKENS": "most tokens of one task (2000000)",
    "TOOLBUS_CODING_PRICE": "most that one task may cost, by TOOLBUS_MODEL_PRICES; 0 for no limit (0)",
    "TOOLBUS_CODING_AUTO_APPROVE": "true: tools are served without a person's approval (false)",
    "TOOLBUS_CODING_LABELS": "labels of the hosts that may run the tools, with commas between; every host when left out",
    "TOOLBUS_CODING_WORKSPACES": "folder of the tasks' workspaces (~/.local/share/toolbus/tasks)",
    "TOOLBUS_CODING_NETWORK": "which commands of a task reach the network: none, packages (uv alone), all (none)",
    "TOOLBUS_CODING_DOCKER": "false: tasks have no containers (true)",
    "TOOLBUS_CODING_CONFINED": "false: commands are not confined, in a container of the worker's own (true)",
    "TOOLBUS_CODING_REPAIR": "true: tools that fail get repair tasks (false)",
    "TOOLBUS_CODING_REPAIRS_A_DAY": "most repair tasks of one tool in a day (3)",
    "TOOLBUS_CODING_FAILING_SHARE": "share of a tool's calls that may fail until it is repaired (0.5)",
    "TOOLBUS_CODING_FAILING_CALLS": "least calls of which that is judged (10)",
}

_MOST_LINES = 20
# Failing tools are looked for so often.
_LOOKS_EVERY = 30.0

TaskId = Annotated[str, Meta(max_length=64, description="like create_1a2b3c4d")]


class CodingAgent(ToolService):
    """The coding agent: the tools by which tasks are given to it, and what runs them."""

    id = "coding-agent"
    description = "Writes missing tools"

    def __init__(self) -> None:
        self._bus: ToolBus | None = None
        self._running = AsyncExitStack()

    async def startup(self) -> None:
        """Connect, and begin to take tasks."""
        deployment, model = deployment_of(os.environ), Model.of_environment()
        if self.worker_settings is None:
            raise ConfigurationError("the coding agent runs in a worker only")
        async with AsyncExitStack() as running:
            self._bus = bus = await running.enter_async_context(ToolBus(settings=self.worker_settings))
            runs = TaskRuns(bus, deployment, model, hook_of(Records(bus), os.environ))
            leftovers = Leftovers(bus, deployment)
            await leftovers.prepare()
            worker = f"{socket.gethostname()}-{os.getpid()}"
            puller = Puller(bus.creations, worker, runs.run, deployment.options.at_once, leftovers.forget)
            running.push_async_callback(puller.aclose)
            puller.start()
            if deployment.options.repair:
                repairs = Repairs(bus, deployment.options, every=min(_LOOKS_EVERY, bus.settings.lease))
                repairing = asyncio.create_task(keep_running("repairs", repairs.run, every=0), name="toolbus-repairs")
                running.push_async_callback(cancelled, repairing)
            self._running = running.pop_all()

    async def cleanup(self) -> None:
        """Give back what runs, and disconnect."""
        await self._running.aclose()

    @tool(effect="idempotent", category="platform")
    async def submit_task(self, spec: Annotated[str, Meta(min_length=1, max_length=60_000)]) -> dict[str, Any]:
        """Have a missing tool made. Returns the task's id at once; the tool is made in minutes and then waits for approval.

        Args:
            spec: what the tool should do: its arguments, what it answers, an example of a call, and limits
        """
        call = invocation()
        # A call that is run again after a crash is the same task.
        try:
            made = await self._creations.submit(spec, by=call.user, key=call.idempotency_key or f"call/{call.id}")
        except ConfigurationError as error:
            raise ToolError(str(error), type="invalid_arguments") from None
        return {"task_id": made.id, "status": made.status}

    @tool(effect="read", category="platform")
    async def check_task_status(self, task_id: TaskId) -> dict[str, Any]:
        """Tell how far a task is, and what came of it."""
        found = await self._found(task_id)
        return {**_told(found), "task_spec": found.spec, "result": found.result, "log": [*found.log[-_MOST_LINES:]]}

    @tool(effect="idempotent", category="platform")
    async def cancel_task(self, task_id: TaskId) -> dict[str, Any]:
        """End a task of yours: one that waits at once, one that runs soon."""
        found = await self._found(task_id)
        if found.by != invocation().user:
            message = f"the task {task_id!r} is another user's; who submitted it may cancel it, or an operator: `toolbus platform cancel`"
            raise ToolError(message, type="forbidden", code="not_yours")
        status = await self._creations.cancel(found.id)
        return {"task_id": task_id, "status": status}

    @tool(effect="read", category="platform")
    async def list_tasks(self, recent: Annotated[int, Meta(ge=0, le=200)] = 20) -> dict[str, Any]:
        """List the tasks that run and wait, and the latest ones that have ended."""
        found = await self._creations.overview(recent)
        return {
            name: [{**_told(each), "task_spec": each.spec[:200]} for each in tasks]
            for name, tasks in (("running", found.running), ("queued", found.queued), ("recent", found.recent))
        }

    @property
    def _creations(self) -> Creations:
        if self._bus is None:
            raise ToolError("the coding agent has not started", type="unavailable", retryable=True)
        return self._bus.creations

    async def _found(self, task_id: str) -> Creation:
        found = await self._creations.get(task_id)
        if found is None:
            raise ToolError(f"there is no task {task_id[:64]!r}; list_tasks lists them", type="not_found", code="no_task")
        return found


def _told(task: Creation) -> dict[str, Any]:
    fields = {name: getattr(task, name) for name in ("status", "about", "progress", "attempts", "created", "started", "ended")}
    return {"task_id": task.id, **fields, "tokens": task.spent.tokens, "price": task.spent.price / 1e6}
