"""A service agent with a scripted model, and chats with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.agent.endpoint import Canned, Endpoint, Script, endpoint, event
from tests.contract import Place
from toolbus import ToolBus, ToolResult, Worker, tool
from toolbus.agent.assistant.services import Platform, ServiceAgent


@tool(service="stitching", groups=["images"], category="image")
async def stitch(left: str, right: str) -> str:
    """Stitch two images.

    The second paragraph.
    """
    return left + right


@tool(service="stitching", groups=["images"], category="image")
async def resize(image: str) -> str:
    """Resize an image."""
    return image


def configure(monkeypatch: pytest.MonkeyPatch, model: Endpoint, **more: str) -> None:
    """Let the environment name a model."""
    variables = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url, "OPENAI_MODEL": "m", **more}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def hanging(text: str) -> Canned:
    """Return an answer that begins and never ends."""
    made = Canned(event({"role": "assistant", "content": text}))
    made.hang = True
    return made


class Chats:
    """A bus, and chats over it."""

    def __init__(self, place: Place, bus: ToolBus, model: Endpoint) -> None:
        self.place = place
        self.bus = bus
        self.model = model

    async def say(self, message: str, chat_id: str = "c", **options: Any) -> ToolResult:
        """Send a message in the session of its chat."""
        options.setdefault("session", chat_id)
        return await self.bus.call("chat", {"message": message, "chat_id": chat_id}, **options)


@asynccontextmanager
async def chatting(
    place: Place, monkeypatch: pytest.MonkeyPatch, script: Script | list[Canned], *more: object, concurrency: int = 100, **variables: str
) -> AsyncIterator[Chats]:
    """A worker with the service agent and further services, and a model."""
    async with endpoint(script) as model:
        configure(monkeypatch, model, **variables)
        services = [ServiceAgent(), Platform(), stitch, resize, *more]
        async with (
            Worker(services, settings=place.settings, concurrency=concurrency),
            ToolBus(settings=place.settings) as bus,
        ):
            await bus.wait_for_tool("chat")
            yield Chats(place, bus, model)
