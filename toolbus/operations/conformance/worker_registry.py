"""A worker under test as the registry knows it, and other workers that the kit plays beside it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.registry.registry import TTL
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, broken_if, not_checked_if, until, until_not
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.scene import LEASE, MOST, SERVICE, STARTS, Program, Scene
from toolbus.operations.conformance.worker_calls import SLACK


class RegisteredWorker(Scene):
    """Starts and ends workers, reads what they have registered, and plays workers beside them."""

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
        self._worker: asyncio.subprocess.Process | None = None
        self._played: list[str] = []

    @property
    def worker(self) -> asyncio.subprocess.Process:
        """The process of the worker that was started last.

        Raises:
            Broken: none was.
        """
        if self._worker is None:
            raise Broken("there is no worker")
        return self._worker

    @worker.setter
    def worker(self, process: asyncio.subprocess.Process) -> None:
        self._worker = process

    @contextlib.asynccontextmanager
    async def proxy(self) -> AsyncIterator[Proxy]:
        """Serve a proxy to the server, and at its end kill the worker, which was started behind it."""
        proxy = Proxy(self.port)
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.close()
            await self.kill_worker()

    @contextlib.asynccontextmanager
    async def behind_proxy(self, **more: str) -> AsyncIterator[Proxy]:
        """Serve a proxy with the worker, which is started anew, behind it; ``more`` is as for ``restart``."""
        async with self.proxy() as proxy:
            await self.restart(TOOLBUS_URL=self.url_of(proxy), **more)
            yield proxy

    async def restart(self, **more: str) -> None:
        """Start the worker anew, with further variables of its environment."""
        await self.kill_worker()
        known = set(await self.instances())
        self.worker = await self.program.start(pipes=False, **more)
        await self.joined(known, "it is not in the registry when it is started anew")

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
        if self._worker is not None:
            await self.program.kill(self._worker)
        # Also those whose leases have ended: while no worker runs nobody sweeps them.
        rows = await self.probe.run("HKEYS", self.keys.instances(SERVICE))
        registered = {each[2:].decode() for each in rows if each.startswith(b"i:")} - set(self._played)
        for instance in registered | set(await self._members("-inf")):
            await self.see_the_end(instance)

    async def start_unsubscribed(self, proxy: Proxy) -> None:
        """Start the worker anew, and return when it subscribes to the messages for its service, which it can't before ``proxy.let_go``."""
        await self.kill_worker()
        wake = self.keys.wake(SERVICE).encode()
        proxy.hold(lambda words: words[0].upper() == b"SUBSCRIBE" and wake in words)
        self.worker = await self.program.start(TOOLBUS_URL=self.url_of(proxy))

        async def subscribes() -> bool:
            self.program.check_alive()
            return bool(proxy.held)

        await until(subscribes, STARTS, f"it does not subscribe to {wake.decode()}")

    async def now(self) -> int:
        """Return the server's time in milliseconds."""
        seconds, micros = await self.probe.run("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def instances(self) -> list[str]:
        """Return the instances of the service that are registered, and whose leases have not ended."""
        rows = await self.probe.run("HKEYS", self.keys.instances(SERVICE))
        return [each for each in await self._members(str(await self.now())) if f"i:{each}".encode() in rows]

    async def _members(self, since: str) -> list[str]:
        """Return the instances of the service in `live` whose leases end at a time of the server or later."""
        members = await self.probe.run("ZRANGEBYSCORE", self.keys.live, since, "+inf")
        found = [each.decode().partition("/")[2] for each in members if each.startswith(f"{SERVICE}/".encode())]
        return [each for each in found if each not in self._played]

    async def only_instance(self) -> str:
        """Return the instance of the worker when the leases of those that were killed before have ended."""

        async def only() -> str:
            found = await self.instances()
            return found[0] if len(found) == 1 else ""

        return await until(only, LEASE + SLACK, "there is not one worker in `live`")

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

    async def publication(self) -> Publication:
        """Return what the worker has published."""
        listed = await self.probe.run("HGET", self.keys.services, SERVICE)
        broken_if(not listed or listed[:1] != b"+", f"reg:services has no live row of {SERVICE!r}")
        record = read_record(listed)
        if record.refused:
            raise Broken(f"agents can't read a tool: {record.refused[0].reason}")
        return record.publication

    async def tools(self) -> set[str]:
        """Return the names of the tools that the worker has published."""
        return {tool.name for tool in (await self.publication()).tools}

    async def need(self, role: str) -> None:
        """Go on if the worker has a tool that it may lack.

        Raises:
            NotChecked: it does not have it.
        """
        not_checked_if(f"{SERVICE}-{role}" not in await self.tools(), f"it has no tool {SERVICE}-{role}")

    async def check_ttl(self, key: str, ttl: float, name: str) -> None:
        """Check that a key lives as long as a constant of the protocol says, in seconds, which scripts take as milliseconds."""
        left = int(await self.probe.run("PTTL", key)) / 1000
        broken_if(left < ttl - MOST, f"{key} is removed in {left:,.1f} s; {name} is {ttl:,} s, and scripts take milliseconds")

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

    async def just_reaped(self) -> None:
        """Wait until the worker has looked for entries to take over, which removes consumers of dead ones, so that it soon won't again."""
        dead = await self.play_worker(lives=False)
        problem = "it does not run `reap.lua` three times a lease"
        await until_not(lambda: self.probe.run("HEXISTS", self.fence, f"x:{dead}"), LEASE + SLACK, problem)

    async def pause(self, *, told: bool = True) -> None:
        """Pause the service; ``told`` says whether a message tells the workers."""
        await self.probe.script(scripts.PAUSE, (self.keys.paused,), SERVICE, 60_000)
        if told:
            await self.tell(f"pause {SERVICE}")

    async def resume(self, *, told: bool = True) -> None:
        """End the pause of the service; ``told`` is as for ``pause``."""
        await self.probe.run("SREM", self.keys.paused, SERVICE)
        if told:
            await self.tell(f"resume {SERVICE}")

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
