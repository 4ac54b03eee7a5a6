"""A small HTTP server for tests, which keeps what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.listening import Listening


class Asked(msgspec.Struct):
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Answer = tuple[int, dict[str, str], bytes]


def as_json(value: Any, status: int = 200) -> Answer:
    """An answer in JSON."""
    return status, {"Content-Type": "application/json"}, msgspec.json.encode(value)


class Api:
    """Answers requests with a function."""

    def __init__(self, answer: Callable[[Asked], Answer]) -> None:
        self._answer = answer
        self.asked: list[Asked] = []
        self.address = ""

    @property
    def last(self) -> Asked:
        """The latest request."""
        return self.asked[-1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.asked.append(Asked(method, target, headers, body))
            status, sent, content = self._answer(self.asked[-1])
            if status:
                head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
                writer.write(f"HTTP/1.1 {status} x\r\n{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


@asynccontextmanager
async def api(answer: Callable[[Asked], Answer]) -> AsyncIterator[Api]:
    """A server on loopback; status 0 breaks the connection off."""
    made = Api(answer)
    async with Listening(made.serve) as listening:
        made.address = f"http://127.0.0.1:{listening.port}"
        yield made
