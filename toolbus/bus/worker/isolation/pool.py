"""The pool of child processes in which a worker runs its isolated tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import Request, encode
from toolbus.bus.values.results import CallRefused, ConfigurationError, ErrorInfo, ToolError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.function import FunctionTool
from toolbus.bus.worker.isolation import messages
from toolbus.bus.worker.isolation.messages import MAIN, MESSAGE_HEADER, SLACK, Job, Message, Order, Report, Setup, Target
from toolbus.bus.worker.loading import places_asked

# Messages of the call before that are passed over.
_MOST_LATE = 64
# Bytes that are read from a child at once.
_AT_ONCE = 262_144

T = TypeVar("T")


class ChildLost(Exception):
    """A child ended."""


class ChildDeviated(Exception):
    """A child sent what is not of its call, or what can't be decoded; the text says which."""


class ChildProcess:
    """One process that runs one call at a time.

    Its messages carry the token of their call and a number. Nothing is read ahead of a call's end, so that what is left is seen.

    Attributes:
        late: messages of an earlier call that came during a later one; such a child gets no further call.
    """

    def __init__(self, number: int, connection: socket.socket, died: asyncio.Future[Report]) -> None:
        self.number = number
        self.died = died
        self.calls = 0
        self.used = 0.0
        self._connection = connection
        self._received = bytearray()
        self._token = self._before = b""
        self._next_number = self.late = 0

    async def send(self, job: Job) -> None:
        """Send it a call.

        Raises:
            ChildLost: it has ended.
        """
        self.calls += 1
        self._before, self._token, self._next_number = self._token, job.token, 0
        try:
            await asyncio.get_running_loop().sock_sendall(self._connection, messages.framed_job(job))
        except OSError as error:
            raise ChildLost from error

    async def receive(self, most: int) -> Message:
        """Receive its next message.

        Args:
            most: bytes that a message may have.

        Raises:
            ToolError: that is more than ``most`` bytes.
            ChildLost: it has ended.
            ChildDeviated: that is not of its call, or can't be read.
        """
        size, token, number = MESSAGE_HEADER.unpack(await self._take(MESSAGE_HEADER.size))
        while token == self._before and size <= most and self.late < _MOST_LATE:
            # The call before this one went on after its end; this call's own answer follows.
            self.late += 1
            await self._take(size)
            size, token, number = MESSAGE_HEADER.unpack(await self._take(MESSAGE_HEADER.size))
        if token != self._token:
            raise ChildDeviated("something that is not of its call")
        if number != self._next_number:
            raise ChildDeviated(f"message {number} instead of {self._next_number}")
        self._next_number += 1
        if size > most:
            raise ToolError(f"the output is over the limit of {most - SLACK} bytes (TOOLBUS_MAX_OUTPUT)", code="output_limit")
        try:
            return messages.decode_message(await self._take(size))
        except DECODE_ERRORS as error:
            raise ChildDeviated("something that can't be read") from error

    def is_quiet(self) -> bool:
        """Return whether it sends nothing, as it should between two calls; what it sent before is in the channel by now."""
        if self._received:
            return False
        try:
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def no_more(self) -> None:
        """Receive nothing more than it has sent, even if something of it still holds its end open."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the channel, on which nothing may be receiving or sending."""
        self._connection.close()

    async def _take(self, size: int) -> bytes:
        received, loop = self._received, asyncio.get_running_loop()
        while len(received) < size:
            try:
                part = await loop.sock_recv(self._connection, _AT_ONCE)
            except OSError as error:
                raise ChildLost from error
            if not part:
                raise ChildLost
            received += part
        taken = bytes(received[:size])
        del received[:size]
        return taken


def item_of(message: Message) -> Any:
    """Return what a handler yielded, or its result.

    Raises:
        ChildDeviated: the message does not carry what its kind says.
    """
    if message.kind == "text" and message.text is not None:
        return message.text
    if message.kind == "progress" and message.progress is not None:
        return message.progress
    if message.kind == "blob" and message.blobs:
        return message.blobs[0]
    if message.kind != "result":
        raise ChildDeviated(f"a {message.kind} without any")
    return decoded(messages.result_of, message)


def decoded(of: Callable[[Message], T], message: Message) -> T:
    """Decode what a message carries as JSON.

    Raises:
        ChildDeviated: it can't be decoded.
    """
    try:
        return of(message)
    except DECODE_ERRORS as error:
        raise ChildDeviated("something that can't be read") from error


class HandlerCrashed(Exception):
    """A handler in a child raised something of its own; ``info`` is what its caller is told, the text is the traceback."""

    def __init__(self, info: ErrorInfo, crashed: str) -> None:
        super().__init__(f"in a child process:\n{crashed}")
        self.info = info


def died(message: str, *, once: bool) -> ToolError:
    """Return the failure of a call whose child has ended; with ``once`` its outcome is unknown."""
    if once:
        return ToolError(f"{message}; it may or may not have taken effect", type="outcome_unknown", code="process_died")
    return ToolError(message, code="process_died")


def death(report: Report, made: FunctionTool, *, once: bool) -> ToolError:
    """Return the failure of a call whose child has died as reported."""
    if report.error:
        return no_process(report.error)
    status = report.status
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
    return died(f"the process of the tool {how}{why}", once=once)


def no_process(why: str) -> ToolError:
    """Return the failure of a call for which no child could be started."""
    return ToolError(f"the tool's process can't be started: {why}; try again later", type="unavailable", code="no_process", retryable=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_MOST_CALLS = 1_000
"""Calls after which a child is replaced, so that what handlers leak goes with it."""

_STARTS_WITHIN = 60.0
_DIES_WITHIN = 5.0
_IDLE = 60.0
"""Seconds after which a child that no call needed is ended, all but one."""

_PREPARED = ("sys_path", "sys_argv", "orig_dir", "dir")
_MAIN_FROM = ("init_main_from_name", "init_main_from_path")


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
        self._children: dict[int, ChildProcess] = {}
        self._idle: list[ChildProcess] = []
        self._number = 0
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._trimming: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> list[int]:
        """The fork server's process id, when there is one."""
        return [] if self._process is None else [self._process.pid]

    # -- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the fork server, which imports the tools, and a first child.

        Raises:
            ConfigurationError: the tools can't be found in another process; says why.
        """
        async with self._starting:
            if self._orders is None:
                await self._start()
        self._spare()

    async def aclose(self) -> None:
        """End every child and the fork server."""
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
            await at_most(_DIES_WITHIN, process.wait())
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
                    f"from toolbus.bus.worker.isolation.fork_server import main; main({theirs.fileno()})",
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
        prepare = {name: prepared[name] for name in names if name in prepared}
        return Setup(prepare, self._targets, places_asked(), os.environ.get("PYTHONPATH"))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    news = msgspec.json.decode(line, type=Report)
                    child = self._children.pop(news.child, None) if news.kind == "died" else None
                    if child is not None:
                        self._bury(child, news)
            telemetry.log.error("isolation.fork_server_lost", children=len(self._children))
            self._lose()

    def _lose(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        children, self._children = list(self._children.values()), {}
        for child in children:
            self._bury(child, Report("died", child.number))
        self._idle.clear()

    def _bury(self, child: ChildProcess, news: Report) -> None:
        if not child.died.done():
            child.died.set_result(news)
        if child in self._idle:
            self._idle.remove(child)
            child.close()
        else:
            # The messages that it sent before it died come first.
            asyncio.get_running_loop().call_later(1.0, child.no_more)

    # -- calls ------------------------------------------------------------------------------------

    async def run(
        self, made: FunctionTool, request: Request, *, attempt: int, deadline: float, begin: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[Any]:
        """Run one call; yield what the handler yields, and lastly its result. Left early, it kills the child.

        Args:
            made: the tool.
            request: what it is called with.
            attempt: which delivery of its request the call is.
            deadline: monotonic seconds.
            begin: awaited just before a child gets work that must not happen twice; a child that dies leaves its outcome unknown.

        Raises:
            ToolError: it failed, or its process died.
            HandlerCrashed: it raised.
        """
        trace = telemetry.current_traceparent() if telemetry.active() else ""
        job = Job(self._indexes[made], encode(request), attempt, deadline, made.memory_limit, os.urandom(8), trace)
        child = await self._take()
        fit = True
        try:
            if begin is not None:
                await begin()
            fit = False
            await child.send(job)
            while (message := await child.receive(self._most)).kind != "end":
                yield item_of(message)
            fit = message.fit and not child.late and child.is_quiet()
            error = decoded(messages.error_of, message)
            if error is not None:
                if message.crashed:
                    raise HandlerCrashed(error, message.crashed)
                raise (CallRefused if error.origin == "bus" else ToolError)(error)
        except ChildDeviated as error:
            telemetry.log.error("isolation.child_deviated", tool=made.name, id=request.id, said=str(error))
            raise died(f"the process of the tool {made.name!r} said {error}, and was ended", once=begin is not None) from None
        except ChildLost:
            self._kill(child)
            await at_most(_DIES_WITHIN, asyncio.shield(child.died))
            raise death(child.died.result() if child.died.done() else Report("died"), made, once=begin is not None) from None
        finally:
            if fit and child.calls < _MOST_CALLS and not child.died.done():
                self._keep(child)
            else:
                self._discard(child)

    async def _take(self) -> ChildProcess:
        await self._turns.acquire()
        try:
            if self._orders is None:
                async with self._starting:
                    if self._orders is None:
                        await self._restart()
            child = self._next_idle() or self._start_child()
            self._spare()
        except BaseException as error:
            self._turns.release()
            if isinstance(error, OSError):
                raise no_process(reason_of(error)) from None
            raise
        return child

    def _next_idle(self) -> ChildProcess | None:
        """Return a child that waits for a call, or None; one that sends something unasked is killed instead."""
        while self._idle:
            child = self._idle.pop()
            if child.is_quiet():
                return child
            telemetry.log.error("isolation.child_deviated", tool="", id="", said="something between two calls")
            self._end(child)
        return None

    async def _restart(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        try:
            await self._start()
        except ConfigurationError as error:
            raise no_process(str(error)) from None

    def _start_child(self) -> ChildProcess:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._number += 1
        child = ChildProcess(self._number, ours, asyncio.get_running_loop().create_future())
        try:
            with theirs:
                self._order(Order("start", child.number), theirs)
        except OSError:
            ours.close()
            raise
        self._children[child.number] = child
        return child

    def _spare(self) -> None:
        """Have a child ready for the next call, so that it need not wait for a process."""
        if self._orders is not None and not self._idle and len(self._children) < self.limit:
            self._idle.append(self._start_child())

    def _order(self, order: Order, channel: socket.socket | None = None) -> None:
        assert self._orders is not None  # noqa: S101 - the callers looked
        payload = msgspec.json.encode(order) + b"\n"
        socket.send_fds(self._orders, [payload], [] if channel is None else [channel.fileno()])

    def _kill(self, child: ChildProcess) -> None:
        if self._orders is not None and not child.died.done():
            with contextlib.suppress(OSError):
                self._order(Order("kill", child.number))

    def _end(self, child: ChildProcess) -> None:
        self._kill(child)
        child.close()

    def _keep(self, child: ChildProcess) -> None:
        child.used = asyncio.get_running_loop().time()
        self._idle.append(child)
        self._turns.release()
        if len(self._idle) > 1 and self._trimming is None:
            self._trimming = asyncio.get_running_loop().call_later(_IDLE, self._trim)

    def _discard(self, child: ChildProcess) -> None:
        """Kill a child; its turn is another's once it is dead."""
        self._end(child)
        child.died.add_done_callback(lambda _: self._turns.release())
        if not self._idle:
            child.died.add_done_callback(lambda _: self._spare())

    def _trim(self) -> None:
        self._trimming = None
        before = asyncio.get_running_loop().time() - _IDLE
        old = [child for child in self._idle[:-1] if child.used <= before]
        self._idle = [child for child in self._idle if child not in old]
        for child in old:
            self._end(child)
        if len(self._idle) > 1:
            self._trimming = asyncio.get_running_loop().call_later(_IDLE, self._trim)


def _check_ready(line: bytes) -> None:
    news = msgspec.json.decode(line, type=Report) if line else Report("refused", error="the process ended while it imported them")
    if news.kind == "refused":
        raise ConfigurationError(f"the isolated tools can't be imported in another process: {news.error}")


def target_of(made: FunctionTool) -> Target:
    """Return how another process finds a tool again.

    Raises:
        ConfigurationError: it could not.
    """
    where = f"the tool {made.name!r} ({made.origin}) has isolation='process'"
    if "<" in made.qualname:
        raise ConfigurationError(f"{where}, so another process must find it: define it at the top of a module, not in a function")
    if made.module == MAIN and getattr(sys.modules.get(MAIN), "__file__", None) is None:
        raise ConfigurationError(f"{where}, so another process must find it: define it in a file, not in a console or notebook")
    return Target(made.module, made.qualname, made.name)
