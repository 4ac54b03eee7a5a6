"""At the worker: the children of its isolated tools, and the calls that run in them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from toolbus import telemetry
from toolbus.envelope import Request, encode
from toolbus.results import ConfigurationError, ErrorInfo, ToolError
from toolbus.settings import Settings
from toolbus.worker.function import FunctionTool
from toolbus.worker.isolation import messages
from toolbus.worker.isolation.messages import HEADER, SLACK, Job, News, Order, Said, Setup
from toolbus.worker.isolation.targets import MAIN, target_of

_MOST_CALLS = 1_000
"""Calls after which a child is replaced, so that what handlers leak goes with it."""

_STARTS_WITHIN = 60.0
_DIES_WITHIN = 5.0
_IDLE = 60.0
"""Seconds after which a child that nobody needed goes, all but one."""

_PREPARED = ("sys_path", "sys_argv", "orig_dir", "dir")
_MAIN_FROM = ("init_main_from_name", "init_main_from_path")


class HandlerCrashed(Exception):
    """A handler in a child raised something of its own; ``info`` is what its caller is told, the text is the traceback."""

    def __init__(self, info: ErrorInfo, crashed: str) -> None:
        super().__init__(f"in a child process:\n{crashed}")
        self.info = info


class _Lost(Exception):
    """A child ended, or makes no sense."""


class _Child:
    """One process that runs one call at a time."""

    def __init__(self, number: int, connection: socket.socket, died: asyncio.Future[News]) -> None:
        self.number = number
        self.died = died
        self.calls = 0
        self.used = 0.0
        self._connection = connection
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, job: Job) -> None:
        """Give it a call."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._connection)
        self.calls += 1
        self._streams[1].write(messages.framed(messages.encode_job(job)))

    async def hear(self, most: int) -> Said:
        """What it says next.

        :raises ToolError: that is more than ``most`` bytes.
        :raises _Lost: it has ended, or makes no sense.
        """
        assert self._streams is not None  # noqa: S101 - a call was sent
        reader = self._streams[0]
        try:
            (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            if size > most:
                raise ToolError(f"the output is over the limit of {most - SLACK} bytes", code="output_limit")
            return messages.decode_said(await reader.readexactly(size))
        except (EOFError, OSError, msgspec.MsgspecError) as error:
            raise _Lost from error

    def no_more(self) -> None:
        """Hear nothing more, even if something of it still holds its end open."""
        if self._streams is not None:
            self._streams[0].feed_eof()

    def close(self) -> None:
        """Close the channel."""
        if self._streams is None:
            self._connection.close()
        else:
            self._streams[1].close()


class Isolation:
    """Runs isolated tools, at most ``limit`` calls at once; further ones wait here.

    Open it before the first call. A child is kept for later calls, and is killed when its call is given up.
    """

    def __init__(self, settings: Settings, tools: Sequence[FunctionTool]) -> None:
        self._targets = tuple(target_of(made) for made in tools)
        self._indexes = {made: index for index, made in enumerate(tools)}
        self._most = settings.max_output + SLACK
        self.limit = min(settings.concurrency, settings.isolated or max(2, os.cpu_count() or 2))
        self._turns = asyncio.Semaphore(self.limit)
        self._children: dict[int, _Child] = {}
        self._idle: list[_Child] = []
        self._number = 0
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """The nursery's process id, when there is one."""
        return [] if self._process is None else [self._process.pid]

    # -- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the nursery, which imports the tools, and a first child.

        :raises ConfigurationError: the tools can't be found in another process; says why.
        """
        async with self._starting:
            if self._orders is None:
                await self._start()
        self._spare()

    async def aclose(self) -> None:
        """End every child and the nursery."""
        if self._trimming is not None:
            self._trimming.cancel()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None
        self._lose()
        process, self._process = self._process, None
        if process is not None:
            # Its connection is closed, at which it kills the children and ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DIES_WITHIN):
                    await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        orders = ours.dup()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *(f"-W{each}" for each in sys.warnoptions),
                    "-c",
                    f"from toolbus.worker.isolation.nursery import main; main({theirs.fileno()})",
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    # What is meant for the worker (Ctrl-C, a closed terminal) is not meant for it.
                    start_new_session=True,
                )
            writer.write(msgspec.json.encode(self._setup()) + b"\n")
            async with asyncio.timeout(_STARTS_WITHIN):
                line = await reader.readline()
            _check_ready(line)
        except BaseException as error:
            orders.close()
            writer.close()
            if isinstance(error, TimeoutError):
                raise ConfigurationError(f"importing the isolated tools takes longer than {_STARTS_WITHIN:g} s") from None
            raise
        self._orders = orders
        self._listening = asyncio.create_task(self._listen(reader, writer), name="toolbus-isolation")

    def _setup(self) -> Setup:
        from multiprocessing import spawn  # noqa: PLC0415 - 20 ms that most processes never need

        prepared = spawn.get_preparation_data("toolbus")
        main = any(target.module == MAIN for target in self._targets)
        names = (*_PREPARED, *_MAIN_FROM) if main else _PREPARED
        return Setup({name: prepared[name] for name in names if name in prepared}, self._targets, os.environ.get("PYTHONPATH"))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    news = msgspec.json.decode(line, type=News)
                    child = self._children.pop(news.child, None) if news.kind == "died" else None
                    if child is not None:
                        self._bury(child, news)
            telemetry.log.error("isolation.nursery_lost", children=len(self._children))
            self._lose()

    def _lose(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        children, self._children = list(self._children.values()), {}
        for child in children:
            self._bury(child, News("died", child.number))
        self._idle.clear()

    def _bury(self, child: _Child, news: News) -> None:
        if not child.died.done():
            child.died.set_result(news)
        if child in self._idle:
            self._idle.remove(child)
            child.close()
        else:
            # What it said before it died comes first.
            asyncio.get_running_loop().call_later(1.0, child.no_more)

    # -- calls ------------------------------------------------------------------------------------

    async def run(self, made: FunctionTool, request: Request, *, attempt: int, deadline: float, began: bool) -> AsyncIterator[Any]:
        """Run one call; yields what the handler does, and lastly its result. Left early, it kills the child.

        :param began: a second execution must not happen, so that a child that dies leaves the outcome unknown.
        :raises ToolError: it failed, or its process died.
        :raises HandlerCrashed: it raised.
        """
        job = Job(self._indexes[made], encode(request), attempt, deadline, made.memory_limit)
        child = await self._take()
        fit = False
        try:
            await child.send(job)
            while (said := await child.hear(self._most)).kind != "end":
                yield _item(said)
            fit = said.fit
            error = messages.error_of(said)
            if error is not None:
                raise HandlerCrashed(error, said.crashed) if said.crashed else ToolError(error)
        except _Lost:
            self._kill(child)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DIES_WITHIN):
                    await asyncio.shield(child.died)
            raise _death(child, made, began=began) from None
        finally:
            if fit and child.calls < _MOST_CALLS and not child.died.done():
                self._keep(child)
            else:
                self._discard(child)

    async def _take(self) -> _Child:
        await self._turns.acquire()
        try:
            if self._orders is None:
                async with self._starting:
                    if self._orders is None:
                        await self._restart()
            child = self._idle.pop() if self._idle else self._bear()
            self._spare()
        except BaseException as error:
            self._turns.release()
            if isinstance(error, OSError):
                raise _no_process(str(error)) from None
            raise
        return child

    async def _restart(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        try:
            await self._start()
        except ConfigurationError as error:
            raise _no_process(str(error)) from None

    def _bear(self) -> _Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._number += 1
        child = _Child(self._number, ours, asyncio.get_running_loop().create_future())
        try:
            with theirs:
                self._order(Order("bear", child.number), theirs)
        except OSError:
            ours.close()
            raise
        self._children[child.number] = child
        return child

    def _spare(self) -> None:
        """Have a child ready for the next call, so that it need not wait for its birth."""
        if self._orders is not None and not self._idle and len(self._children) < self.limit:
            self._idle.append(self._bear())

    def _order(self, order: Order, channel: socket.socket | None = None) -> None:
        assert self._orders is not None  # noqa: S101 - the callers looked
        payload = msgspec.json.encode(order) + b"\n"
        socket.send_fds(self._orders, [payload], [] if channel is None else [channel.fileno()])

    def _kill(self, child: _Child) -> None:
        if self._orders is not None and not child.died.done():
            with contextlib.suppress(OSError):
                self._order(Order("kill", child.number))

    def _keep(self, child: _Child) -> None:
        child.used = asyncio.get_running_loop().time()
        self._idle.append(child)
        self._turns.release()
        if len(self._idle) > 1 and self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(_IDLE, self._trim)

    def _discard(self, child: _Child) -> None:
        """Kill a child; its turn is another's once it is dead."""
        self._kill(child)
        child.close()
        child.died.add_done_callback(lambda _: self._turns.release())
        if not self._idle:
            child.died.add_done_callback(lambda _: self._spare())

    def _trim(self) -> None:
        self._trimming = None
        before = asyncio.get_running_loop().time() - _IDLE
        old = [child for child in self._idle[:-1] if child.used <= before]
        self._idle = [child for child in self._idle if child not in old]
        for child in old:
            self._kill(child)
            child.close()
        if len(self._idle) > 1:
            self._trimming = asyncio.get_running_loop().call_later(_IDLE, self._trim)


def _check_ready(line: bytes) -> None:
    news = msgspec.json.decode(line, type=News) if line else News("refused", error="the process ended while it imported them")
    if news.kind == "refused":
        raise ConfigurationError(f"the isolated tools can't be imported in another process: {news.error}")


def _item(said: Said) -> Any:
    if said.kind == "text":
        return said.text
    if said.kind == "progress":
        return said.progress
    if said.kind == "blob":
        return said.blobs[0]
    return messages.result_of(said)


def _death(child: _Child, made: FunctionTool, *, began: bool) -> ToolError:
    news = child.died.result() if child.died.done() else News("died")
    if news.error:
        return _no_process(news.error)
    status = news.status
    how = "ended"
    if status is not None and status < 0:
        how = f"was ended by {_signal_name(-status)}"
    elif status is not None:
        how = f"ended itself with exit code {status}"
    why = ""
    if status == -signal.SIGKILL:
        why = ", most likely by the system for want of memory"
    elif made.memory_limit:
        why = f", perhaps at its memory limit of {made.memory_limit} bytes"
    message = f"the process of the tool {how}{why}"
    if began:
        return ToolError(f"{message}; it may or may not have taken effect", type="outcome_unknown", code="process_died")
    return ToolError(message, code="process_died")


def _no_process(why: str) -> ToolError:
    return ToolError(f"the tool's process can't be started: {why}; try again later", type="unavailable", code="no_process", retryable=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
