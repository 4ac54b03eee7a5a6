"""``TaskRuns``: run a task: its workspace, its tools, and the model's turns."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

import msgspec

from toolbus.agent import OPENAI, Agent, AgentEvent, Answer, ModelText, Retrying
from toolbus.client.bus import ToolBus
from toolbus.client.executor.executor import ToolExecutor
from toolbus.coding.guard import Guard
from toolbus.coding.job import Job
from toolbus.coding.options import Deployment
from toolbus.coding.prompt import NUDGE, system
from toolbus.coding.puller import Outcome
from toolbus.coding.registering import Registrar
from toolbus.coding.spending import MeteredEndpoint, OverBudget
from toolbus.coding.toolbox import toolbox
from toolbus.coding.tools.task_tools import TaskTools
from toolbus.coding.workspace.workspace import Workspace
from toolbus.results import ConfigurationError, ConversationBusy, ConversationError, EndpointError

CONVERSATIONS = "coding/"
"""Begins the ids of the conversations of tasks."""

# A call of a tool takes longer than the command that it runs.
_MARGIN = 30.0
# A task whose endpoint is away is tried again after so many seconds, until it is so old.
_AGAIN = 20.0
_PATIENCE = 86_400.0
_ENDED = {
    "turns": "the model did not end within {turns} turns",
    "time": "the model did not end in time",
    "full": "the conversation is over the bound of what is kept",
    "length": "the model's answer was cut off by the endpoint",
}


class Model(msgspec.Struct, frozen=True):
    """The endpoint and the model of a coding agent."""

    base_url: str
    api_key: str
    name: str

    @classmethod
    def of_environment(cls) -> Model:
        """Return the one that the environment names.

        Raises:
            ConfigurationError: a variable is missing.
        """
        key, name = (os.environ.get(each, "").strip() for each in ("OPENAI_API_KEY", "OPENAI_MODEL"))
        if not key:
            raise ConfigurationError(
                "the coding agent needs a model: set OPENAI_API_KEY to your endpoint's key (any word for one that needs none), and "
                "OPENAI_BASE_URL unless it is OpenAI"
            )
        if not name:
            raise ConfigurationError("which model? set OPENAI_MODEL")
        return cls(os.environ.get("OPENAI_BASE_URL") or OPENAI, key, name)


class TaskRuns:
    """Runs tasks with one model, one workspace for each.

    Args:
        bus: open.
        deployment: what the environment says.
        model: the model.
        registrar: records the tools.
    """

    def __init__(self, bus: ToolBus, deployment: Deployment, model: Model, registrar: Registrar) -> None:
        self._bus = bus
        self._deployment = deployment
        self._model = model
        self._registrar = registrar

    async def run(self, job: Job) -> Outcome:
        """Run a task to its end.

        Raises:
            ToolbusError: it can't be run here.
        """
        try:
            answer = await self._answered(job)
        except OverBudget as error:
            return Outcome("failed", str(error))
        except ConversationBusy:
            # Its last process is still there.
            return Outcome("queued", "", self._bus.creations.lease / 2)
        except EndpointError as error:
            if error.retryable and time.time() - job.creation.created < _PATIENCE:
                job.log(f"{error}; the task is tried again")
                return Outcome("queued", "", error.retry_after or _AGAIN)
            return Outcome("failed", str(error))
        except ConversationError as error:
            return Outcome("failed", str(error))
        registered = await self._registrar.registered(job.creation.id)
        if registered is not None:
            return Outcome("done", msgspec.json.encode({**registered, "text": answer.text}).decode())
        why = _ENDED.get(answer.reason, "it ended without a tool").format(turns=answer.turns)
        return Outcome("failed", f"{why}: {answer.text}" if answer.text.strip() else why)

    async def _answered(self, job: Job) -> Answer:
        options, creation = self._deployment.options, job.creation
        async with Workspace(self._deployment.workspaces, creation.id, options.workspace) as workspace:
            folder = self._deployment.workspaces / creation.id
            functions = {**TaskTools(workspace).functions, **self._registrar.functions(job, workspace)}
            seconds = options.workspace.seconds + _MARGIN
            guard = Guard(job, folder / "marks")
            async with (
                self._endpoint(job, guard) as endpoint,
                toolbox(functions, guard, model=self._model.name, seconds=seconds) as executor,
            ):
                born = await asyncio.to_thread(_born, folder)
                await self._registrar.bring(job, workspace)
                agent = self._agent(endpoint, executor, f"{CONVERSATIONS}{creation.id}/{born}")
                told = _Told(job)
                answer = await agent.ask(creation.spec, told.event, idempotency_key="task")
                told.end()
                if answer.reason == "answered" and await self._registrar.registered(creation.id) is None:
                    answer = await agent.ask(NUDGE, told.event, idempotency_key="nudge")
                    told.end()
                return answer

    def _endpoint(self, job: Job, guard: Guard) -> MeteredEndpoint:
        options, model = self._deployment.options, self._model
        return MeteredEndpoint(
            model.base_url,
            model.api_key,
            model=model.name,
            prices=self._deployment.prices,
            spent=job.creation.spent,
            most_tokens=options.tokens,
            most_price=round(options.price * 1e6),
            tell=job.spent,
            looping=lambda: guard.looping,
        )

    def _agent(self, endpoint: MeteredEndpoint, executor: ToolExecutor, conversation: str) -> Agent:
        options = self._deployment.options
        return Agent(
            endpoint,
            executor,
            system=system(options),
            max_turns=options.requests,
            max_seconds=options.seconds,
            conversations=self._bus.executor().conversations,
            conversation=conversation,
        )


class _Told:
    """Writes what the model says into the task's log, in lines."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._text = ""

    def event(self, event: AgentEvent) -> None:
        """Take in an event; calls are logged where they are made."""
        if isinstance(event, ModelText):
            *lines, self._text = f"{self._text}{event.text}".split("\n")
            for line in lines:
                self._job.log(f"model: {line}")
            return
        self.end()
        if isinstance(event, Retrying):
            self._job.log(f"{event.error}; trying again in {event.seconds:g} s")

    def end(self) -> None:
        """Write the rest."""
        if self._text.strip():
            self._job.log(f"model: {self._text}")
        self._text = ""


def _born(folder: Path) -> str:
    """Return a token of this workspace: where another machine has none, the conversation begins anew, as its files would be missing."""
    path = folder / "born"
    try:
        with path.open("x") as file:
            file.write(secrets.token_hex(4))
    except FileExistsError:
        pass
    found = path.read_text()
    if len(found) != 8 or not found.isalnum():
        # Its writer was killed in between.
        found = secrets.token_hex(4)
        path.write_text(found)
    return found
