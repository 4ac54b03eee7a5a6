"""A model, a worker with tools, and agents that keep their conversations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.agent.endpoint import Canned, Endpoint, Script, endpoint
from tests.contract import Place
from tests.pictures import png
from tests.servers import eventually
from toolbus import ToolBus, Worker, tool
from toolbus.agent import Agent, ChatEndpoint
from toolbus.bus.values.results import ToolError

PICTURE = png()


class Tools:
    """Tools that count how often they ran, and wait where a test wants it."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.gate = asyncio.Event()
        self.running = asyncio.Event()

    def all(self) -> list[Any]:
        """The tools."""

        @tool(service="kept")
        async def note(text: str) -> str:
            """Note a text."""
            self.ran.append(text)
            return f"noted {text}"

        @tool(service="kept", effect="once")
        async def launch(name: str) -> str:
            """Launch something, once."""
            self.ran.append(name)
            return f"launched {name}"

        @tool(service="kept")
        async def story(name: str):
            """Tell a story."""
            self.ran.append(name)
            yield "once upon "
            self.running.set()
            await self.gate.wait()
            yield "a time"

        @tool(service="kept")
        async def big(size: int) -> dict[str, str]:
            """Give a large result."""
            self.ran.append("big")
            return {"text": "x" * size}

        @tool(service="kept")
        async def draw() -> bytes:
            """Draw."""
            return PICTURE

        @tool(service="kept")
        async def fail() -> str:
            """Fail."""
            raise ToolError("no such table", code="no_table")

        @tool(service="kept", output_limit=100)
        async def leak() -> str:
            """Give a long text of someone else's."""
            return "leak " * 100

        return [note, launch, story, big, draw, fail, leak]


class Setting:
    """A model, a worker, and agents that are made one after the other."""

    def __init__(self, place: Place, model: Endpoint, tools: Tools) -> None:
        self.place = place
        self.model = model
        self.tools = tools

    @asynccontextmanager
    async def agent(self, conversation: str | None = "c", session: str = "", user: str = "", **options: Any) -> AsyncIterator[Agent]:
        """An agent with a bus of its own, as in another process."""
        async with ToolBus(settings=self.place.settings) as bus, ChatEndpoint(self.model.url, "k") as chat:
            await bus.wait_for_tool("note")
            executor = bus.executor(model="m", session=session, user=user)
            yield Agent(chat, executor, conversation=conversation, system="Be brief.", **options)


@asynccontextmanager
async def setting(place: Place, script: Script | list[Canned]) -> AsyncIterator[Setting]:
    """A worker with the tools, and a model."""
    tools = Tools()
    async with endpoint(script) as model, Worker(tools.all(), settings=place.settings):
        yield Setting(place, model, tools)


def told(body: dict[str, Any]) -> list[tuple[str, str]]:
    """The messages of a request, by role and content."""
    return [
        (each["role"], each["content"] or ",".join(call["function"]["name"] for call in each["tool_calls"])) for each in body["messages"]
    ]


async def until_recorded(given: Setting, count: int) -> None:
    """Wait until a conversation has so many records."""
    async with ToolBus(settings=given.place.settings) as bus:
        kept = bus.executor(model="m").state.steps.conversations

        async def recorded() -> bool:
            return len(await kept.read("", "c")) >= count

        await eventually(recorded, timeout=20.0)
