"""An agent under test, and the workers that the kit plays around it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.values.descriptors import parse_service, parse_tool
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, broken_if, until
from toolbus.operations.conformance.proxy import Proxy, each_value, words_of
from toolbus.operations.conformance.scene import MOST_WRITTEN, SERVICE, STARTS, TOO_MUCH, Program, Scene, fields_of, shown


class Taken(msgspec.Struct):
    """A request that the agent published, as it stands in the queue.

    Attributes:
        server, after: its fields ``s`` and ``p``; empty when it has none.
        run: the run token of frames that are sent for it.
    """

    entry: str
    request: dict[str, Any]
    due: int
    server: str
    after: str
    run: str

    @property
    def id(self) -> str:
        """The correlation id."""
        return str(self.request["id"])

    @property
    def agent(self) -> str:
        """The id of the agent."""
        return str(self.request["agent"])


def end(seq: int, **more: object) -> dict[str, Any]:
    """Return the last frame of a run; ``more`` are further fields of it."""
    return {"seq": seq, "kind": "end", "end_of_stream": True, **more}


class Ear:
    """Hears what is published on a channel; use it with ``async with``."""

    def __init__(self, port: int, channel: str) -> None:
        self._port = port
        self._channel = channel
        self.heard: list[str] = []

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._subscribed = asyncio.Event()
        self._reading = asyncio.create_task(each_value(reader, self._take))
        self._writer.write(b"*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n" % (len(self._channel), self._channel.encode()))
        await self._subscribed.wait()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def has_received(self, word: str) -> bool:
        """Return whether a message was published."""
        return word in self.heard

    def _take(self, value: bytes) -> None:
        if value.startswith(b"*3\r\n$7\r\nmessage"):
            self.heard.append(words_of(value)[2].decode("utf-8", "replace"))
        else:
            self._subscribed.set()


class AgentScene(Scene):
    """Starts an agent, tells it what to call, takes its requests, and writes frames as it likes.

    The agent reads a JSON object a line, ``{"call": NAME, "service", "tool", "arguments", "timeout", "key", "user", "session"}``,
    ``{"cancel": NAME}`` or ``{"close": SESSION, "user"}``, and writes one a line: ``{"call", "text"}``, ``{"call", "reset": true}``,
    ``{"call", "end": {"text", "error"}}``.
    It speaks to the server through a proxy.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._sent: list[dict[str, Any]] = []
        self._seen: dict[str, str] = {}
        self._agent: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._wrong = ""
        self.proxy = Proxy(self.port)

    def forget_frames(self) -> None:
        """Forget what was sent to the agent, and what it told, until now."""
        self.events, self._sent = {}, []

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that were sent to the agent, and the last events that it told."""
        told = [event for events in self.events.values() for event in events]
        return (*shown(self._sent), *(f"it told {each}" for each in shown(told)))

    async def prepare(self) -> None:
        """Start the agent beside a service that it can call."""
        self._seen, self._wrong = {}, ""
        await self.probe.run("FLUSHDB")
        await self.register(SERVICE, f"{SERVICE}-echo")
        self.proxy = Proxy(self.port)
        await self.proxy.start()
        await self.start()

    async def finish(self, *, held: bool) -> None:
        """End the agent."""
        await self.end()
        await self.proxy.close()

    async def start(self) -> None:
        """Start an agent."""
        self._agent = await self.program.start(pipes=True, TOOLBUS_URL=self.url_of(self.proxy))
        self._reading = asyncio.create_task(self._read(self._agent))

    async def end(self) -> None:
        """Kill the agent, if it runs."""
        if self._agent is not None:
            await self.program.kill(self._agent)
            self._agent = None
        if self._reading is not None:
            await cancelled(self._reading)
            self._reading = None

    async def exit_code_of(self, within: float) -> int | None:
        """Return the exit code of the agent when it has ended by itself; None when it has not."""
        return None if self._agent is None else await self.program.ended(self._agent, within)

    # -- the services that are played -------------------------------------------------------------

    def publication(self, service: str, *tools: str, effect: str = "read", sticky: bool = False, first: Mapping[str, object] = {}) -> bytes:
        """Return the publication of a service whose tools take a text.

        Args:
            service: its id.
            *tools: names of its tools.
            effect: of the tools.
            sticky: it is a service with sticky-sessions.
            first: fields of the first tool, which need not be right.
        """
        described = {"type": "tool-service", "description": "Return a text.", "service": service, "effect": effect}
        parsed = parse_service({"id": service, "sticky_sessions": sticky})
        text = {"name": "text", "type": "string", "description": "a text", "required": True}
        found = msgspec.to_builtins([parse_tool({**described, "name": name, "arguments": [text]}, parsed) for name in tools])
        found[0].update(first)
        return msgspec.json.encode({"service": parsed, "tools": found, "owner": "kit", "digest": "d"})

    async def register(self, service: str, *tools: str, **more: Any) -> str:
        """Publish a service as a worker that never leaves, and return its instance; the arguments are those of ``publication``."""
        keys, instance, lease = self.keys, secrets.token_hex(16), 3_600_000
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        own = (keys.instances(service), keys.queue(service), keys.fence(service), keys.cancelled(service))
        common = (keys.prefix, secrets.token_hex(6), lease, 60_000)
        worker = (service, instance, "kit", "d", self.publication(service, *tools, **more), lease, secrets.token_hex(8))
        answer = await self.probe.script(scripts.REGISTER, (*tables, *own), *common, *worker, "", service, 0, *tools)
        broken_if(answer[0] != b"ok", f"the kit can't register its service: {answer}")
        return instance

    async def write_silently(self, service: str, tool: str, token: str) -> None:
        """Write a service into the registry as a change of that token of which the log says nothing."""
        await self._write(service, tool, "redis.call('HSET', KEYS[2], 'token', ARGV[4])", self.keys.meta, token)

    async def write_into_the_log(self, service: str, tool: str) -> None:
        """Write a service into the registry as a change of which the log alone tells: `reg:meta` keeps the token of the change before."""
        before = (await self.probe.run("HGET", self.keys.meta, "token")).decode()
        logged = "redis.call('XADD', KEYS[2], '*', 'op', 'up', 'key', ARGV[1], 'doc', ARGV[3], 'token', 'logged', 'prev', ARGV[4])"
        await self._write(service, tool, logged, self.keys.log, before)

    async def _write(self, service: str, tool: str, told: str, key: str, token: str) -> None:
        await self.probe.run("XGROUP", "CREATE", self.keys.queue(service), "g", "0", "MKSTREAM")
        document = self.publication(service, tool)
        # In one script, so that nobody reads one without the other.
        script = "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) " + told
        await self.probe.run("EVAL", script, 2, self.keys.services, key, service, b"+" + document, document, token)

    # -- the agent --------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        text: str | None = "x",
        *,
        timeout: float = 30.0,
        service: str = SERVICE,
        tool: str = f"{SERVICE}-echo",
        **more: str,
    ) -> None:
        """Tell the agent to call a tool; without a service it is to find the tool in the registry. ``more`` are further fields.

        Without a text the argument is missing.
        """
        arguments = {} if text is None else {"text": text}
        asked = {"call": name, "service": service, "tool": tool, "arguments": arguments, "timeout": timeout, **more}
        await self.tell(**{key: value for key, value in asked.items() if value != ""})

    async def called(self, name: str = "1", text: str = "x", *, queue: str = SERVICE, **more: Any) -> Taken:
        """Tell the agent to call a tool, and return its request."""
        await self.call(name, text, **more)
        return await self.taken(queue)

    async def answered(self, name: str = "1") -> Taken:
        """Tell the agent to call a tool, answer its request, and return that when the agent has told the end."""
        taken = await self.called(name)
        await self.answer(taken)
        await self.ended(name)
        return taken

    async def finished(self, name: str, taken: Taken, text: str) -> None:
        """Answer a request with a text, and check that the agent tells that as the end of the call."""
        await self.answer(taken, text)
        await self.ended_as(name, text, None)

    async def answered_by(
        self, text: str | None, *entries: Sequence[dict[str, Any]], error: str | None = None, within: float = 10.0
    ) -> None:
        """Tell the agent to make the call `1`, send the frames of each entry for its request, and check the end that it tells.

        Args:
            text, error, within: see ``ended_as``.
            *entries: each with its frames.
        """
        taken = await self.called()
        for frames in entries:
            await self.send(taken, *frames)
        await self.ended_as("1", text, error, within=within)

    async def streamed(self, text: str) -> Taken:
        """Tell the agent to make the call `1`, send text for its request, and return that when the agent has told the text."""
        taken = await self.called()
        await self.send(taken, {"seq": 0, "response": text})
        await until(lambda: self.has_text("1", text), 5.0, "the first text of the call was not told before more came")
        return taken

    async def found(self, tool: str, queue: str, within: float) -> Taken:
        """Return the request of a call by a tool's name, which is made again and again until the agent knows the tool.

        Raises:
            Broken: the agent does not come to know it.
        """
        names: list[str] = []

        async def request() -> Taken | None:
            self.check_alive()
            if not names or self.ends(names[-1]):
                names.append(f"{tool} {len(names)}")
                await self.call(names[-1], service="", tool=tool, timeout=within + 10.0)
            return await self.request_of(queue)

        return await until(request, within, f"it does not know the tool {tool!r}, which was published")

    @property
    def _input(self) -> asyncio.StreamWriter:
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        return self._agent.stdin

    async def leave(self) -> None:
        """Close the agent's standard input, and wait for its end."""
        self._input.close()
        broken_if(await self.exit_code_of(10.0) is None, "it did not end within 10 s of the end of its input")
        await self.end()

    async def tell(self, **what: object) -> None:
        """Write a line to the agent."""
        stdin = self._input
        try:
            stdin.write(json.dumps(what).encode() + b"\n")
            await stdin.drain()
        except OSError:
            code = await self.exit_code_of(1.0)
            raise Broken("the agent has closed its standard input" if code is None else f"the agent ended with exit code {code}") from None

    async def _read(self, agent: asyncio.subprocess.Process) -> None:
        """Take in what an agent writes, until it ends, or writes what is no event, or too much."""
        if agent.stdout is None:
            return
        size = 0
        try:
            async for line in agent.stdout:
                size += len(line)
                self._take_in(line)
                if size > MOST_WRITTEN:
                    self._wrong = TOO_MUCH
                if self._wrong:
                    return
        except ValueError:
            self._wrong = "it wrote a line that is too long"

    def _take_in(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            self.events.setdefault(event["call"], []).append(event)
        except (ValueError, KeyError, TypeError, RecursionError):
            self._wrong = f"it wrote a line that is no event: {line[:100]!r}"

    def ends(self, name: str) -> list[dict[str, Any]]:
        """Return the ends that the agent has told of a call."""
        return [event["end"] for event in self.events.get(name, []) if "end" in event]

    def text(self, name: str) -> str:
        """Return the text that the agent has told of a call since its last reset."""
        text = ""
        for event in self.events.get(name, []):
            text = "" if event.get("reset") else text + event.get("text", "")
        return text

    async def has_text(self, name: str, text: str) -> bool:
        """Return whether the text that the agent has told of a call is this one."""
        self.check_alive()
        return self.text(name) == text

    def check_alive(self) -> None:
        """Check that the agent runs, and has written nothing but events.

        Raises:
            Broken: it does not, or has.
        """
        self.program.check_written()
        broken_if(self._wrong, self._wrong)
        if self._agent is not None and self._agent.returncode is not None:
            raise Broken(f"the agent ended with exit code {self._agent.returncode}")

    async def ended(self, name: str, within: float = 10.0) -> dict[str, Any]:
        """Return the end that the agent told of a call.

        Raises:
            Broken: it told none, or several.
        """

        async def found() -> list[dict[str, Any]]:
            self.check_alive()
            return self.ends(name)

        ends = await until(found, within, f"the agent told no end of call {name!r}")
        broken_if(len(ends) != 1, f"the agent told {len(ends)} ends of call {name!r}")
        return ends[0]

    async def ended_as(self, name: str, text: str | None, error: str | None, *, within: float = 10.0) -> None:
        """Wait for the end of a call, and check it.

        Args:
            name: of the call.
            text: its text; None when any will do.
            error: the type of its error; None when it is to be a success.
            within: seconds.

        Raises:
            Broken: it is another one, or none came.
        """
        told = await self.ended(name, within)
        found = told.get("error")
        kind = found.get("type") if isinstance(found, dict) else None
        if kind != error or (text is not None and told.get("text") != text):
            raise Broken(f"the call ended with {told.get('text')!r} and the error {kind}; expected were {text!r} and {error}")

    # -- the worker that is played ----------------------------------------------------------------

    async def taken(self, service: str = SERVICE) -> Taken:
        """Return the next request of a service's queue.

        Raises:
            Broken: none came, or it can't be read.
        """

        async def found() -> Taken | None:
            self.check_alive()
            return await self.request_of(service)

        return await until(found, STARTS, "no request came")

    async def request_of(self, service: str) -> Taken | None:
        """Return the next request of a service's queue if there is one now."""
        seen = self._seen.get(service, "0-0")
        entries = await self.probe.run("XRANGE", self.keys.queue(service), f"({seen}", "+", "COUNT", 1)
        if not entries:
            return None
        self.has_begun = True
        entry, flat = entries[0]
        self._seen[service] = entry.decode()
        fields = fields_of(flat)
        try:
            request = json.loads(fields[b"r"].decode("utf-8"))
            due = int(fields[b"d"])
        except (KeyError, ValueError) as error:
            raise Broken(f"the request can't be read: {error}") from None
        server, after = (fields.get(name, b"").decode("utf-8", "replace") for name in (b"s", b"p"))
        return Taken(entry.decode(), request, due, server, after, secrets.token_hex(8))

    async def take(self, service: str = SERVICE) -> None:
        """Have a worker that the kit plays take the requests of a queue."""
        await self.probe.run("XREADGROUP", "GROUP", "g", "kit", "COUNT", 100, "STREAMS", self.keys.queue(service), ">")

    async def send(self, taken: Taken, *frames: dict[str, Any]) -> None:
        """Write frames of a request; each has the request's id, the run and attempt 1 unless it says otherwise."""
        whole = [{"id": taken.id, "run": taken.run, **frame} for frame in frames]
        self._sent += whole
        await self.raw(taken, json.dumps(whole, ensure_ascii=False).encode())

    async def raw(self, taken: Taken, document: bytes) -> None:
        """Write a document in place of a list of frames."""
        stream = self.keys.call(taken.id) if taken.request.get("shared") else self.keys.replies(taken.agent)
        await self.probe.run("XADD", stream, "NOMKSTREAM", "*", "f", document)

    async def answer(self, taken: Taken, *texts: str, **more: Any) -> None:
        """Answer a request with text and an end, which is a successful one unless ``more`` says otherwise."""
        frames = [{"seq": number, "response": text} for number, text in enumerate(texts)]
        await self.send(taken, *frames, end(len(texts), **more))
        await self.probe.run("XDEL", self.keys.queue(taken.request["service"]), taken.entry)
