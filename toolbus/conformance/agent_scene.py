"""``AgentScene``: an agent under test on one side, and a worker that is played by hand on the other."""

from __future__ import annotations

import asyncio
import json
import secrets
from types import TracebackType
from typing import Any, Self

import msgspec

from toolbus.broker import scripts
from toolbus.broker.probe import Probe
from toolbus.conformance.checks import Broken, until
from toolbus.conformance.program import Program
from toolbus.conformance.scene import SERVICE
from toolbus.descriptors import parse_service, parse_tool
from toolbus.settings import Settings

_STARTS = 20.0
_DESCRIBED = {"type": "tool-service", "name": "conformance-echo", "description": "Return a text.", "service": SERVICE}


class Taken(msgspec.Struct):
    """A request that the agent published, as it stands in the queue."""

    entry: str
    request: dict[str, Any]
    due: int
    run: str

    @property
    def id(self) -> str:
        """The correlation id."""
        return str(self.request["id"])


class AgentScene:
    """Starts an agent, tells it what to call, takes its requests, and writes frames as it likes.

    The agent reads a JSON object a line, ``{"call": NAME, "service", "tool", "arguments", "timeout"}`` or ``{"cancel": NAME}``, and
    writes one a line: ``{"call", "text"}``, ``{"call", "reset": true}``, ``{"call", "end": {"text", "error"}}``.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        self.settings = settings
        self.probe = probe
        self.program = program
        self.keys = probe.keys
        self.queue = self.keys.queue(SERVICE)
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._worker = secrets.token_hex(16)
        self._seen = "0-0"
        self._agent: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._wrong = ""

    async def __aenter__(self) -> Self:
        return self

    async def prepare(self) -> None:
        """Start the agent beside a service that it can call."""
        await self.probe.run("FLUSHDB")
        await self._register()
        self._agent = await self.program.start(pipes=True)
        self._reading = asyncio.create_task(self._read())

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._agent is not None:
            await self.program.kill(self._agent)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _register(self) -> None:
        """Publish a service with one tool, as a worker that never leaves."""
        keys = self.keys
        service = parse_service({"id": SERVICE})
        tool = parse_tool({**_DESCRIBED, "arguments": [{"name": "text", "type": "string", "description": "a text"}]}, service)
        document = msgspec.json.encode({"service": service, "tools": [tool], "owner": "kit", "digest": "d"})
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        own = (keys.instances(SERVICE), self.queue, keys.fence(SERVICE), keys.cancelled(SERVICE))
        common = (keys.prefix, secrets.token_hex(6), 3_600_000, 60_000)
        lease = 3_600_000
        args = (SERVICE, self._worker, "kit", "d", document, lease, secrets.token_hex(8), "", SERVICE, 0, tool.name)
        answer = await self.probe.script(scripts.REGISTER, (*tables, *own), *common, *args)
        if answer[0] != b"ok":
            raise Broken(f"the kit can't register its service: {answer}")

    # -- the agent --------------------------------------------------------------------------------

    async def call(
        self, name: str, text: str = "x", *, timeout: float = 30.0, service: str = SERVICE, tool: str = "conformance-echo"
    ) -> None:
        """Tell the agent to call a tool."""
        await self._tell({"call": name, "service": service, "tool": tool, "arguments": {"text": text}, "timeout": timeout})

    async def cancel(self, name: str) -> None:
        """Tell the agent to cancel a call."""
        await self._tell({"cancel": name})

    async def leave(self) -> int:
        """Close the agent's standard input and return its exit code."""
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        self._agent.stdin.close()
        try:
            async with asyncio.timeout(10.0):
                return await self._agent.wait()
        except TimeoutError:
            raise Broken("it did not end within 10 s of the end of its input") from None

    async def _tell(self, what: dict[str, Any]) -> None:
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        try:
            self._agent.stdin.write(json.dumps(what).encode() + b"\n")
            await self._agent.stdin.drain()
        except OSError:
            raise Broken(f"the agent has ended{self.program.said()}") from None

    async def _read(self) -> None:
        if self._agent is None or self._agent.stdout is None:
            return
        async for line in self._agent.stdout:
            try:
                event = json.loads(line)
                self.events.setdefault(event["call"], []).append(event)
            except (ValueError, KeyError, TypeError):
                self._wrong = f"it wrote a line that is no event: {line[:100]!r}"

    def text(self, name: str) -> str:
        """Return the text that the agent has told of a call since its last reset."""
        text = ""
        for event in self.events.get(name, []):
            text = "" if event.get("reset") else text + event.get("text", "")
        return text

    async def ended(self, name: str, within: float = 10.0) -> dict[str, Any]:
        """Return the end that the agent told of a call.

        Raises:
            Broken: it told none, or several.
        """

        async def found() -> list[dict[str, Any]]:
            if self._wrong:
                raise Broken(self._wrong)
            if self._agent is not None and self._agent.returncode is not None:
                raise Broken(f"the agent ended with exit code {self._agent.returncode}{self.program.said()}")
            return [event["end"] for event in self.events.get(name, []) if "end" in event]

        ends = await until(found, within, f"the agent told no end of call {name!r}")
        if len(ends) != 1:
            raise Broken(f"the agent told {len(ends)} ends of call {name!r}")
        return ends[0]

    # -- the worker that is played ----------------------------------------------------------------

    async def taken(self) -> Taken:
        """Return the next request of the queue.

        Raises:
            Broken: none came, or it can't be read.
        """

        async def found() -> Any:
            return await self.probe.run("XRANGE", self.queue, f"({self._seen}", "+", "COUNT", 1)

        entry, flat = (await until(found, _STARTS, "no request came"))[0]
        self._seen = entry.decode()
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            request = json.loads(fields[b"r"].decode("utf-8"))
            due = int(fields[b"d"])
        except (KeyError, ValueError) as error:
            raise Broken(f"the request can't be read: {error}") from None
        return Taken(self._seen, request, due, secrets.token_hex(8))

    async def send(self, taken: Taken, *frames: dict[str, Any]) -> None:
        """Write frames of a request; each has the request's id, the run and attempt 1 unless it says otherwise."""
        whole = [{"id": taken.id, "run": taken.run, **frame} for frame in frames]
        await self.raw(taken, json.dumps(whole, ensure_ascii=False).encode())

    async def raw(self, taken: Taken, document: bytes) -> None:
        """Write a document in place of a list of frames."""
        await self.probe.run("XADD", self.keys.replies(taken.request["agent"]), "NOMKSTREAM", "*", "f", document)

    async def answer(self, taken: Taken, *texts: str, **end: Any) -> None:
        """Answer a request with text and a successful end."""
        frames = [{"seq": number, "response": text} for number, text in enumerate(texts)]
        await self.send(taken, *frames, {"seq": len(texts), "kind": "end", "end_of_stream": True, **end})
        await self.probe.run("XDEL", self.queue, taken.entry)
