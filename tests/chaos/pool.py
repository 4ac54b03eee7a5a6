"""The processes of a run: workers in their slots, agents, and those that are on their way out."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.chaos.fork_server import Born, Died, Order
from tests.chaos.history import Exited, Journal, Started

_Event = Born | Died
_LINE_LIMIT = 1 << 20


class Child:
    """A process of the run, whose number is ``system`` there. ``wanted`` is whether the driver has told it to go, or killed it."""

    def __init__(self, order: Order, system: int) -> None:
        self.order = order
        self.pid = order.pid
        self._system = system
        self.wanted = False
        self.gone = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Return whether the process still runs (or is stopped)."""
        return not self.gone.is_set()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it is gone."""
        if self.alive:
            os.kill(self._system, number)

    @property
    def memory(self) -> int:
        """Resident bytes; 0 when it is gone."""
        try:
            pages = int(Path(f"/proc/{self._system}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


class Pool:
    """Starts processes through fork servers, and knows which of them live.

    Args:
        other: a folder in which ``python -m tests.chaos.fork_server`` imports another version of toolbus; None when there is only this one.
        on_death: called for each process that went, whether it was wanted or not.
    """

    def __init__(self, journal: Journal, other: Path | None, on_death: Callable[[Child, int], None]) -> None:
        self._other = other
        self._journal = journal
        self._on_death = on_death
        self._children: dict[int, Child] = {}
        self._orders: dict[int, tuple[Order, asyncio.Future[Child]]] = {}
        # By whether it is the other version's.
        self._fork_servers: dict[bool, asyncio.subprocess.Process] = {}
        self._reading: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start a fork server for each version."""
        for folder in filter(None, (Path.cwd(), self._other)):
            fork_server = await self._open(folder)
            self._fork_servers[folder is self._other] = fork_server
            self._reading.append(asyncio.create_task(self._read(fork_server)))

    async def _open(self, folder: Path) -> asyncio.subprocess.Process:
        # What is to be imported is first looked for in the folder in which it is started.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.fork_server",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_LIMIT,
            cwd=folder,
        )

    async def aclose(self) -> None:
        """Close the fork servers, which kill whatever is left."""
        for fork_server in self._fork_servers.values():
            assert fork_server.stdin is not None
            fork_server.stdin.close()
            await fork_server.wait()
        await asyncio.gather(*self._reading)

    async def spawn(self, order: Order) -> Child:
        """Start a process."""
        fork_server = self._fork_servers[order.other]
        if fork_server.returncode is not None:
            raise self._ended(order)
        assert fork_server.stdin is not None
        born: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._orders[order.pid] = (order, born)
        fork_server.stdin.write(msgspec.json.encode(order) + b"\n")
        return await born

    def living(self, role: str) -> list[Child]:
        """The processes of a role that run, or drain."""
        return [child for child in self._children.values() if child.order.role == role]

    def memory(self) -> dict[str, int]:
        """Resident bytes of every process, by ``role:pid``."""
        return {f"{child.order.role}:{child.pid}": child.memory for child in self._children.values()}

    async def _read(self, fork_server: asyncio.subprocess.Process) -> None:
        assert fork_server.stdout is not None
        decoder = msgspec.json.Decoder(_Event)
        async for line in fork_server.stdout:
            event = decoder.decode(line)
            if isinstance(event, Born):
                self._born(event)
            else:
                self._died(event)
        for order, born in list(self._orders.values()):
            if self._fork_servers[order.other] is fork_server and not born.done():
                born.set_exception(self._ended(order))

    @staticmethod
    def _ended(order: Order) -> RuntimeError:
        version = "the other version" if order.other else "this version"
        return RuntimeError(f"the fork server of {version} has ended, so no {order.role} can start; its error stands above")

    def _born(self, event: Born) -> None:
        order, born = self._orders.pop(event.pid)
        child = self._children[event.pid] = Child(order, event.system)
        self._journal.write(Started(time.monotonic(), order.role, event.pid, order.other, event.system))
        if not born.done():
            born.set_result(child)

    def _died(self, event: Died) -> None:
        child = self._children.pop(event.pid, None)
        if child is None:
            return
        child.gone.set()
        self._journal.write(Exited(time.monotonic(), child.order.role, event.pid, event.status, child.wanted))
        self._on_death(child, event.status)
