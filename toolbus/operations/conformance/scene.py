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
from typing import IO, Any, Self, TypeVar

import msgspec

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.values.descriptors import parse_service, parse_tool
from toolbus.bus.values.results import BrokerError, ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, NotChecked, Outcome, Requirement, Status, until
from toolbus.operations.conformance.proxy import Proxy, each_value, words_of

SERVICE = "conformance"
LEASE = 2.0
"""Seconds: ``TOOLBUS_LEASE`` of the program under test."""

STARTS = 20.0
"""Seconds for a program to start."""

# Seconds for one check; each waits for conditions with bounds of its own.
_MOST = 60.0
_ANSWERS = 10.0
# Seconds for a process to end when it is told to.
_ENDS = 10.0
_MOST_SHOWN = 2_000
_MOST_FRAMES = 12
_MOST_WIDE = 200
# Bytes of an entry with several frames; one frame with a piece of 65,536 bytes may take six times that.
_MOST_ENTRY = 6 * 65_536 + 4_096

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
                raise Broken(f"the program ended with exit code {process.returncode}")

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended by itself; None while all run."""
        return next((process.returncode for process in self._running if process.returncode is not None), None)

    def forget_output(self) -> None:
        """Forget what it has written until now."""
        self._log.write_bytes(b"")

    def output(self) -> str:
        """Return the end of what it has written."""
        text = self._log.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
        return f"…{text[-_MOST_SHOWN:]}" if len(text) > _MOST_SHOWN else text

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

    def forget_frames(self) -> None:
        """Forget the frames that were seen until now."""
        raise NotImplementedError

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that were seen, as JSON that is short enough to read."""
        raise NotImplementedError

    async def exists(self, key: str) -> bool:
        """Return whether the server has a key."""
        return bool(await self.probe.run("EXISTS", key))

    async def waits(self, entry: str) -> bool:
        """Return whether an entry is in the queue."""
        return bool(await self.probe.run("XRANGE", self.queue, entry, entry))


async def run_checks(
    kind: type[C],
    requirements: Sequence[Requirement[C]],
    command: Sequence[str],
    report: Callable[[Outcome], object],
    *,
    first_decides: bool = False,
) -> list[Outcome]:
    """Check what a program keeps, on a server of its own.

    Args:
        kind: of program.
        requirements: in their order.
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
                for each in requirements:
                    blocked = f"{found[0].id} is broken" if first_decides and found and found[0].status == "broken" else each.unchecked
                    found.append(await _outcome_of(each, scene, blocked))
                    report(found[-1])
        finally:
            await program.close()
    return found


async def _outcome_of(required: Requirement[C], scene: C, blocked: str) -> Outcome:
    """Check one requirement, unless something keeps that from being done."""
    status: Status = "holds"
    problem, begun = "", time.monotonic()
    if required.run is None or blocked:
        return Outcome(required.id, required.level, required.name, required.meaning, "not checked", blocked)
    scene.program.forget_output()
    scene.forget_frames()
    exit_code: int | None = None
    try:
        async with asyncio.timeout(_MOST):
            await scene.prepare()
            await required.run(scene)
    except Broken as broken:
        status, problem = "broken", str(broken)
    except NotChecked as reason:
        status, problem = "not checked", str(reason)
    except TimeoutError:
        status, problem = "broken", f"the check was not over after {_MOST:g} s"
    except BrokerError as error:
        status, problem = "broken", f"the server refused a command: {error}"
    finally:
        exit_code = scene.program.exit_code()
        await scene.finish(held=status != "broken")
    frames, output = (scene.seen(), scene.program.output()) if status == "broken" else ((), "")
    return Outcome(
        required.id, required.level, required.name, required.meaning, status, problem, frames, output, exit_code, time.monotonic() - begun
    )  # fmt: skip


def _shown(documents: Sequence[object]) -> tuple[str, ...]:
    texts = [json.dumps(each, ensure_ascii=False) for each in documents[-_MOST_FRAMES:]]
    return tuple(text if len(text) <= _MOST_WIDE else f"{text[:_MOST_WIDE]}… ({len(text):,} characters)" for text in texts)


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
        self._played: list[str] = []
        self._read = "0-0"
        # Several checks of one moment read the stream together.
        self._reading = asyncio.Lock()
        self._frames: dict[str, list[dict[str, Any]]] = {}

    def forget_frames(self) -> None:
        """Forget the frames that were seen until now."""
        self._frames.clear()

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that the worker sent, as JSON that is short enough to read."""
        return _shown([frame for frames in self._frames.values() for frame in frames])

    # -- the worker -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Have one worker in the registry, and a reply stream of this agent."""
        if self.worker is None or self.worker.returncode is not None:
            self.worker = await self.program.start()
        await until(self.instances, STARTS, f"no worker of {SERVICE!r} is in the registry")
        await self.listen()

    async def finish(self, *, held: bool) -> None:
        """After a fault, stop the worker and empty the server."""
        await self._dismiss()
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

    async def instances(self) -> list[str]:
        """Return the instances of the service whose leases have not ended."""
        now = await self.now()
        members = await self.probe.run("ZRANGEBYSCORE", self.keys.live, now, "+inf")
        found = [each.decode().partition("/")[2] for each in members if each.startswith(f"{SERVICE}/".encode())]
        return [each for each in found if each not in self._played]

    async def tell(self, words: str) -> None:
        """Publish a message to the workers of the service."""
        await self.probe.run("PUBLISH", self.keys.wake(SERVICE), words)

    async def play_worker(self, *, lives: bool, digest: str = "") -> str:
        """Make a consumer of a worker that the kit plays.

        Args:
            lives: its lease lasts until the end of the check; otherwise its process is known to have ended.
            digest: of the publication with which it is registered; "" when it is not.
        """
        name = secrets.token_hex(8)
        await self.probe.run("XGROUP", "CREATECONSUMER", self.queue, "g", name)
        lease = int(_MOST * 1000) if lives else int(LEASE * 1000)
        await self.probe.run("HSET", self.fence, f"c:{name}", "1", f"l:{name}", lease, *(() if lives else (f"x:{name}", "1")))
        if lives:
            await self.probe.run("ZADD", self.keys.live, await self.now() + lease, f"{SERVICE}/{name}")
            self._played.append(name)
        if digest:
            await self.probe.run("HSET", self.keys.instances(SERVICE), f"i:{name}", f"1:{digest}")
        return name

    async def move(self, sent: Sent, to: str, deliveries: int = 2) -> None:
        """Move an entry from the worker to another. As with every script that does so, the fence's counter of who loses it goes up."""
        mine, _, _ = await self.holder(sent)
        await self.probe.run(
            "EVAL",
            "redis.call('HINCRBY', KEYS[2], 'c:' .. ARGV[1], 1) "
            "return redis.call('XCLAIM', KEYS[1], 'g', ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID')",
            2, self.queue, self.fence, mine, to, sent.entry, deliveries,
        )  # fmt: skip

    async def keep(self, sent: Sent, owner: str, deliveries: int = 2) -> None:
        """Renew an entry that a worker holds which the kit plays."""
        await self.probe.run("XCLAIM", self.queue, "g", owner, 0, sent.entry, "RETRYCOUNT", deliveries, "JUSTID")

    async def remove(self, sent: Sent) -> None:
        """Take an entry out of the queue, as its worker does at its end."""
        await self.probe.run("XACK", self.queue, "g", sent.entry)
        await self.probe.run("XDEL", self.queue, sent.entry)

    async def _dismiss(self) -> None:
        """End the workers that the kit played."""
        for name in self._played:
            await self.probe.run("ZREM", self.keys.live, f"{SERVICE}/{name}")
            await self.probe.run("HDEL", self.keys.instances(SERVICE), f"i:{name}")
            await self.probe.run("HDEL", self.fence, f"c:{name}", f"l:{name}")
        self._played.clear()

    async def see_the_end(self, instance: str) -> None:
        """Say that the process of a worker has ended, as whoever sees it end does."""
        keys = self.keys
        registry = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        own = (keys.instances(SERVICE), self.queue, self.fence, keys.cancelled(SERVICE))
        common = (keys.prefix, secrets.token_hex(6), 3_600_000, 60_000)
        await self.probe.script(scripts.UNREGISTER, (*registry, *own), *common, f"{SERVICE}/{instance}")
        await self.probe.script(scripts.RETIRE, (*own[1:], own[0], keys.live), instance, SERVICE, "1")
        await self.tell(f"dead {SERVICE}")

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
            if len(fields[b"f"]) > _MOST_ENTRY:
                raise Broken(f"an entry of the reply stream has {len(fields[b'f']):,} bytes, more than {_MOST_ENTRY:,}")
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

    def _take(self, value: bytes) -> None:
        if value.startswith(b"*3\r\n$7\r\nmessage"):
            self.heard.append(words_of(value)[2].decode("utf-8", "replace"))
        else:
            self._subscribed.set()


class AgentScene(Scene):
    """Starts an agent, tells it what to call, takes its requests, and writes frames as it likes.

    The agent reads a JSON object a line, ``{"call": NAME, "service", "tool", "arguments", "timeout", "key", "user", "session"}`` or
    ``{"cancel": NAME}``, and writes one a line: ``{"call", "text"}``, ``{"call", "reset": true}``, ``{"call", "end": {"text", "error"}}``.
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
        self.port = int(settings.url.rpartition(":")[2].partition("/")[0])
        self.proxy = Proxy(self.port)

    def forget_frames(self) -> None:
        """Forget what was sent to the agent, and what it told, until now."""
        self.events, self._sent = {}, []

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that were sent to the agent, and the last events that it told."""
        told = [event for events in self.events.values() for event in events]
        return (*_shown(self._sent), *(f"it told {each}" for each in _shown(told)))

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
        url = self.settings.url.replace(f":{self.port}", f":{self.proxy.port}")
        self._agent = await self.program.start(pipes=True, TOOLBUS_URL=url)
        self._reading = asyncio.create_task(self._read(self._agent))

    async def end(self) -> None:
        """Kill the agent, if it runs."""
        if self._agent is not None:
            await self.program.kill(self._agent)
            self._agent = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    async def exit_code_of(self, within: float) -> int | None:
        """Return the exit code of the agent when it has ended by itself; None when it has not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await self._agent.wait() if self._agent is not None else None
        return None

    # -- the services that are played -------------------------------------------------------------

    def publication(self, service: str, *tools: str, **more: Any) -> bytes:
        """Return the publication of a service whose tools take a text.

        Args:
            service: its id.
            *tools: names of its tools.
            **more: ``effect`` of the tools, and ``sticky`` for a service with sticky-sessions.
        """
        described = {"type": "tool-service", "description": "Return a text.", "service": service, "effect": more.get("effect", "read")}
        parsed = parse_service({"id": service, "sticky_sessions": bool(more.get("sticky"))})
        text = {"name": "text", "type": "string", "description": "a text"}
        found = [parse_tool({**described, "name": name, "arguments": [text]}, parsed) for name in tools]
        return msgspec.json.encode({"service": parsed, "tools": found, "owner": "kit", "digest": "d"})

    async def register(self, service: str, *tools: str, document: bytes = b"", **more: Any) -> str:
        """Publish a service as a worker that never leaves, and return its instance.

        Args:
            service: its id.
            *tools: names of its tools.
            document: the publication, instead of one that is made of the others.
            **more: see ``publication``.
        """
        keys, instance, lease = self.keys, secrets.token_hex(16), 3_600_000
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        own = (keys.instances(service), keys.queue(service), keys.fence(service), keys.cancelled(service))
        common = (keys.prefix, secrets.token_hex(6), lease, 60_000)
        whole = document or self.publication(service, *tools, **more)
        args = (service, instance, "kit", "d", whole, lease, secrets.token_hex(8), "", service, 0, *tools)
        answer = await self.probe.script(scripts.REGISTER, (*tables, *own), *common, *args)
        if answer[0] != b"ok":
            raise Broken(f"the kit can't register its service: {answer}")
        return instance

    async def write_silently(self, service: str, tool: str, token: str) -> None:
        """Write a service into the registry as a change of that token of which the log says nothing."""
        await self.probe.run("XGROUP", "CREATE", self.keys.queue(service), "g", "0", "MKSTREAM")
        row = b"+" + self.publication(service, tool)
        # In one script, so that nobody reads one without the other.
        await self.probe.run(
            "EVAL", "redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) redis.call('HSET', KEYS[2], 'token', ARGV[3])",
            2, self.keys.services, self.keys.meta, service, row, token,
        )  # fmt: skip

    # -- the agent --------------------------------------------------------------------------------

    async def call(
        self, name: str, text: str = "x", *, timeout: float = 30.0, service: str = SERVICE, tool: str = f"{SERVICE}-echo", **more: str
    ) -> None:
        """Tell the agent to call a tool; without a service it is to find the tool in the registry. ``more`` are further fields."""
        asked = {"call": name, "service": service, "tool": tool, "arguments": {"text": text}, "timeout": timeout, **more}
        await self._tell({key: value for key, value in asked.items() if value != ""})

    async def called(self, name: str = "1", text: str = "x", *, queue: str = SERVICE, **more: Any) -> Taken:
        """Tell the agent to call a tool, and return its request."""
        await self.call(name, text, **more)
        return await self.taken(queue)

    async def found(self, tool: str, queue: str, within: float) -> Taken:
        """Return the request of a call by a tool's name, which is made again and again until the agent knows the tool.

        Raises:
            Broken: the agent does not come to know it.
        """
        end, number, name = time.monotonic() + within, 0, ""
        while time.monotonic() < end:
            self.check_alive()
            if not name or any("end" in event for event in self.events.get(name, [])):
                name, number = f"{tool} {number}", number + 1
                await self.call(name, service="", tool=tool, timeout=within + 10.0)
            if found := await self.request_of(queue):
                return found
            await asyncio.sleep(0.02)
        raise Broken(f"it does not know the tool {tool!r} {within:g} s after it was published")

    async def cancel(self, name: str) -> None:
        """Tell the agent to cancel a call."""
        await self._tell({"cancel": name})

    async def leave(self) -> int:
        """Close the agent's standard input and return its exit code."""
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        self._agent.stdin.close()
        code = await self.exit_code_of(10.0)
        if code is None:
            raise Broken("it did not end within 10 s of the end of its input")
        await self.end()
        return code

    async def _tell(self, what: dict[str, Any]) -> None:
        if self._agent is None or self._agent.stdin is None:
            raise Broken("the agent does not run")
        try:
            self._agent.stdin.write(json.dumps(what).encode() + b"\n")
            await self._agent.stdin.drain()
        except OSError:
            raise Broken("the agent has ended") from None

    async def _read(self, agent: asyncio.subprocess.Process) -> None:
        if agent.stdout is None:
            return
        async for line in agent.stdout:
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

    def check_alive(self) -> None:
        """Check that the agent runs, and has written nothing but events.

        Raises:
            Broken: it does not, or has.
        """
        if self._wrong:
            raise Broken(self._wrong)
        if self._agent is not None and self._agent.returncode is not None:
            raise Broken(f"the agent ended with exit code {self._agent.returncode}")

    async def ended(self, name: str, within: float = 10.0) -> dict[str, Any]:
        """Return the end that the agent told of a call.

        Raises:
            Broken: it told none, or several.
        """

        async def found() -> list[dict[str, Any]]:
            self.check_alive()
            return [event["end"] for event in self.events.get(name, []) if "end" in event]

        ends = await until(found, within, f"the agent told no end of call {name!r}")
        if len(ends) != 1:
            raise Broken(f"the agent told {len(ends)} ends of call {name!r}")
        return ends[0]

    # -- the worker that is played ----------------------------------------------------------------

    async def taken(self, service: str = SERVICE, within: float = STARTS) -> Taken:
        """Return the next request of a service's queue.

        Raises:
            Broken: none came, or it can't be read.
        """

        async def found() -> Taken | None:
            self.check_alive()
            return await self.request_of(service)

        return await until(found, within, "no request came")

    async def request_of(self, service: str) -> Taken | None:
        """Return the next request of a service's queue if there is one now."""
        seen = self._seen.get(service, "0-0")
        entries = await self.probe.run("XRANGE", self.keys.queue(service), f"({seen}", "+", "COUNT", 1)
        if not entries:
            return None
        entry, flat = entries[0]
        self._seen[service] = entry.decode()
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            request = json.loads(fields[b"r"].decode("utf-8"))
            due = int(fields[b"d"])
        except (KeyError, ValueError) as error:
            raise Broken(f"the request can't be read: {error}") from None
        server, after = (fields.get(name, b"").decode("utf-8", "replace") for name in (b"s", b"p"))
        return Taken(entry.decode(), request, due, server, after, secrets.token_hex(8))

    async def take(self, taken: Taken, service: str = SERVICE) -> None:
        """Have a worker that the kit plays take the requests of a queue, up to this one."""
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

    async def answer(self, taken: Taken, *texts: str, **end: Any) -> None:
        """Answer a request with text and a successful end."""
        frames = [{"seq": number, "response": text} for number, text in enumerate(texts)]
        await self.send(taken, *frames, {"seq": len(texts), "kind": "end", "end_of_stream": True, **end})
        await self.probe.run("XDEL", self.keys.queue(taken.request["service"]), taken.entry)
