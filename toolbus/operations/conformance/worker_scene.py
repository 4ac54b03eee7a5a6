"""A worker under test, and the agents and other workers that the kit plays around it."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import msgspec

from toolbus.bus.broker.registry.registry import TTL
from toolbus.bus.broker.replies.finish import MOST_BYTES
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.values.envelope import Frame
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, until
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.scene import BESIDE, LEASE, MOST, MOST_WRITTEN, SERVICE, STARTS, Program, Scene, shown

_ANSWERS = 10.0
# Bytes of an entry with one frame: each byte of a piece may take six in JSON.
_MOST_ENTRY = 6 * 65_536 + 4_096


class Sent(msgspec.Struct):
    """A request that was published: its correlation id, the entry's id, and the document."""

    id: str
    entry: str
    document: bytes = b""

    def __str__(self) -> str:
        """Return what a reader of a problem knows the call by: its id, its tool, and its arguments."""
        tool, _, arguments = self.document.partition(b'"tool": ')[2].partition(b', "arguments": ')
        return f"the call {self.id} of {tool.decode('utf-8', 'replace')} {arguments[:100].decode('utf-8', 'replace')}"


class WorkerScene(Scene):
    """Starts workers, publishes requests as they stand, and reads the frames as they come."""

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
        self.agent = secrets.token_hex(16)
        self.worker: asyncio.subprocess.Process | None = None
        self.dead_letters = self.keys.dead_letters(SERVICE)
        # How many calls it runs at the same time, once that was measured.
        self.slots = 0
        self._played: list[str] = []
        self._read = "0-0"
        # Several checks of one moment read the stream together.
        self._reading = asyncio.Lock()
        self._frames: dict[str, list[dict[str, Any]]] = {}
        self._size = 0

    def forget_frames(self) -> None:
        """Forget the frames that were seen until now."""
        self._frames.clear()
        self._size = 0

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that the worker sent, as JSON that is short enough to read."""
        return shown([frame for frames in self._frames.values() for frame in frames])

    # -- the worker -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Have one worker in the registry, and a reply stream of this agent."""
        if self.worker is None or self.worker.returncode is not None:
            self.worker = await self.program.start()
        await self.joined(set(), f"no worker of {SERVICE!r} is in the registry")
        await self.listen()

    async def finish(self, *, held: bool) -> None:
        """After a fault, or a check that leaves requests behind, stop the worker and empty the server."""
        await self._dismiss()
        # What must run alone in the next check would wait for what still runs of this one.
        if held and not any([await self.probe.run("XLEN", self.keys.queue(service)) for service in (SERVICE, BESIDE)]):
            return
        await self.kill_worker()
        await self.probe.run("FLUSHDB")
        self._read = "0-0"

    async def start_behind(self, proxy: Proxy, **more: str) -> asyncio.subprocess.Process:
        """Start the worker anew, have it speak to the server through a proxy, and return its process; ``more`` is as for ``restart``."""
        return await self.restart(TOOLBUS_URL=self.url_of(proxy), **more)

    async def restart(self, **more: str) -> asyncio.subprocess.Process:
        """Start the worker anew, with further variables of its environment, and return its process."""
        await self.kill_worker()
        known = set(await self.instances())
        self.worker = await self.program.start(pipes=False, **more)
        await self.joined(known, "it is not in the registry when it is started anew")
        return self.worker

    async def joined(self, known: set[str], problem: str) -> set[str]:
        """Return the instances that have come to those that are known, as soon as there is one.

        Raises:
            Broken: none comes, or a program has ended; ``problem`` says what is missing.
        """

        async def found() -> set[str]:
            self.program.check_alive()
            return set(await self.instances()) - known

        new = await until(found, STARTS, problem)
        self.has_begun = True
        return new

    async def kill_worker(self) -> None:
        """Kill the worker, if it runs, and take it out of the registry, where the next check would take it for another one."""
        if self.worker is not None:
            await self.program.kill(self.worker)
            self.worker = None
        # Also those whose leases have ended: while no worker runs nobody sweeps them.
        rows = await self.probe.run("HKEYS", self.keys.instances(SERVICE))
        registered = {each[2:].decode() for each in rows if each.startswith(b"i:")} - set(self._played)
        for instance in registered | set(await self._members("-inf")):
            await self.see_the_end(instance)

    async def now(self) -> int:
        """Return the server's time in milliseconds."""
        seconds, micros = await self.probe.run("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def instances(self) -> list[str]:
        """Return the instances of the service that are registered, and whose leases have not ended."""
        rows = await self.probe.run("HKEYS", self.keys.instances(SERVICE))
        return [each for each in await self._alive() if f"i:{each}".encode() in rows]

    async def _alive(self) -> list[str]:
        """Return the instances of the service whose leases have not ended; they may have left the registry."""
        return await self._members(str(await self.now()))

    async def _members(self, since: str) -> list[str]:
        """Return the instances of the service in `live` whose leases end at a time of the server or later."""
        members = await self.probe.run("ZRANGEBYSCORE", self.keys.live, since, "+inf")
        found = [each.decode().partition("/")[2] for each in members if each.startswith(f"{SERVICE}/".encode())]
        return [each for each in found if each not in self._played]

    async def lease_of(self, instance: str) -> float:
        """Return when a worker's lease ends, in milliseconds of the server's time; 0 when it has none."""
        return float(await self.probe.run("ZSCORE", self.keys.live, f"{SERVICE}/{instance}") or 0)

    async def age_of_beat(self, instance: str) -> int:
        """Return the milliseconds since a worker's last beat, by the server."""
        script = "local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 - (redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)"
        return int(await self.probe.run("EVAL", script, 1, self.keys.live, f"{SERVICE}/{instance}")) + int(LEASE * 1000)

    async def row_of(self, instance: str) -> str:
        """Return a worker's start number and the digest of its publication, as the registry has them; empty when it is in none."""
        return (await self.probe.run("HGET", self.keys.instances(SERVICE), f"i:{instance}") or b"").decode()

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
        lease = int(MOST * 1000) if lives else int(LEASE * 1000)
        await self.probe.run("HSET", self.fence, f"c:{name}", "1", f"l:{name}", lease, *(() if lives else (f"x:{name}", "1")))
        if lives:
            await self.probe.run("ZADD", self.keys.live, await self.now() + lease, f"{SERVICE}/{name}")
            self._played.append(name)
        if digest:
            await self.probe.run("HSET", self.keys.instances(SERVICE), f"i:{name}", f"1:{digest}")
        return name

    async def move(self, sent: Sent, to: str, deliveries: int = 2) -> bool:
        """Move an entry from the worker to another. As with every script that does so, who loses it gets another counter in the fence.

        Returns:
            False when the call had ended before.
        """
        mine, _, _ = await self.holder(sent)
        moved = await self.probe.run(
            "EVAL",
            "if #redis.call('XCLAIM', KEYS[1], 'g', ARGV[2], 0, ARGV[3], 'RETRYCOUNT', ARGV[4], 'JUSTID') == 0 then return 0 end "
            "redis.call('HSET', KEYS[2], 'c:' .. ARGV[1], ARGV[5]) return 1",
            2, self.queue, self.fence, mine, to, sent.entry, deliveries, secrets.token_hex(8),
        )  # fmt: skip
        return bool(moved)

    async def keep(self, sent: Sent, owner: str, deliveries: int = 2) -> None:
        """Renew an entry that a worker holds which the kit plays."""
        await self.probe.run("XCLAIM", self.queue, "g", owner, 0, sent.entry, "RETRYCOUNT", deliveries, "JUSTID")

    async def remove(self, sent: Sent) -> None:
        """Take an entry out of the queue, as its worker does at its end."""
        await self.probe.run("XACK", self.queue, "g", sent.entry)
        await self.probe.run("XDEL", self.queue, sent.entry)

    async def end_reads(self) -> None:
        """End the reads that wait, as at the end of their time, so that the next ones know what scripts have just answered."""
        await asyncio.sleep(0.1)
        # A connection of RESP2 has the list as a string like others.
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"CLIENT LIST\r\n")
        listed = await reader.readexactly(int((await reader.readline())[1:]))
        writer.close()
        for line in listed.decode().splitlines():
            fields = dict(field.partition("=")[::2] for field in line.split())
            if fields.get("cmd") == "xreadgroup":
                await self.probe.run("CLIENT", "UNBLOCK", fields["id"], "TIMEOUT")

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
        common = (keys.prefix, secrets.token_hex(6), TTL * 1000, 60_000)
        await self.probe.script(scripts.UNREGISTER, (*registry, *own), *common, f"{SERVICE}/{instance}")
        await self.probe.script(scripts.RETIRE, (*own[1:], own[0], keys.live), instance, SERVICE, "1")
        await self.tell(f"dead {SERVICE}")

    # -- requests ---------------------------------------------------------------------------------

    async def draw_agent(self) -> None:
        """Be another agent, with a reply stream of its own."""
        self.agent, self._read = secrets.token_hex(16), "0-0"
        await self.listen()

    async def draw_neighbour(self) -> str:
        """Return the id of another agent, which has a reply stream beside this one's."""
        agent = secrets.token_hex(16)
        await self.probe.script(scripts.LISTEN, (self.keys.replies(agent),), 600_000, "0-0")
        return agent

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
        queue = self.keys.queue(fields.get("service", SERVICE))
        return Sent(call, await self.add(document, in_time if due is None else str(due), queue=queue), document)

    def unsent(self, role: str, arguments: dict[str, Any], *, timeout: float = 30.0, **fields: Any) -> tuple[str, bytes, str]:
        """Return the id, the document and the deadline of a request that is not published yet."""
        service = fields.get("service", SERVICE)
        request = {
            "id": secrets.token_hex(16), "agent": self.agent, "service": service, "tool": f"{service}-{role}", "arguments": arguments,
            "timeout": timeout, **fields,
        }  # fmt: skip
        return request["id"], json.dumps(request, ensure_ascii=False).encode(), str(int((time.time() + timeout) * 1000))

    async def add(self, document: bytes, due: str, *more: str, queue: str = "") -> str:
        """Append an entry to the queue, or another one, and return its id."""
        entry = await self.probe.run("XADD", queue or self.queue, "NOMKSTREAM", "*", "r", document, "d", due, *more)
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
            self._size += len(fields[b"f"])
            if self._size > MOST_WRITTEN:
                raise Broken(f"its frames in one check have more than {MOST_WRITTEN:,} bytes")
            if len(fields[b"f"]) > _MOST_ENTRY:
                raise Broken(f"an entry of the reply stream has {len(fields[b'f']):,} bytes, more than {_MOST_ENTRY:,}")
            try:
                frames = json.loads(fields[b"f"].decode("utf-8"))
            except ValueError as error:
                raise Broken(f"an entry of the reply stream is no JSON in UTF-8: {error}") from None
            if not isinstance(frames, list):
                raise Broken("the field f of an entry of the reply stream is no list of frames")
            # Without what joins them.
            if len(frames) > 1 and len(fields[b"f"]) - len(frames) - 1 > MOST_BYTES:
                raise Broken(f"an entry of {len(frames)} frames has {len(fields[b'f']):,} bytes, more than {MOST_BYTES:,}")
            for frame in frames:
                try:
                    msgspec.convert(frame, Frame)
                except (msgspec.ValidationError, RecursionError) as error:
                    raise Broken(f"a frame is none by schemas/frames.json: {error}: {str(frame)[:200]}") from None
                self._frames.setdefault(frame["id"], []).append(frame)

    async def frames(self, sent: Sent) -> list[dict[str, Any]]:
        """Return the frames of a request that have come until now."""
        async with self._reading:
            await self._take_in()
        return self._frames.get(sent.id, [])

    async def has_ended(self, sent: Sent) -> bool:
        """Return whether the end of a request has come.

        Raises:
            Broken: the program has ended.
        """
        self.program.check_alive()
        return any(frame.get("end_of_stream") for frame in await self.frames(sent))

    async def ended(self, sent: Sent, within: float = _ANSWERS) -> list[dict[str, Any]]:
        """Return the frames of a request when its end has come.

        Raises:
            Broken: it did not come.
        """
        await until(lambda: self.has_ended(sent), within, f"no frame with end_of_stream came for {sent}")
        return self._frames[sent.id]

    async def shared_frames(self, sent: Sent) -> list[dict[str, Any]]:
        """Return the frames of a shared call, which has a stream of its own."""
        return await self._frames_in(self.keys.call(sent.id), sent)

    async def frames_of_another(self, sent: Sent, agent: str) -> list[dict[str, Any]]:
        """Return the frames of a call in the reply stream of another agent."""
        return await self._frames_in(self.keys.replies(agent), sent)

    async def _frames_in(self, stream: str, sent: Sent) -> list[dict[str, Any]]:
        async with self._reading:
            size, mine, self._frames = self._size, self._frames, {}
            await self._take_in(stream)
            found = self._frames.get(sent.id, [])
            # It is read from its beginning each time: what is not asked for would be there twice.
            self._size, self._frames = size, {**mine, sent.id: found}
        return found
