"""Several worker processes under one: started, restarted after a crash, reloaded, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from toolbus import telemetry
from toolbus.results import ConfigurationError

_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 10.0
_STABLE_AFTER = 30.0
_REFUSED = 1
_MARGIN = 5.0


class Supervisor:
    """Runs ``processes`` copies of a command.

    A child gets the number of an inherited pipe's end as ``--lifeline``: when this process dies in
    whatever way, the pipe closes and the child stops.

    Args:
        command: of one child, without the lifeline.
        environment: the children's.
        grace: seconds a child may take to drain before it is killed.
        watch: folders whose changes restart all children, or empty.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, processes: int, grace: float, watch: Sequence[Path] = ()
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._processes = processes
        self._grace = grace
        self._watch = list(watch)
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._restarting = False
        # The end of the pipe that children inherit; -1 while none is open.
        self._lifeline = -1
        self.restarts = 0

    async def run(self) -> int:
        """Supervise until SIGTERM or SIGINT; return the exit code: 1 when the children can't start at all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        self._lifeline, held = os.pipe()
        try:
            async with asyncio.TaskGroup() as tasks:
                keepers = [tasks.create_task(self._keep(slot)) for slot in range(self._processes)]
                watching = tasks.create_task(self._reload()) if self._watch else None
                await asyncio.wait(keepers)
                if watching is not None:
                    watching.cancel()
        finally:
            os.close(self._lifeline)
            os.close(held)
        return 0 if self._stopping.is_set() else _REFUSED

    async def _keep(self, slot: int) -> None:
        """Keep one child alive until everything stops."""
        delay = _BACKOFF_FIRST
        while not self._stopping.is_set():
            started = time.monotonic()
            child = await asyncio.create_subprocess_exec(
                *self._command,
                "--lifeline",
                str(self._lifeline),
                env=self._environment,
                pass_fds=(self._lifeline,),
                # Ctrl-C reaches this process alone, which then stops the children in order.
                start_new_session=True,
            )
            self._children[slot] = child
            code = await self._outlive(child)
            del self._children[slot]
            lived = time.monotonic() - started
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


async def _changes(folders: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    try:
        import watchfiles  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("--reload needs watchfiles: pip install 'toolbus[reload]'") from None
    async for _ in watchfiles.awatch(*folders, watch_filter=watchfiles.PythonFilter(), stop_event=stop):
        yield


def _signal(child: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def watch_lifeline(descriptor: int, stop: Callable[[], None]) -> None:
    """In a child: call ``stop`` when the supervisor is gone."""

    def gone() -> None:
        loop.remove_reader(descriptor)
        stop()

    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, gone)
