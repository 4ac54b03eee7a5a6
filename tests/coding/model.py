"""A scripted model that writes a tool, and a coding agent that it drives."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.endpoint import Canned, Endpoint, calls, endpoint, says
from tests.contract import Place
from toolbus import ToolBus, Worker
from toolbus.bus.values.settings import Settings
from toolbus.platform.coding.service import CodingAgent

MAIN = """
import argparse, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = json.dumps({"text": given["text"][::-1]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
"""
"""A tool that turns a text around."""

SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "description": "a text"}}, "required": ["text"]}

REGISTER = {
    "project": "reverse",
    "tool_id": "reverse_text",
    "description": "Turns a text around, character by character.",
    "input_schema": SCHEMA,
    "example": {"text": "abc"},
}

STEPS: list[Canned] = [
    calls(("create_uv_project", {"name": "reverse"})),
    calls(("write_file", {"path": "reverse/main.py", "content": MAIN})),
    calls(("run_in_uv", {"project": "reverse", "command": "python -m py_compile main.py && echo fine"})),
    calls(("register_tool", REGISTER)),
    says("It turns texts around."),
]
"""A model that writes the tool, checks and registers it."""


def steps(*answers: Canned) -> Callable[[dict[str, Any]], Canned]:
    """A model whose answer depends on how often it has spoken in the conversation, so that it can be asked again."""

    def script(body: dict[str, Any]) -> Canned:
        spoken = sum(message["role"] == "assistant" for message in body["messages"])
        return answers[min(spoken, len(answers) - 1)]

    return script


def observed(model: Endpoint) -> list[str]:
    """Return what the model was told by its tools, in its last request."""
    return [message["content"] for message in model.bodies[-1]["messages"] if message["role"] == "tool"]


def environment(monkeypatch: pytest.MonkeyPatch, url: str, folder: Path, **options: object) -> None:
    """Set what a coding agent reads of its environment."""
    values = {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", "OPENAI_BASE_URL": url, "TOOLBUS_TOOLS_DIR": str(folder / "tools")}
    values["TOOLBUS_CODING_WORKSPACES"] = str(folder / "tasks")
    values |= {f"TOOLBUS_CODING_{name.upper()}": str(value) for name, value in options.items()}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


class Coding:
    """A coding agent, its model, and a caller."""

    def __init__(self, bus: ToolBus, model: Endpoint, folder: Path) -> None:
        self.bus = bus
        self.model = model
        self.tools = folder / "tools"

    async def submit(self, spec: str, **options: Any) -> str:
        """Give it a task; its id."""
        result = await self.bus.call("submit_task", {"spec": spec}, **options)
        assert result.success, result.error
        return str(result.data["task_id"])

    async def status(self, task: str) -> dict[str, Any]:
        """Return what it says of a task."""
        return (await self.bus.call("check_task_status", {"task_id": task})).data

    async def ended(self, task: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until a task has ended; what it says of it."""
        import asyncio

        async with asyncio.timeout(seconds):
            while True:
                seen = self.bus.creations.news.count
                status = await self.status(task)
                if status["status"] not in {"queued", "running"}:
                    return status
                await self.bus.creations.news.wait(seen, 1.0)

    async def made(self, task: str) -> dict[str, Any]:
        """Wait until a task is done; its result."""
        status = await self.ended(task)
        assert status["status"] == "done", status
        return json.loads(status["result"])


@asynccontextmanager
async def coding(
    place: Place, monkeypatch: pytest.MonkeyPatch, folder: Path, script: Any, *, settings: Settings | None = None, **options: object
) -> AsyncIterator[Coding]:
    """A coding agent in this process, with a model."""
    async with endpoint(script) as model:
        environment(monkeypatch, model.url, folder, **options)
        chosen = settings or place.settings
        async with Worker(CodingAgent(), settings=chosen), ToolBus(settings=chosen) as bus:
            await bus.wait_for_tool("submit_task")
            yield Coding(bus, model, folder)
