"""One run: hosts, callers, and SIGKILLs at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.chaos.platform import processes
from tests.chaos.platform.history import Ended, History
from tests.chaos.platform.tools import EFFECTS, Planned, planned, records
from tests.chaos.platform.watchdog import Watchdog
from toolbus import Settings, ToolBus
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.platform.store import Records

# Beyond a lease, for a busy machine.
_LATE = 3.0
# Seconds in which a host's programs are gone after it.
_ORPHANED = 5.0
_LEAVE = 30.0
_POLL = 0.05
# Seconds in which something that can be killed has started, on a busy machine.
_VICTIM = 60.0


class Options(msgspec.Struct, frozen=True):
    """The settings of a run.

    Attributes:
        seed: decides calls, victims and times.
        kills: how many SIGKILLs.
        between: most seconds between two of them.
        hosts: host processes.
        callers: calls at once.
        lease: toolbus's lease, in seconds.
        timeout: seconds that a call may take.
        most: seconds after which nothing more is killed.
        ends: seconds after that in which the run has to end.
    """

    seed: int
    kills: int = 50
    between: float = 1.0
    hosts: int = 3
    callers: int = 16
    lease: float = 2.0
    timeout: float = 30.0
    most: float = 300.0
    ends: float = 150.0


class Driver:
    """Runs everything in ``folder``; what happened is in ``history`` afterwards."""

    def __init__(self, options: Options, folder: Path, tell: Callable[[str], None]) -> None:
        self.history = History()
        self._options = options
        self._folder = folder.resolve()
        self._programs, self._notes = self._folder / "programs", self._folder / "notes"
        self._tell = tell
        self._chance = random.Random(options.seed)
        self._hosts: dict[int, asyncio.subprocess.Process] = {}
        self._numbers = 0
        self._open: dict[int, Planned] = {}
        self._calling = True

    async def run(self) -> None:
        """Run to the end."""
        self._programs.mkdir(parents=True)
        server = EmbeddedServer()
        server.start()
        self._settings = Settings.load({}, url=server.url, namespace="chaos", lease=self._options.lease)
        try:
            await self._with_bus()
        finally:
            for host in self._hosts.values():
                with suppress(ProcessLookupError):
                    host.kill()
            server.stop()
        noted = self._notes.read_text().split() if self._notes.exists() else []
        for number in map(int, noted):
            self.history.runs[number] = self.history.runs.get(number, 0) + 1

    async def _with_bus(self) -> None:
        async with ToolBus(settings=self._settings) as self._bus:
            for record in records(self._programs):
                await Records(self._bus).put(record)
            async with asyncio.timeout(60):
                await self._begin()
            seconds = self._options.most + self._options.ends
            with Watchdog(seconds, lambda: [host.pid for host in list(self._hosts.values())], self._folder):
                await self._break_things()

    async def _begin(self) -> None:
        for slot in range(self._options.hosts):
            await self._hire(slot)
        await self._bus.tools.catalogue.wait(lambda: all(name in self._bus.services for name in EFFECTS))

    async def _break_things(self) -> None:
        options = self._options
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            callers = [tasks.create_task(self._call(random.Random(f"{options.seed} {caller}"))) for caller in range(options.callers)]
            async with asyncio.TaskGroup() as aftermath:
                for count in range(options.kills):
                    if time.monotonic() - began > options.most:
                        self._tell(f"{options.most:g} s are over")
                        break
                    await asyncio.sleep(self._chance.uniform(0.05, options.between))
                    await self._kill(aftermath)
                    if count % 10 == 9:
                        self._tell(f"{count + 1} kills, {len(self.history.ended)} calls ended")
            self._calling = False
            await asyncio.wait(callers, timeout=2 * options.timeout)
            self.history.unended = list(self._open.values())
            for caller in callers:
                caller.cancel()
        self.history.seconds = time.monotonic() - began
        await self._stop()

    # -- calls ------------------------------------------------------------------------------------

    async def _call(self, chance: random.Random) -> None:
        while self._calling:
            self._numbers += 1
            call = self._open[self._numbers] = planned(self._numbers, chance, self._notes)
            began = time.monotonic()
            result = await self._bus.call(call.tool, call.arguments, timeout=self._options.timeout)
            taken, error = time.monotonic() - began, result.error
            if error is not None:
                ended = Ended(call, error.type, error.code, error.message, taken)
            elif call.is_answer(result.output, result.data):
                ended = Ended(call, "ok", seconds=taken)
            else:
                ended = Ended(call, "wrong", message=f"{result.output!r} {result.data!r}", seconds=taken)
            del self._open[call.number]
            self.history.ended.append(ended)
            # A tool that is refused at once must not be all that is called.
            await asyncio.sleep(0.05 if error is not None else 0.001)

    # -- kills ------------------------------------------------------------------------------------

    async def _kill(self, aftermath: asyncio.TaskGroup) -> None:
        """Kill a program, a keeper of one, or a host beside which another one serves."""
        what = self._chance.choices(["program", "keeper", "host"], [6, 1, 3])[0]
        pick = self._chance.random()
        async with asyncio.timeout(_VICTIM):
            while not (victims := await self._victims(what)):  # noqa: ASYNC110 - nothing tells of processes
                await asyncio.sleep(_POLL)
        victim = victims[int(pick * len(victims))]
        self.history.kills[what] = self.history.kills.get(what, 0) + 1
        if what == "host":
            slot = next(slot for slot, host in self._hosts.items() if host.pid == victim)
            aftermath.create_task(self._bereave(slot, self._hosts.pop(slot)))
            return
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)

    async def _victims(self, what: str) -> list[int]:
        """Return the processes of a kind that can be killed now."""
        if what != "host":
            programs = await asyncio.to_thread(processes.programs, self._programs)
            return sorted(pid for pid, keeps in programs.items() if keeps == (what == "keeper"))
        serving = await self._bus.routes.all()
        found = [host.pid for host in self._hosts.values() if host.returncode is None and any(f"-{host.pid}-" in name for name in serving)]
        return sorted(found) if len(found) > 1 else []

    async def _bereave(self, slot: int, host: asyncio.subprocess.Process) -> None:
        """Kill a host, look at what it leaves, and start another one."""
        own = await asyncio.to_thread(processes.below, host.pid)
        with suppress(ProcessLookupError):
            host.kill()
        died = time.monotonic()
        await host.wait()
        await self._hire(slot)
        left = own
        while left and time.monotonic() < died + _ORPHANED:
            await asyncio.sleep(_POLL)
            left = {pid for pid in left if processes.is_alive(pid)}
        self.history.orphans += [f"process {pid} outlived its host, {host.pid}, by {_ORPHANED:g} s" for pid in sorted(left)]
        await asyncio.sleep(max(0.0, died + self._options.lease + _LATE - time.monotonic()))
        for name, routes in (await self._bus.routes.all()).items():
            if f"-{host.pid}-" in name:
                self.history.stale.append(f"routes of the dead host {name} are left after its lease: {', '.join(sorted(routes))}")

    # -- hosts ------------------------------------------------------------------------------------

    async def _hire(self, slot: int) -> None:
        settings = {"TOOLBUS_URL": self._settings.url, "TOOLBUS_NAMESPACE": "chaos", "TOOLBUS_LEASE": str(self._options.lease)}
        with (self._folder / f"host-{slot}.log").open("ab") as log:
            self._hosts[slot] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.chaos.platform.host", "--name", f"h{slot}", "--grace", "5"),
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )

    async def _stop(self) -> None:
        """Tell all hosts to stop, and look at what is left."""
        for host in self._hosts.values():
            host.terminate()
        for host in self._hosts.values():
            try:
                async with asyncio.timeout(_LEAVE):
                    self.history.host_exits.append(await host.wait())
            except TimeoutError:
                self.history.left.append(f"host {host.pid} did not stop within {_LEAVE:g} s of SIGTERM")
        routes = await self._bus.routes.all()
        self.history.left += [f"routes of {name} are left after it was told to stop" for name in routes]
        self.history.left += [f"process {pid} is left after all hosts have stopped" for pid in processes.programs(self._programs)]
