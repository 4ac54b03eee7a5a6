"""A task of ten calls whose agent is killed at each of its steps: the outcome is that of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.agent.dying import LEASE
from tests.agent.endpoint import Canned, Endpoint, calls, endpoint, says
from tests.forking import ForkServer
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.agent import Agent, Answer, ChatEndpoint
from toolbus.bus.broker.held import conversations

pytestmark = pytest.mark.anyio

# The calls of each turn of the model; the tenth call is followed by the answer.
TURNS = (("note",), ("note", "launch", "story"), ("launch",), ("note", "fail", "story", "launch"), ("note",))
COUNT = sum(map(len, TURNS))
# So many processes are killed at once.
AT_ONCE = 3
# The steps are dealt out to so many tests, which can run side by side.
PARTS = 4
# A process that was killed at such a step may have been answered by the model, and not have kept that.
UNKEPT = ("model to be asked", "model answered", "held/write by holder sent")


class Tools:
    """Tools that count how often they ran; a story waits in the middle while its gate, ``<conversation>/<turn>``, is shut."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.shut: dict[str, asyncio.Event] = {}

    def all(self) -> list[Any]:
        """The tools."""

        @tool(service="task")
        async def note(name: str) -> str:
            """Note something."""
            self.ran[name] += 1
            return f"noted {name.partition('/')[2]}"

        @tool(service="task", effect="once")
        async def launch(name: str) -> str:
            """Launch something, once."""
            self.ran[name] += 1
            return f"launched {name.partition('/')[2]}"

        @tool(service="task")
        async def fail(name: str) -> str:
            """Fail."""
            self.ran[name] += 1
            raise RuntimeError("out of order")

        @tool(service="task")
        async def story(name: str):
            """Tell a story."""
            self.ran[name] += 1
            yield "once upon "
            if (gate := self.shut.get(name.partition(".")[0])) is not None:
                await gate.wait()
            yield "a time"

        return [note, launch, fail, story]


class Task:
    """The task, done in one conversation after the other, each by a process that may be killed."""

    def __init__(self, settings: Settings, model: Endpoint, tools: Tools, forks: ForkServer, folder: Path) -> None:
        self._settings = settings
        self._model = model
        self._tools = tools
        self._forks = forks
        self._folder = folder
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, conversation: str, deadly: str = "") -> list[str]:
        """Do the task in a process that is killed at a step, if one is given; return the steps that it took."""
        trace = self._folder / conversation
        words = ("-m", "tests.agent.dying", self._settings.url, self._settings.namespace, self._model.url, conversation, str(trace), deadly)
        environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
        async with self._slots:
            process = self._forks.start(*words, environment=environment, stdout=subprocess.DEVNULL)
            try:
                code = await asyncio.to_thread(process.wait, 120)
            finally:
                process.kill()
        assert code == (-signal.SIGKILL if deadly else 0)
        return trace.read_text().splitlines()

    async def finish(self, bus: ToolBus, chat: ChatEndpoint, conversation: str) -> Answer:
        """Ask again, in this process."""
        agent = Agent(chat, bus.executor(model="m", session=conversation), conversation=conversation)
        return await agent.ask(f"task {conversation}", idempotency_key="q")

    async def outcome(self, bus: ToolBus, conversation: str) -> list[Any]:
        """Everything that the task came to, beside its answer: the messages of its conversation."""
        found: list[Any] = []
        for stored in await bus.executor(model="m").state.steps.conversations.read("", conversation):
            record = json.loads(stored.document.replace(conversation.encode(), b"X"))
            if record["type"] != "result":
                found.append(record.get("messages") or record.get("message") or record.get("text"))
        return found

    def requests(self, conversation: str) -> dict[int, list[Any]]:
        """The requests to the model, by the turn that they are for."""
        found: dict[int, list[Any]] = {}
        for body in self._model.bodies:
            if body["messages"][1]["content"] == f"task {conversation}":
                turn = sum(each["role"] == "assistant" for each in body["messages"])
                found.setdefault(turn, []).append(json.loads(json.dumps(body["messages"]).replace(conversation, "X")))
        return found

    async def check(self, bus: ToolBus, chat: ChatEndpoint, number: int, step: str, expected: tuple[Answer, list[Any], Any]) -> list[str]:
        """Do the task with a kill at a step, and return where its outcome differs from the expected one."""
        conversation = f"c{number:03}"
        gate = asyncio.Event()
        if told := re.match(r"(?:Started|Text) of call_story_\d in turn (\d)", step):
            self._tools.shut[f"{conversation}/{int(told[1]) - 1}"] = gate
        await self.run(conversation, step)
        finishing = asyncio.ensure_future(self.finish(bus, chat, conversation))
        # A story that was begun by the process that is dead goes on.
        gate.set()
        answer, made, requests = await finishing, await self.outcome(bus, conversation), self.requests(conversation)
        wrong = [] if answer == expected[0] else [f"{answer} instead of {expected[0]}"]
        wrong += [] if made == expected[1] else [f"the messages are {made}"]
        ran = {name: count for name, count in self._tools.ran.items() if name.startswith(f"{conversation}/")}
        # A failure that was not kept leaves its key free, and so the work may be done again.
        again = {name for name, count in ran.items() if count > 1 and not (name.endswith("fail") and count == 2)}
        wrong += [] if len(ran) == COUNT and not again else [f"calls ran {ran}"]
        repeated = [turn for turn, bodies in requests.items() if len(bodies) > 1]
        wrong += [] if not repeated or step.startswith(UNKEPT) else [f"the model was asked again for {repeated}"]
        first = {turn: bodies[0] for turn, bodies in requests.items()}
        same = all(bodies == [bodies[0]] * len(bodies) for bodies in requests.values())
        wrong += [] if same and first == expected[2] else ["the model was asked something else"]
        return [f"killed at {step!r}: {each}" for each in wrong]


def script(body: dict[str, Any]) -> Canned:
    """Make the next turn of the task from the conversation so far."""
    task = body["messages"][1]["content"].removeprefix("task ")
    turn = sum(each["role"] == "assistant" for each in body["messages"])
    if turn == len(TURNS):
        return says("all ", "done")
    return calls(*((name, {"name": f"{task}/{turn}.{place} {name}"}) for place, name in enumerate(TURNS[turn])))


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
async def test_killed_at_each_step(
    server: str, namespace: str, forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The next process finishes the task, after each step of the one before: one answer, the same messages, and no call twice."""
    monkeypatch.setattr(conversations, "_LONGEST_LEASE", LEASE)
    settings = Settings.load({}, url=server, namespace=namespace)
    tools = Tools()
    async with (
        endpoint(script) as model,
        Worker(tools.all(), settings=settings),
        ToolBus(settings=settings) as bus,
        ChatEndpoint(model.url, "k") as chat,
    ):
        await bus.wait_for_tool("note", timeout=60.0)
        task = Task(settings, model, tools, forks, tmp_path)
        steps = await task.run("undisturbed")
        assert len(steps) == len(set(steps))
        # Every call has its beginning, its publication and its end among the steps, and every record its own.
        assert sum(step.startswith("Finished") for step in steps) == COUNT
        assert sum(step.startswith("publish/share sent") for step in steps) == COUNT
        assert sum(step.startswith("held/write by holder sent") for step in steps) == 1 + len(TURNS) + COUNT + 1
        answer = await task.finish(bus, chat, "undisturbed")
        assert (answer.text, answer.turns, answer.calls, answer.failed) == ("all done", len(TURNS) + 1, COUNT, 1)
        assert tools.ran.total() == COUNT
        first = {turn: bodies[0] for turn, bodies in task.requests("undisturbed").items()}
        expected = answer, await task.outcome(bus, "undisturbed"), first
        assert len(expected[1]) == 1 + 2 * len(TURNS) + 1
        tried = list(enumerate(sorted(steps)))[part::PARTS]
        found = await asyncio.gather(*(task.check(bus, chat, number, step, expected) for number, step in tried))
        wrong = [line for each in found for line in each]
        assert not wrong, "\n".join(wrong)


async def test_a_process_that_was_paused_writes_nothing(
    server: str, namespace: str, forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped while another one finished its question ends with an error, and what was kept stays as it is."""
    monkeypatch.setattr(conversations, "_LONGEST_LEASE", LEASE)
    settings = Settings.load({}, url=server, namespace=namespace)
    tools = Tools()
    gate = tools.shut["c/1"] = asyncio.Event()
    async with (
        endpoint(script) as model,
        Worker(tools.all(), settings=settings),
        ToolBus(settings=settings) as bus,
        ChatEndpoint(model.url, "k") as chat,
    ):
        await bus.wait_for_tool("note", timeout=60.0)
        task = Task(settings, model, tools, forks, tmp_path)
        words = ("-m", "tests.agent.dying", server, namespace, model.url, "c", str(tmp_path / "trace"), "")
        paused = forks.start(*words, environment={**os.environ, "NO_PROXY": "127.0.0.1"}, stderr=subprocess.PIPE)
        try:
            await eventually(lambda: tools.ran["c/1.2 story"], timeout=60.0)
            paused.send_signal(signal.SIGSTOP)
            finishing = asyncio.ensure_future(task.finish(bus, chat, "c"))
            await asyncio.sleep(0)
            gate.set()
            assert (await finishing).text == "all done"
            before = await bus.executor(model="m").state.steps.conversations.read("", "c")
            paused.send_signal(signal.SIGCONT)
            _, errors = await asyncio.to_thread(paused.communicate, 60)
        finally:
            paused.kill()
        assert (paused.returncode, "ConversationError: the conversation 'c' is not this process's any more" in errors) == (1, True), errors
        assert await bus.executor(model="m").state.steps.conversations.read("", "c") == before
        assert set(tools.ran.values()) == {1}
