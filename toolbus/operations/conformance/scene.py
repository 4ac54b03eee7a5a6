"""``WorkerScene``: a worker under test on one side, and raw requests and frames on the other."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from toolbus.bus.broker import scripts
from toolbus.bus.broker.opening import Probe
from toolbus.bus.values.descriptors import parse_service, parse_tool
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, until
from toolbus.operations.conformance.program import Program

SERVICE = "conformance"
LEASE = 2.0
"""Seconds: ``TOOLBUS_LEASE`` of the program under test."""

_STARTS = 20.0
_ANSWERS = 10.0


class Sent(msgspec.Struct):
    """A request that was published: its correlation id and the entry's id."""

    id: str
    entry: str


class WorkerScene:
    """Starts workers, publishes requests as they stand, and reads the frames as they come.

    Args:
        settings: the server and namespace, which belong to the kit.
        program: the command that starts a worker.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        self.settings = settings
        self.probe = probe
        self.program = program
        self.keys = probe.keys
        self.queue, self.fence = self.keys.queue(SERVICE), self.keys.fence(SERVICE)
        self.agent = secrets.token_hex(16)
        self.worker: asyncio.subprocess.Process | None = None
        self._read = "0-0"
        # Several checks of one moment read the stream together.
        self._reading = asyncio.Lock()
        self._frames: dict[str, list[dict[str, Any]]] = {}

    # -- the worker -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Have one worker in the registry, and a reply stream of this agent."""
        if self.worker is None or self.worker.returncode is not None:
            self.worker = await self.program.start()
        await until(self.instances, _STARTS, f"no worker of {SERVICE!r} is in the registry{self.program.said()}")
        await self.listen()

    async def begin_anew(self) -> None:
        """Stop the worker and empty the server."""
        if self.worker is not None:
            await self.program.kill(self.worker)
            self.worker = None
        await self.probe.run("FLUSHDB")
        self._read = "0-0"

    async def now(self) -> int:
        """Return the server's time in milliseconds."""
        seconds, micros = await self.probe.run("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def beat(self, member: str) -> None:
        """Extend the lease of a worker that the kit plays."""
        await self.probe.run("ZADD", self.keys.live, await self.now() + int(LEASE * 1000), member)

    async def instances(self) -> list[str]:
        """Return the instances of the service whose leases have not ended."""
        now = await self.now()
        members = await self.probe.run("ZRANGEBYSCORE", self.keys.live, now, "+inf")
        return [each.decode().partition("/")[2] for each in members if each.startswith(f"{SERVICE}/".encode())]

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    # -- requests ---------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Make the reply stream of this agent, and keep it alive for a while."""
        await self.probe.script(scripts.LISTEN, (self.keys.replies(self.agent),), 600_000, self._read)

    async def publish(self, role: str, arguments: dict[str, Any], *, timeout: float = 30.0, due: object = None, **fields: Any) -> Sent:
        """Publish a request.

        Args:
            role: ``echo``, ``count``, …, or an unknown one.
            arguments: of the tool.
            timeout: seconds until the deadline.
            due: text in place of the deadline of the entry.
            **fields: further fields of the request.
        """
        call, document, in_time = self.unsent(role, arguments, timeout=timeout, **fields)
        return Sent(call, await self.add(document, in_time if due is None else str(due)))

    def unsent(self, role: str, arguments: dict[str, Any], *, timeout: float = 30.0, **fields: Any) -> tuple[str, bytes, str]:
        """Return the id, the document and the deadline of a request that is not published yet."""
        request = {
            "id": secrets.token_hex(16), "agent": self.agent, "service": SERVICE, "tool": f"{SERVICE}-{role}", "arguments": arguments,
            "timeout": timeout, **fields,
        }  # fmt: skip
        return request["id"], json.dumps(request, ensure_ascii=False).encode(), str(int((time.time() + timeout) * 1000))

    async def add(self, document: bytes, due: str, *more: str) -> str:
        """Append an entry to the queue and return its id."""
        entry = await self.probe.run("XADD", self.queue, "NOMKSTREAM", "*", "r", document, "d", due, *more)
        if entry is None:
            raise Broken("the worker's request stream does not exist")
        return str(entry.decode())

    async def is_finished(self, sent: Sent) -> bool:
        """Return whether a request was acknowledged and deleted."""
        return not await self.probe.run("XRANGE", self.queue, sent.entry, sent.entry)

    async def holder(self, sent: Sent) -> tuple[str, int, int]:
        """Return the consumer that has a request, its idle time (ms) and its delivery count; empty when nobody has it."""
        found = await self.probe.run("XPENDING", self.queue, "g", sent.entry, sent.entry, 1)
        return (found[0][1].decode(), int(found[0][2]), int(found[0][3])) if found else ("", 0, 0)

    # -- frames -----------------------------------------------------------------------------------

    async def _take_in(self, stream: str = "") -> None:
        """Read new frames; every one of them must be readable."""
        found = await self.probe.run("XRANGE", stream or self.keys.replies(self.agent), "-" if stream else f"({self._read}", "+")
        for entry, flat in found:
            if not stream:
                self._read = entry.decode()
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"f" not in fields:
                continue
            try:
                frames = json.loads(fields[b"f"].decode("utf-8"))
            except ValueError as error:
                raise Broken(f"an entry of the reply stream is no JSON in UTF-8: {error}") from None
            if not isinstance(frames, list):
                raise Broken("the field f of an entry of the reply stream is no list of frames")
            for frame in frames:
                if not isinstance(frame, dict) or not isinstance(frame.get("id"), str):
                    raise Broken(f"a frame has no id: {str(frame)[:100]}")
                self._frames.setdefault(frame["id"], []).append(frame)

    async def frames(self, sent: Sent) -> list[dict[str, Any]]:
        """Return the frames of a request that have come until now."""
        async with self._reading:
            await self._take_in()
        return self._frames.get(sent.id, [])

    async def ended(self, sent: Sent, within: float = _ANSWERS) -> list[dict[str, Any]]:
        """Return the frames of a request when its end has come.

        Raises:
            Broken: it did not come.
        """

        async def has_ended() -> bool:
            self.program.check_alive()
            return any(frame.get("end_of_stream") for frame in await self.frames(sent))

        await until(has_ended, within, "no frame with end_of_stream came")
        return self._frames[sent.id]

    async def shared_frames(self, sent: Sent) -> list[dict[str, Any]]:
        """Return the frames of a shared call, which has a stream of its own."""
        self._frames.pop(sent.id, None)
        await self._take_in(self.keys.call(sent.id))
        return self._frames.get(sent.id, [])


def text_of(frames: list[dict[str, Any]]) -> str:
    """Return the whole text of a call that has ended."""
    end = frames[-1]
    if isinstance(end.get("response"), str):
        return str(end["response"])
    pieces = [
        part for frame in frames if frame.get("kind", "text") == "text" for part in (frame.get("texts") or [frame.get("response") or ""])
    ]
    return "".join(pieces) + "".join(frame["response"] for frame in frames if frame.get("kind") == "output")


def error_of(frames: list[dict[str, Any]]) -> str:
    """Return the type of the error with which a call ended; empty when it succeeded."""
    error = frames[-1].get("error")
    return str(error.get("type", "?")) if isinstance(error, dict) else ""


def check_run(frames: list[dict[str, Any]]) -> None:
    """Check the frames of a call with one run: numbered from 0 without gaps, and one end, which is the last.

    Raises:
        Broken: they are not.
    """
    runs = {frame.get("run") for frame in frames}
    if len(runs) != 1 or not all(isinstance(run, str) and run for run in runs):
        raise Broken(f"the frames of one run must have the same token in `run`, not {sorted(map(str, runs))}")
    numbers = [frame.get("seq", 0) for frame in frames]
    if numbers != list(range(len(frames))):
        raise Broken(f"`seq` must count from 0 without gaps, and was {numbers[:20]}")
    ends = [bool(frame.get("end_of_stream")) for frame in frames]
    if ends.count(True) != 1 or not ends[-1]:
        raise Broken(f"exactly one frame has end_of_stream, the last one; there were {ends.count(True)}")


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
