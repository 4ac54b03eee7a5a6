"""A deployment of real processes, in which one thing is broken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import redis

from tests.cli.shell import Shell
from tests.forking import ForkServer, Program
from tests.servers import eventually, new_server
from toolbus import Settings, ToolBus
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer, free_port

SERVICE = "pool"
TOOLS = '''
"""Tools that succeed, take their time, fail, and kill their worker."""

import asyncio
import logging
import os
import signal

from toolbus import ToolService, tool


class Asleep(ToolService):
    """Naps."""

    id = "asleep"
    scale_to_zero = True

    @tool(effect="read")
    async def nap(self) -> str:
        """Answer."""
        return "done"


@tool(service="pool", effect="idempotent")
async def work(seconds: float = 0.0) -> str:
    """Take some seconds."""
    await asyncio.sleep(seconds)
    return "done"


@tool(service="pool", effect="read")
async def broken() -> str:
    """Fail."""
    raise ValueError("broken")


@tool(service="pool", effect="read")
async def shout() -> str:
    """Log a lot."""
    for _ in range(1_000):
        logging.getLogger("toolbus").warning("x" * 8_000)
    return "done"


@tool(service="pool", effect="idempotent")
async def die() -> str:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
'''


class Installation:
    """A server, a worker with one slot, and what a test adds.

    Attributes:
        server: of its own.
        shell: runs commands.
        settings: of an agent.
        worker: the process.
        bus: an agent.
        stack: what is left at the end.
        gateways: two of them.
        ports: where the worker, the gateways and an exporter answer probes.
    """

    def __init__(
        self, forks: ForkServer, folder: Path, namespace: str = "prod", lease: float = 2.0, history: bool = False, **options: Any
    ) -> None:
        self.server: EmbeddedServer = new_server(**options)
        self.server.start()
        self.settings = Settings.load({}, url=self.server.url, namespace=namespace, lease=lease)
        self.keys = Keys(namespace)
        self.shell = Shell(forks, folder, self.server.url, namespace)
        self.shell.environment |= {"TOOLBUS_LEASE": str(lease), "TOOLBUS_CONCURRENCY": "1", "TOOLBUS_MAX_DELIVERIES": "1"}
        if history:
            self.shell.environment["TOOLBUS_HISTORY"] = "100"
        self.bus = ToolBus(settings=self.settings)
        self.processes: tuple[str, ...] = ()
        self.worker: Program = None  # type: ignore[assignment]
        self.ports = {name: free_port() for name in ("worker", "one", "two", "exporter", "page", *(("history",) if history else ()))}
        self.gateways: list[Program] = []
        self.exporter: Program = None  # type: ignore[assignment]
        self.stack = contextlib.AsyncExitStack()
        self._calls: list[asyncio.Task[Any]] = []

    @property
    def redis(self) -> redis.Redis:
        """A client of the server, which the caller closes."""
        return redis.Redis.from_url(self.server.url)

    def configure(self, **values: object) -> None:
        """Change the server's configuration."""
        with self.redis as client:
            for name, value in values.items():
                client.config_set(name.replace("_", "-"), str(value))

    async def call(self, tool: str, times: int = 1, **arguments: Any) -> None:
        """Make calls, and wait for none of them."""
        self._calls += [asyncio.ensure_future(self.bus.call(tool, arguments, timeout=600.0)) for _ in range(times)]

    def repeat(self, step: Callable[[], Awaitable[object]], after: float = 0.0) -> None:
        """Do something again and again, a second after it has ended, until the test ends."""

        async def steps() -> None:
            await asyncio.sleep(after)
            while True:
                await step()
                await asyncio.sleep(1.0)

        self._calls.append(asyncio.ensure_future(steps()))

    def keep(self, tool: str, times: int, **arguments: Any) -> None:
        """Make calls again and again, the first of them a second after each other."""
        for number in range(times):
            self.repeat(lambda: self.bus.call(tool, arguments, timeout=60.0), after=number)

    async def answered(self, tool: str, times: int, **arguments: Any) -> None:
        """Make calls, and wait until they have ended."""
        await asyncio.gather(*(self.bus.call(tool, arguments, timeout=60.0) for _ in range(times)))

    async def occupied(self, waiting: int) -> None:
        """Let the worker's only slot be taken for long, and calls wait for it."""
        await self.call("work", 1 + waiting, seconds=600.0)

        def queued() -> bool:
            with self.redis as client:
                queue = self.keys.queue(SERVICE)
                return client.xlen(queue) == 1 + waiting and client.xpending(queue, "g")["pending"] == 1

        await eventually(queued, timeout=30)

    async def start_worker(self) -> None:
        """Start the worker, and wait until its tools can be called."""
        self.worker = self.shell.start("worker", "pool.py", "--grace", "0.1", *self.processes, "--health-port", f"{self.ports['worker']}")
        await self.bus.wait_for_tool("work", timeout=60)

    def start_watchers(self) -> None:
        """Start two gateways, an exporter, and a history if it was asked for."""
        for name, port in (("one", self.ports["page"]), ("two", 0)):
            self.gateways.append(self.shell.start("serve", "--port", f"{port}", "--health-port", f"{self.ports[name]}"))
        self.exporter = self.shell.start("operate", "exporter", "--port", f"{self.ports['exporter']}")
        if "history" in self.ports:
            (self.shell.folder / "kept").mkdir()
            self.shell.start("operate", "history", "kept/calls.jsonl", "--health-port", f"{self.ports['history']}")

    async def restart_watchers(self) -> None:
        """Start what watches again, if it was started, with the environment as it is now."""
        if self.gateways:
            for process in (*self.gateways, self.exporter):
                process.send_signal(signal.SIGTERM)
            await eventually(lambda: all(each.poll() is not None for each in (*self.gateways, self.exporter)), timeout=60)
            self.gateways.clear()
            self.start_watchers()

    async def restart(self, name: str) -> None:
        """Start the worker, a gateway or the exporter again, with the environment as it is now, and wait until it can do its work."""
        process = {"worker": self.worker, "exporter": self.exporter, "two": self.gateways[1]}[name]
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: process.poll() is not None, timeout=60)
        if name == "worker":
            await self.start_worker()
        elif name == "exporter":
            self.exporter = self.shell.start("operate", "exporter", "--port", f"{self.ports[name]}")
        else:
            self.gateways[1] = self.shell.start("serve", "--port", "0", "--health-port", f"{self.ports[name]}")
        await eventually(lambda: self.metric(name, "toolbus_up") == 1.0, timeout=60)

    @property
    def watched(self) -> list[int]:
        """The ports that Prometheus scrapes."""
        return [port for name, port in self.ports.items() if name != "page"]

    def page(self) -> list[str]:
        """Return what the page of the first gateway names as wrong; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['page']}/ui/events", timeout=10) as events:
                for line in events:
                    if line.startswith(b"data: "):
                        found: list[str] = json.loads(line[6:]).get("problems", [])
                        return found
        except OSError:
            pass
        return []

    def metric(self, port: str, name: str) -> float:
        """Return the sum of a metric's samples; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def children(self) -> list[int]:
        """Return the processes of the worker's supervisor."""
        return [int(pid) for pid in Path(f"/proc/{self.worker.pid}/task/{self.worker.pid}/children").read_text().split()]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the worker a signal."""
        os.kill(self.worker.pid, number)

    async def doctor(self) -> list[dict[str, str]]:
        """Return the findings of ``toolbus doctor``."""
        done = await asyncio.to_thread(self.shell.run, "doctor", "--output", "json")
        found: list[dict[str, str]] = json.loads(done.stdout)
        assert (done.returncode == 1) == any(each["state"] == "fail" for each in found), done.stderr
        return found

    async def close(self) -> None:
        """End everything."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        for process in self.shell.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        if self.server.running:
            os.kill(self.server.pid, signal.SIGCONT)
        await asyncio.to_thread(self.shell.close)
        await self.bus.aclose()
        await self.stack.aclose()
        self.server.stop()


Installed = Callable[..., "contextlib.AbstractAsyncContextManager[Installation]"]


@contextlib.asynccontextmanager
async def installed(forks: ForkServer, folder: Path, **options: Any) -> AsyncIterator[Installation]:
    """Yield an installation whose worker serves."""
    (folder / "pool.py").write_text(TOOLS)
    made = Installation(forks, folder, **options)
    try:
        await made.bus.open()
        await made.start_worker()
        yield made
    finally:
        await made.close()
