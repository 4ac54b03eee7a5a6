"""Applying faults: one method for each kind of the schedule."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Protocol

import redis.asyncio as aredis

from tests.chaos import backlog
from tests.chaos.history import Hit, Journal, Planted
from tests.chaos.options import Options
from tests.chaos.pool import Child
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import Fault
from tests.chaos.tools import SERVICE, SERVICES
from toolbus.bus.broker.transport.embedded import EmbeddedServer

# A server with a large backlog takes its time to read its file.
_RESTART_WITHIN = 120.0
_FAR = b"99999999999999"
_REQUESTS: tuple[dict[bytes, bytes], ...] = (
    {b"r": b"not json", b"d": _FAR},
    {b"r": b"\xff\xfe\x00", b"d": _FAR},
    {b"r": b"[" * 50_000, b"d": _FAR},
    {b"r": b'{"id": "a", "agent": "../../etc", "service": "chaos"}', b"d": _FAR},
    {b"r": b"x" * 300_000, b"d": _FAR},
    {b"r": b'{"id": "a", "agent": "nobody", "service": "chaos"}'},
    {b"r": b'{"id": "a", "agent": "nobody", "service": "chaos", "arguments": 7}', b"d": _FAR},
    {b"nonsense": b"1"},
)
_FRAMES: tuple[bytes, ...] = (b"garbage", b"\xff", b"[" * 50_000, b'[{"id": 1}, {"id": "x", "run": "y"}]', b'{"id": "x"}')


class Stage(Protocol):
    """The processes and the server that faults are applied to."""

    options: Options
    server: EmbeddedServer
    client: aredis.Redis
    proxy: Proxy
    journal: Journal

    def worker(self, pick: float) -> Child | None:
        """A living worker."""

    def agent(self, pick: float) -> Child | None:
        """A living agent."""

    async def replace(self, worker: Child) -> None:
        """Start another worker in the place of one that was told to go."""


class Faults:
    """Applies the faults of a schedule to a stage and writes each one down."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # One at a time meddles with the server's process, and commands wait until there is one.
        self._server = asyncio.Lock()
        self._stopped: set[Child] = set()
        self.counts: dict[str, int] = {}
        self.last = ""

    async def apply(self, fault: Fault) -> None:
        """Do it, for as long as it lasts."""
        method = getattr(self, f"_{fault.kind.replace('-', '_')}")
        began = time.monotonic()
        try:
            done: tuple[str, tuple[int, ...]] | None = await method(fault)
        except (aredis.RedisError, OSError) as error:
            done = (f"failed: {error}", ())
        else:
            if done is not None:
                self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        what, pids = done or ("nobody was there", ())
        self.last = f"{fault.kind} {what}"
        self._stage.journal.write(Hit(began, fault.kind, time.monotonic(), what, pids))

    def heal(self) -> None:
        """End what lasts: wake who is stopped, and the network."""
        for child in list(self._stopped):
            child.signal(signal.SIGCONT)
        if self._stage.server.running:
            # A server that is not stopped takes no notice.
            signal_server(self._stage.server, signal.SIGCONT)
        self._stage.proxy.heal()

    # -- processes --------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        return self._killed(self._stage.worker(fault.pick))

    async def _agent_kill(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        return self._killed(self._stage.agent(fault.pick))

    def _killed(self, child: Child | None) -> tuple[str, tuple[int, ...]] | None:
        if child is None:
            return None
        child.wanted = True
        child.signal(signal.SIGKILL)
        return child.order.name, (child.pid,)

    async def _term(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        child = self._stage.worker(fault.pick)
        if child is None:
            return None
        child.wanted = True
        await self._stage.replace(child)
        child.signal(signal.SIGTERM)
        return child.order.name, (child.pid,)

    async def _stop(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        return await self._stop_for(self._stage.worker(fault.pick), fault.lasts)

    async def _agent_stop(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        return await self._stop_for(self._stage.agent(fault.pick), fault.lasts)

    async def _stop_for(self, child: Child | None, seconds: float) -> tuple[str, tuple[int, ...]] | None:
        if child is None or child in self._stopped:
            return None
        self._stopped.add(child)
        child.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            child.signal(signal.SIGCONT)
            self._stopped.discard(child)
        return f"{child.order.name} for {seconds:.1f} s", (child.pid,)

    # -- the server -------------------------------------------------------------------------------

    async def _server_stop(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        async with self._server:
            signal_server(self._stage.server, signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.lasts)
            finally:
                signal_server(self._stage.server, signal.SIGCONT)
        return f"for {fault.lasts:.1f} s", ()

    async def _server_kill(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        async with self._server:
            await asyncio.to_thread(self._stage.server.kill)
            await asyncio.sleep(fault.lasts)
            await asyncio.to_thread(self._stage.server.start, _RESTART_WITHIN)
        return f"and started after {fault.lasts:.1f} s", ()

    async def _client_pause(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        await self._command("CLIENT", "PAUSE", int(fault.lasts * 1000), "ALL" if fault.pick < 0.5 else "WRITE")
        return f"for {fault.lasts:.1f} s", ()

    async def _group_destroy(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        services = (*SERVICES, backlog.SERVICE) if self._stage.options.backlog else SERVICES
        service = services[int(fault.pick * len(services))]
        await self._command("XGROUP", "DESTROY", self._key(f"q:{service}"), "g")
        return f"of {service}", ()

    async def _script_flush(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        await self._command("SCRIPT", "FLUSH")
        return "", ()

    async def _client_kill(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        count = await self._command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return f"of {count} connections", ()  # type: ignore[str-bytes-safe]

    async def _flushall(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        await self._command("FLUSHALL")
        return "", ()

    async def _malformed(self, fault: Fault) -> tuple[str, tuple[int, ...]] | None:
        number = int(fault.pick * 1000)
        if number % 3:
            fields = _REQUESTS[number % len(_REQUESTS)]
            flat = [word for pair in fields.items() for word in pair]
            # Like a publisher: never where no service is.
            entry = await self._command("XADD", self._key(f"q:{SERVICE}"), "NOMKSTREAM", "*", *flat)
            if entry is None:
                return None
            self._stage.journal.write(Planted(time.monotonic(), entry.decode()))
            return f"request {fields}"[:60], ()
        names = sorted([key async for key in self._stage.client.scan_iter(match=self._key("rsp:*"), count=1000)])
        if not names:
            return None
        key, payload = names[number % len(names)], _FRAMES[number % len(_FRAMES)]
        entry = await self._command("XADD", key, "NOMKSTREAM", "*", "f", payload)
        agent = key.decode().rpartition(":")[2]
        self._stage.journal.write(Planted(time.monotonic(), (entry or b"").decode(), agent))
        return f"frame {payload!r}"[:60], ()

    # -- the network ------------------------------------------------------------------------------

    async def _reset(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        chance = random.Random(fault.pick)
        within = chance.choice((0, 200, 5000))
        return f"{self._stage.proxy.cut(0.5, chance=chance, within=within)} connections", ()

    async def _swallow(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        return f"{await self._stage.proxy.swallow(0.5, fault.lasts, random.Random(fault.pick))} connections", ()

    async def _delay(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        await self._stage.proxy.delay(0.02 + 0.2 * fault.pick, fault.lasts)
        return f"for {fault.lasts:.1f} s", ()

    async def _partition(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        count = await self._stage.proxy.partition(fault.lasts, cut=fault.pick < 0.5)
        return f"of {count} connections for {fault.lasts:.1f} s", ()

    async def _half_open(self, fault: Fault) -> tuple[str, tuple[int, ...]]:
        return f"{self._stage.proxy.half_open(2, random.Random(fault.pick))} connections", ()

    # -- inside -----------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"tb:{{{self._stage.options.namespace}}}:{name}"

    async def _command(self, *words: object) -> bytes | None:
        run: Callable[..., object] = self._stage.client.execute_command
        async with self._server:
            return await run(*words)  # type: ignore[misc, no-any-return]


def signal_server(server: EmbeddedServer, number: signal.Signals) -> None:
    """Send the server's process a signal; one that is gone gets none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, number)
