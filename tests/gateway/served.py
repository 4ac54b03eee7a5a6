"""Gateways and workers as processes."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.forking import ForkServer, Program
from tests.servers import eventually

TOOLS = Path(__file__).with_name("tools.py")


class Event:
    """A server-sent event as a client reads it."""

    def __init__(self, name: str, id: str, data: Any) -> None:
        self.name = name
        self.id = id
        self.data = data

    def __repr__(self) -> str:
        return f"Event({self.name!r}, {self.id!r}, {self.data!r})"


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a stream."""
    name, last, data = "", "", []
    async for line in response.aiter_lines():
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield Event(name, last, json.loads("\n".join(data)))
            name, data = "", []
        elif field == "event":
            name = value
        elif field == "id":
            last = value
        elif field == "data":
            data.append(value)


def text_of(found: list[Event]) -> str:
    """The text that a client has, once it has read these events."""
    text = ""
    for event in found:
        if event.name == "text":
            text += event.data["text"]
        elif event.name == "reset":
            text = ""
    return text


class Site:
    """One namespace with workers and gateways."""

    def __init__(self, forks: ForkServer, url: str, folder: Path, namespace: str = "") -> None:
        self._forks = forks
        self.folder = folder
        self.namespace = namespace or f"t-{secrets.token_hex(6)}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOOLBUS_GATEWAY")},
            "TOOLBUS_URL": url,
            "TOOLBUS_NAMESPACE": self.namespace,
            "TOOLBUS_LOG_FORMAT": "json",
            "TOOLBUS_LEASE": "2",
        }
        self.started: list[Program] = []
        self.urls: list[str] = []

    def start(self, *words: str, **variables: str) -> Program:
        """Start a command."""
        environment = {**self.environment, **variables}
        pipe = subprocess.PIPE
        made = self._forks.start(
            "-m", "toolbus", *words, folder=self.folder, environment=environment, stdout=pipe, stderr=pipe, session=True
        )
        self.started.append(made)
        return made

    def worker(self, *words: str, **variables: str) -> Program:
        """Start a worker with the tools; returns when they can be called."""
        made = self.start("worker", *(words or (str(TOOLS),)), **variables)
        self.logged(made, "service.registered")
        return made

    def gateway(self, *words: str, **variables: str) -> tuple[Program, str]:
        """Start a gateway on a free port; returns it, and its URL."""
        made = self.start("serve", "--port", "0", *words, **variables)
        return made, str(self.logged(made, "gateway.serving")["url"])

    def logged(self, program: Program, event: str) -> dict[str, Any]:
        """Read a program's log until an event."""
        assert program.stderr is not None
        lines = []
        for line in program.stderr:
            lines.append(line)
            if f'"{event}"' in line:
                return dict(json.loads(line))
        raise AssertionError(f"it ended without {event}: {''.join(lines)}")

    def close(self) -> None:
        """Stop everything."""
        for program in reversed(self.started):
            program.terminate()
        for program in self.started:
            try:
                program.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.communicate()


async def run(client: httpx.AsyncClient, tool: str, params: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    """Call a tool by ``POST /run_tool``; ``_`` in names of headers stands for ``-``."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post("/run_tool", json={"tool_id": tool, "params": params or {}}, headers=sent)


@asynccontextmanager
async def stream(
    client: httpx.AsyncClient, tool: str, params: dict[str, Any] | None = None, **headers: str
) -> AsyncIterator[httpx.Response]:
    """Call a tool by ``POST /run_tool`` and read its events."""
    sent = {"accept": "text/event-stream", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.stream("POST", "/run_tool", json={"tool_id": tool, "params": params or {}}, headers=sent) as response:
        yield response


async def noted(client: httpx.AsyncClient, name: str, times: int = 1) -> None:
    """Wait until the tools have noted something so often."""

    async def there() -> bool:
        return bool((await run(client, "seen", {"name": name})).json()["data"] == times)

    await eventually(there, timeout=30.0, interval=0.05)
