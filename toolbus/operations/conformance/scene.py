"""The program under test, the server that it runs on, and what the kit plays around it: raw requests and frames."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.values.descriptors import parse_service, parse_tool
from toolbus.bus.values.results import BrokerError, ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, Check, Outcome, until

SERVICE = "conformance"
LEASE = 2.0
"""Seconds: ``TOOLBUS_LEASE`` of the program under test."""

# Seconds for one check; each waits for conditions with bounds of its own.
_MOST = 60.0
_STARTS = 20.0
_ANSWERS = 10.0
# Seconds for a process to end when it is told to.
_ENDS = 10.0
_MOST_SHOWN = 400

C = TypeVar("C", bound="Scene")


class Program:
    """A command that is started once or several times, in process groups of their own.

    Args:
        command: the words of the command.
        environment: variables beside those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._running: list[asyncio.subprocess.Process] = []
        self._log = Path(tempfile.mkstemp(prefix="toolbus-conformance-", suffix=".log")[1])

    async def start(self, *, pipes: bool = False, **more: str) -> asyncio.subprocess.Process:
        """Start a process.

        Args:
            pipes: its standard input and output are read and written here; otherwise its output goes to a file.
            **more: further variables of its environment.

        Raises:
            ConfigurationError: the command can't be started.
        """
        streams: tuple[int | None, int | IO[bytes]]
        with self._log.open("ab") as log:
            streams = (asyncio.subprocess.PIPE, asyncio.subprocess.PIPE) if pipes else (asyncio.subprocess.DEVNULL, log)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=streams[0],
                    stdout=streams[1],
                    stderr=log,
                    env={**self._environment, **more},
                    start_new_session=True,
                    limit=1 << 24,
                )
            except OSError as error:
                raise ConfigurationError(f"can't start {self._command[0]!r}: {error.strerror}") from None
        self._running.append(process)
        return process

    def check_alive(self) -> None:
        """Check that no process has ended by itself.

        Raises:
            Broken: one has.
        """
        for process in self._running:
            if process.returncode is not None:
                raise Broken(f"the program ended with exit code {process.returncode}{self.output()}")

    def output(self) -> str:
        """Return the end of its output, for messages."""
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        return f"; it said: …{text[-_MOST_SHOWN:]}" if text else ""

    async def stop(self, process: asyncio.subprocess.Process) -> int:
        """Tell a process to end and return its exit code.

        Raises:
            Broken: it did not end; it is killed.
        """
        self._forget(process)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_ENDS):
                return await process.wait()
        except TimeoutError:
            await self._kill(process)
            raise Broken(f"it did not end within {_ENDS:g} s of SIGTERM") from None

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """End a process without a warning."""
        self._forget(process)
        await self._kill(process)

    async def close(self) -> None:
        """End all processes and remove the file of their output."""
        for process in list(self._running):
            await self.kill(process)
        self._log.unlink(missing_ok=True)

    def _forget(self, process: asyncio.subprocess.Process) -> None:
        if process in self._running:
            self._running.remove(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Scene:
    """A program under test, and what the kit plays around it.

    Args:
        settings: the server and namespace, which belong to the kit.
        probe: says anything to the server.
        program: the command that starts a process.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        self.settings = settings
        self.probe = probe
        self.program = program
        self.keys = probe.keys
        self.queue, self.fence = self.keys.queue(SERVICE), self.keys.fence(SERVICE)

    async def prepare(self) -> None:
        """Have the program running.

        Raises:
            Broken: it does not start.
        """
        raise NotImplementedError

    async def finish(self, *, held: bool) -> None:
        """Leave nothing of a check behind that the next one could take for a fault."""
        raise NotImplementedError

    async def exists(self, key: str) -> bool:
        """Return whether the server has a key."""
        return bool(await self.probe.run("EXISTS", key))

    async def waits(self, entry: str) -> bool:
        """Return whether an entry is in the queue."""
        return bool(await self.probe.run("XRANGE", self.queue, entry, entry))


async def run_checks(
    kind: type[C], checks: Sequence[Check[C]], command: Sequence[str], report: Callable[[Outcome], object], *, first_decides: bool = False
) -> list[Outcome]:
    """Run checks of a program, on a server of its own.

    Args:
        kind: of program.
        checks: in their order.
        command: starts the program.
        report: called with each outcome as it comes.
        first_decides: whether a program that does not keep the first of them keeps nothing else, and each check would wait for it.

    Raises:
        ConfigurationError: the command can't be started.
    """
    found: list[Outcome] = []
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="toolbus-scripts-") as folder:
        scripts.write_scripts(Path(folder))
        settings = Settings.load({}, url=server.url, namespace="conformance", lease=LEASE)
        environment = {
            "TOOLBUS_URL": settings.url,
            "TOOLBUS_NAMESPACE": settings.namespace,
            "TOOLBUS_LEASE": f"{LEASE:g}",
            "TOOLBUS_GRACE": "1",
            "TOOLBUS_SERVICE": SERVICE,
            "TOOLBUS_SCRIPTS": folder,
        }
        program = Program(command, environment)
        try:
            async with Probe(settings) as probe:
                scene = kind(settings, probe, program)
                for check in checks:
                    found.append(await _outcome_of(check, scene))
                    report(found[-1])
                    if first_decides and not found[0].holds:
                        break
        finally:
            await program.close()
    return found


async def _outcome_of(check: Check[C], scene: C) -> Outcome:
    """Run one check."""
    problem = ""
    try:
        async with asyncio.timeout(_MOST):
            await scene.prepare()
            await check.run(scene)
    except Broken as broken:
        problem = str(broken)
    except TimeoutError:
        problem = f"the check was not over after {_MOST:g} s"
    except BrokerError as error:
        problem = f"the server refused a command: {error}"
    finally:
        await scene.finish(held=not problem)
    return Outcome(check.level, check.name, check.meaning, problem)


class Sent(msgspec.Struct):
    """A request that was published: its correlation id and the entry's id."""

    id: str
    entry: str


class WorkerScene(Scene):
    """Starts workers, publishes requests as they stand, and reads the frames as they come."""

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
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
        await until(self.instances, _STARTS, f"no worker of {SERVICE!r} is in the registry{self.program.output()}")
        await self.listen()

    async def finish(self, *, held: bool) -> None:
        """After a fault, stop the worker and empty the server."""
        if held:
            return
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
        return not await self.waits(sent.entry)

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


class AgentScene(Scene):
    """Starts an agent, tells it what to call, takes its requests, and writes frames as it likes.

    The agent reads a JSON object a line, ``{"call": NAME, "service", "tool", "arguments", "timeout"}`` or ``{"cancel": NAME}``, and
    writes one a line: ``{"call", "text"}``, ``{"call", "reset": true}``, ``{"call", "end": {"text", "error"}}``.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
        self.events: dict[str, list[dict[str, Any]]] = {}
        self._seen = ""
        self._agent: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._wrong = ""

    async def prepare(self) -> None:
        """Start the agent beside a service that it can call."""
        self.events, self._seen, self._wrong = {}, "0-0", ""
        await self.probe.run("FLUSHDB")
        await self._register()
        self._agent = await self.program.start(pipes=True)
        self._reading = asyncio.create_task(self._read())

    async def finish(self, *, held: bool) -> None:
        """End the agent."""
        if self._agent is not None:
            await self.program.kill(self._agent)
            self._agent = None
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
        args = (SERVICE, secrets.token_hex(16), "kit", "d", document, lease, secrets.token_hex(8), "", SERVICE, 0, tool.name)
        answer = await self.probe.script(scripts.REGISTER, (*tables, *own), *common, *args)
        if answer[0] != b"ok":
            raise Broken(f"the kit can't register its service: {answer}")

    # -- the agent --------------------------------------------------------------------------------

    async def call(
        self, name: str, text: str = "x", *, timeout: float = 30.0, service: str = SERVICE, tool: str = "conformance-echo"
    ) -> None:
        """Tell the agent to call a tool."""
        await self._send({"call": name, "service": service, "tool": tool, "arguments": {"text": text}, "timeout": timeout})

    async def called(self, name: str = "1", text: str = "x", *, timeout: float = 30.0) -> Taken:
        """Tell the agent to call the tool of the service, and return its request."""
        await self.call(name, text, timeout=timeout)
        return await self.taken()

    async def cancel(self, name: str) -> None:
        """Tell the agent to cancel a call."""
        await self._send({"cancel": name})

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

    async def _send(self, what: dict[str, Any]) -> None:
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        try:
            self._agent.stdin.write(json.dumps(what).encode() + b"\n")
            await self._agent.stdin.drain()
        except OSError:
            raise Broken(f"the agent has ended{self.program.output()}") from None

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
                raise Broken(f"the agent ended with exit code {self._agent.returncode}{self.program.output()}")
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
