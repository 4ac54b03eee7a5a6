"""One run: starts everything, applies the faults, waits until all is quiet, and stops everything."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import redis
import redis.asyncio as aredis

from tests.chaos import backlog, snapshot
from tests.chaos.faults import Faults
from tests.chaos.fork_server import Order
from tests.chaos.history import Ended, Journal, Sample, State
from tests.chaos.options import Options
from tests.chaos.pool import Child, Pool
from tests.chaos.proxy import Proxy
from tests.chaos.schedule import schedule
from toolbus.bus.broker.transport.embedded import EmbeddedServer

_PROGRESS_EVERY = 5.0
_SAMPLE_EVERY = 1.0
_POLL = 0.1
# How long processes may take to leave: the grace of five seconds, closing, and a busy machine.
_LEAVE = 30.0

Tell = Callable[[str], None]


class Driver:
    """Runs the faults of a seed against toolbus; what happened is in ``folder``/history afterwards."""

    def __init__(self, options: Options, folder: Path, tell: Tell) -> None:
        self.options = options
        self._tell = tell
        self._history = folder / "history"
        self._logs = folder / "logs"
        for made in (self._history, self._logs, folder / "server"):
            made.mkdir(parents=True)
        self.journal = Journal(self._history, "driver")
        self.server = EmbeddedServer(data_dir=folder / "server", appendonly=options.durable, config={"enable-debug-command": "local"})
        self.faults = Faults(self)
        self._pool = Pool(self.journal, _mixed(folder, options.other), self._on_death)
        self._started: Counter[str] = Counter()
        self._workers: dict[int, Child] = {}
        self._agents: dict[int, Child] = {}
        self._born = 0
        self._start = time.monotonic()
        self._closing = False
        self._ended = 0
        self._read_to: dict[Path, int] = {}

    async def run(self) -> float:
        """Run to the end, or to SIGTERM; returns how many seconds of it calls were made."""
        # As Ctrl-C, of which asyncio makes a cancellation: an exception anywhere in the loop may leave it stuck.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
        try:
            self.server.start()
            self.client = aredis.Redis(host="127.0.0.1", port=self.server.port, socket_timeout=10, protocol=3)
            self.proxy = Proxy(self.server.port)
            await self.proxy.start()
            await self._pool.start()
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                sampling = tasks.create_task(self._sample())
                telling = tasks.create_task(self._progress())
                calling = await self._calls()
                telling.cancel()
                await self._rest()
                sampling.cancel()
                await self._leave()
            return calling
        finally:
            self._closing = True
            self.faults.heal()
            await self._pool.aclose()
            await self.proxy.aclose()
            await self.client.aclose()
            self.server.stop()
            self.journal.close()

    # -- the parts of a run -----------------------------------------------------------------------

    async def _calls(self) -> float:
        """Start everybody, apply the faults, and wait until every call has ended."""
        options = self.options
        if options.backlog:
            await self._pile_up()
        self._start = time.monotonic()
        for slot in range(options.workers):
            await self._hire(slot)
        for index in range(options.agents):
            await self._enlist(index)
        self._start = time.monotonic()
        planned = schedule(options.seed, options.seconds, options.faults, lease=options.lease, intensity=options.intensity)
        async with asyncio.TaskGroup() as faults:
            for fault in planned:
                await _until(self._start + fault.at)
                faults.create_task(self.faults.apply(fault))
        self.faults.heal()
        self._tell(f"{self._clock()} the faults are over; waiting for the calls to end")
        # Calls that were late may all begin at the end of the run, and each has its time.
        limit = self._start + options.seconds * 2 + options.timeout * 2 + 60
        while not self._idle():
            await asyncio.sleep(_POLL)
            if time.monotonic() > limit:
                break
        return time.monotonic() - self._start

    async def _pile_up(self) -> None:
        """Queue the backlog, before there is a worker that takes of it."""
        took = await backlog.publish(self.client, self.options.namespace, self.options.backlog)
        self._tell(f"{self.options.backlog} requests without a caller are queued ({took:.0f} s)")

    async def _rest(self) -> None:
        """Wait until the server holds nothing of any call, and write its state down."""
        least, limit = float("inf"), 0.0
        while True:
            state = await self._state("quiet")
            rests = snapshot.at_rest(state)
            held = sum(queue.length for queue in state.queues)
            if held < least:
                # A backlog takes its time, as long as it grows smaller.
                least, limit = held, time.monotonic() + 10 * self.options.lease + 10
            if rests or time.monotonic() > limit:
                break
            await asyncio.sleep(_POLL)
        self.journal.write(msgspec.structs.replace(state, settled=rests))
        self._tell(f"{self._clock()} {'at rest' if rests else 'NOT at rest'}; closing agents, then workers")

    async def _leave(self) -> None:
        """Close agents and workers as their users would, and look at what they leave behind."""
        self._closing = True
        for role in ("agent", "worker"):
            leaving = self._pool.living(role)
            for child in leaving:
                child.wanted = True
                child.signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE):
                    for child in leaving:
                        await child.gone.wait()
        self.journal.write(await self._state("closed"))
        limit = time.monotonic() + self.options.agent_life + 5
        while True:
            state = await self._state("later")
            left = any(key.name.startswith("rsp:") for key in state.keys)
            if not left or time.monotonic() > limit:
                break
            await asyncio.sleep(_POLL)
        self.journal.write(msgspec.structs.replace(state, settled=not left))

    # -- processes --------------------------------------------------------------------------------

    def worker(self, pick: float) -> Child | None:
        """A living worker: of the slot that ``pick`` names, or of the next one."""
        return _nth(self._workers, pick)

    def agent(self, pick: float) -> Child | None:
        """A living agent with calls still to make."""
        return _nth({index: child for index, child in self._agents.items() if not self._is_idle(child)}, pick)

    async def replace(self, worker: Child) -> None:
        """Start another worker in the place of one that was told to go."""
        await self._hire(worker.order.index)

    async def _hire(self, slot: int) -> None:
        # Every other slot works through the proxy.
        self._workers[slot] = await self._pool.spawn(self._order("worker", slot, through_proxy=slot % 2 == 1))

    async def _enlist(self, index: int) -> None:
        self._agents[index] = await self._pool.spawn(self._order("agent", index, through_proxy=index % 2 == 0))

    def _order(self, role: Literal["worker", "agent"], index: int, *, through_proxy: bool) -> Order:
        self._born += 1
        self._started[role] += 1
        chance = random.Random(f"{self.options.seed} {self._born}")
        return Order(
            role=role,
            name=f"{role}-{index}-{self._born}",
            pid=self._born,
            url=f"redis://127.0.0.1:{self.proxy.port if through_proxy else self.server.port}",
            options=self.options,
            history=str(self._history),
            logs=str(self._logs),
            other=bool(self.options.other) and self._started[role] % 2 == 0,
            index=index,
            revision=chance.randrange(2) if "versions" in self.options.faults else 0,
            start=self._start,
        )

    def _on_death(self, child: Child, status: int) -> None:
        if self._closing:
            return
        slots, again = (self._workers, self._hire) if child.order.role == "worker" else (self._agents, self._enlist)
        if slots.get(child.order.index) is child:
            self._tasks.create_task(again(child.order.index))

    def _is_idle(self, child: Child) -> bool:
        return (self._logs / f"{child.order.name}.idle").exists()

    def _idle(self) -> bool:
        return all(child.alive and self._is_idle(child) for child in self._agents.values())

    # -- watching ---------------------------------------------------------------------------------

    async def _state(self, name: str) -> State:
        workers = tuple(child.pid for child in self._pool.living("worker"))
        return await snapshot.take(self.client, self.options.namespace, name, workers=workers)

    async def _sample(self) -> None:
        client, task = aredis.Redis(host="127.0.0.1", port=self.server.port, socket_timeout=2, protocol=3), asyncio.current_task()
        # redis-py takes a cancellation that comes while it connects for a connection that failed.
        while task is not None and not task.cancelling():
            await asyncio.sleep(_SAMPLE_EVERY)
            with suppress(redis.RedisError, OSError):
                used = (await client.info("memory"))["used_memory"]
                self.journal.write(Sample(time.monotonic(), used, self._pool.memory()))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY)
            await asyncio.to_thread(self._count)
            faults = self.faults.counts
            others = sum(faults.values()) - faults.get("kill", 0)
            workers = len(self._pool.living("worker"))
            self._tell(
                f"{self._clock()} {self._ended}/{self.options.calls} calls ended, {workers} workers, "
                f"{faults.get('kill', 0)} killed, {others} other faults; last: {self.faults.last}"
            )

    def _count(self) -> None:
        """Count ended calls in what the agents' files have grown by."""
        mark = f'"t":"{Ended.__name__}"'.encode()
        for path in self._history.glob("agent-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read_to.get(path, 0))
                grown = file.read()
            whole = grown[: grown.rfind(b"\n") + 1]
            self._read_to[path] = self._read_to.get(path, 0) + len(whole)
            self._ended += whole.count(mark)

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._start:5.0f} s]"


def _mixed(folder: Path, other: str) -> Path | None:
    """A folder from which this program is imported, with the other version of toolbus."""
    if not other:
        return None
    mixed = folder / "other"
    mixed.mkdir()
    (mixed / "toolbus").symlink_to(Path(other).resolve() / "toolbus")
    (mixed / "tests").symlink_to(Path(__file__).resolve().parents[1])
    return mixed


async def _until(moment: float) -> None:
    wait = moment - time.monotonic()
    if wait > 0:
        await asyncio.sleep(wait)


def _nth(children: dict[int, Child], pick: float) -> Child | None:
    living = [child for _, child in sorted(children.items()) if child.alive and not child.wanted]
    return living[int(pick * len(living))] if living else None
