"""A scripted endpoint on loopback that speaks OpenAI's chat completions over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.listening import Listening

Script = Callable[[dict[str, Any]], "Canned"]


class Canned:
    """One answer: raw bytes in pieces; ``hang`` keeps the connection open after them, ``cut`` ends it in the middle."""

    def __init__(self, *pieces: bytes, status: int = 200, kind: str = "text/event-stream", cut: bool = False, **headers: str) -> None:
        self.pieces = pieces
        self.status = status
        self.headers = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.cut = cut
        self.hang = False


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """One chunk of a chat completion as an event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def says(*words: str) -> Canned:
    """An answer in words."""
    return Canned(event({"role": "assistant", "content": ""}), *[event({"content": word}) for word in words], event({}, "stop"), DONE)


def calls(*wanted: tuple[str, dict[str, Any] | str], words: str = "") -> Canned:
    """Parallel tool calls whose arguments come in small parts, in turn."""
    pieces = [event({"role": "assistant", "content": words or None})]
    texts = [arguments if isinstance(arguments, str) else json.dumps(arguments) for _, arguments in wanted]
    for index, (name, _) in enumerate(wanted):
        function = {"name": name, "arguments": ""}
        pieces.append(event({"tool_calls": [{"index": index, "id": f"call_{name}_{index}", "type": "function", "function": function}]}))
    for start in range(0, max(map(len, texts)), 5):
        parts = [(index, text[start : start + 5]) for index, text in enumerate(texts) if text[start : start + 5]]
        pieces += [event({"tool_calls": [{"index": index, "function": {"arguments": part}}]}) for index, part in parts]
    return Canned(*pieces, event({}, "tool_calls"), DONE)


class Endpoint:
    """The server, and the bodies and headers of the requests it got."""

    def __init__(self, script: Script, path: str) -> None:
        self._script = script
        self._path = path
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.answering = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; each is used once."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            request, *lines = head.strip().split("\r\n")
            assert request == f"POST {self._path} HTTP/1.1"
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.bodies.append(body)
            self.headers.append(headers)
            await self.answer(self._script(body), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    async def answer(self, answer: Canned, writer: asyncio.StreamWriter) -> None:
        """Send an answer."""
        lines = [f"HTTP/1.1 {answer.status} X", "transfer-encoding: chunked", "connection: close"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        for piece in answer.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        self.answering.set()
        if answer.hang:
            await asyncio.Event().wait()
        if not answer.cut:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def endpoint(script: Script | list[Canned], path: str = "/v1/chat/completions") -> AsyncIterator[Endpoint]:
    """A running endpoint that answers with what the script makes of each body, or with these answers, one after the other."""
    answers = iter(script) if isinstance(script, list) else None
    made = Endpoint(script if answers is None else lambda body: next(answers), path)  # type: ignore[arg-type]
    async with Listening(made.serve) as listening:
        made.url = f"http://127.0.0.1:{listening.port}/v1"
        yield made
