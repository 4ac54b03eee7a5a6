"""Several worker processes under one: started, restarted after a crash, reloaded, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from toolbus import telemetry
from toolbus.results import ConfigurationError, ToolbusError

_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 10.0
_STABLE_AFTER = 30.0
_REFUSED = 1
_MARGIN = 5.0
# Seconds for telling the server of a dead child.
_RETIRING = 5.0
_MOST_TOLD = 256


class Supervisor:
    """Runs ``processes`` copies of a command.

    Each child inherits one end of a pair of sockets, whose number it gets as ``--lifeline``. It tells its instance id there, and when
    this process dies in whatever way, the pair closes and the child stops.

    Args:
        command: of one child, without the lifeline.
        environment: the children's.
        grace: seconds a child may take to drain before it is killed.
        retire: gives what a dead child's instance held to others.
        watch: folders whose changes restart all children, or empty.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        processes: int,
        grace: float,
        retire: Callable[[str], Awaitable[object]],
        watch: Sequence[Path] = (),
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._processes = processes
        self._grace = grace
        self._retire = retire
        self._watch = list(watch)
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._restarting = False
        self.restarts = 0

    async def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit code: 1 when the children can't start at all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        async with asyncio.TaskGroup() as tasks:
            keepers = [tasks.create_task(self._keep(slot)) for slot in range(self._processes)]
            watching = tasks.create_task(self._reload()) if self._watch else None
            await asyncio.wait(keepers)
            if watching is not None:
                watching.cancel()
        return 0 if self._stopping.is_set() else _REFUSED

    async def _keep(self, slot: int) -> None:
        """Keep one child alive until everything stops."""
        delay = _BACKOFF_FIRST
        while not self._stopping.is_set():
            started = time.monotonic()
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    child = await asyncio.create_subprocess_exec(
                        *self._command,
                        "--lifeline",
                        str(theirs.fileno()),
                        env=self._environment,
                        pass_fds=(theirs.fileno(),),
                        # Ctrl-C reaches this process alone, which then stops the children in order.
                        start_new_session=True,
                    )
                self._children[slot] = child
                code = await self._outlive(child)
                del self._children[slot]
                lived = time.monotonic() - started
                if code != 0:
                    await self._bury(child.pid, _told(ours))
            if self._stopping.is_set():
                return
            if self._restarting:
                continue
            if code == _REFUSED and lived < _STABLE_AFTER and not self.restarts and not self._watch:
                # It said why in one line; the same start would be refused the same way.
                return
            delay = _BACKOFF_FIRST if lived > _STABLE_AFTER else min(delay * 2, _BACKOFF_MOST)
            self.restarts += 1
            telemetry.log.warning("supervisor.restarting", slot=slot, pid=child.pid, code=code, after=round(delay, 2))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):  # noqa: S311 - jitter
                    await self._stopping.wait()

    async def _bury(self, pid: int, instance: str) -> None:
        """Let others go on with what a dead child held, rather than wait for the end of its lease."""
        if not instance:
            return
        try:
            async with asyncio.timeout(_RETIRING):
                await self._retire(instance)
        except (ToolbusError, OSError) as error:
            # TimeoutError is an OSError.
            reason = str(error) or "the server did not answer"
            telemetry.log.warning("supervisor.not_retired", pid=pid, instance=instance, error=reason, advice="its lease ends by itself")

    async def _outlive(self, child: asyncio.subprocess.Process) -> int:
        """Wait for a child's end; when everything stops, ask it to drain, and kill it when it does not."""
        ended = asyncio.ensure_future(child.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if not ended.done():
            _signal(child, signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace + _MARGIN):
                    await asyncio.shield(ended)
            except TimeoutError:
                telemetry.log.error("supervisor.killing", pid=child.pid, grace=self._grace)
                _signal(child, signal.SIGKILL)
        return await ended

    async def _reload(self) -> None:
        async for _ in _changes(self._watch, self._stopping):
            telemetry.log.info("supervisor.reloading", processes=len(self._children))
            self._restarting = True
            for child in list(self._children.values()):
                _signal(child, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._grace + _MARGIN):
                        await child.wait()
            self._restarting = False


def check_reload() -> None:
    """Check that changes of files can be watched.

    Raises:
        ConfigurationError: they can't; the message says what to install.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigurationError("--reload needs watchfiles: pip install 'toolbus[reload]'")


async def _changes(folders: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    import watchfiles  # noqa: PLC0415 - an extra

    async for _ in watchfiles.awatch(*folders, watch_filter=watchfiles.PythonFilter(), stop_event=stop):
        yield


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _told(ours: socket.socket) -> str:
    """Return the instance id that a child has told, or an empty text."""
    ours.setblocking(False)
    try:
        return ours.recv(_MOST_TOLD).decode("utf-8", "replace")
    except OSError:
        return ""


def tell_instance(descriptor: int, instance: str) -> None:
    """In a child: tell the supervisor the instance id."""
    with contextlib.suppress(OSError):
        os.write(descriptor, instance.encode())


def watch_lifeline(descriptor: int, stop: Callable[[], None]) -> None:
    """In a child: call ``stop`` when the supervisor is gone."""

    def gone() -> None:
        loop.remove_reader(descriptor)
        stop()

    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, gone)
