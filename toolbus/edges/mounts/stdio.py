"""Speak with an MCP server that is a child process, within bounds that the SDK's own transport does not have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolbus.bus import telemetry
from toolbus.bus.support.display import harmless
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError
from toolbus.edges.mounts.answers import TOO_LONG, UNREADABLE
from toolbus.edges.mounts.options import Command

_LONGEST = 500
_KEPT = 5
# Lines that are logged at once, and per second after that.
_BURST = 200
_RATE = 20.0
# Lines that come within so many seconds of each other are one event, of at most so many lines and seconds.
_SILENCE = 0.1
_MOST_LINES = 50
_LONGEST_WAIT = 1.0


class StderrLog:
    """Reads a child's standard error to its end.

    Args:
        mount: the name of the mount, for the log.
    """

    def __init__(self, mount: str) -> None:
        self._mount = mount
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._allowance = float(_BURST)
        self._filled = time.monotonic()
        self._dropped = 0
        self._gathered: list[str] = []
        self._since = 0.0

    @property
    def last_words(self) -> str:
        """The last lines that were not empty, in one line."""
        return " / ".join(self._last)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Log what comes until the stream ends."""
        line, overlong = b"", False
        while chunk := await self._next(stream):
            *ended, rest = chunk.split(b"\n")
            for part in ended:
                if not overlong:
                    self._tell(line + part)
                line, overlong = b"", False
            line = line + rest
            if len(line) > _LONGEST:
                if not overlong:
                    self._tell(line)
                # The end of a line that is too long is left out.
                line, overlong = b"", True
            await asyncio.sleep(0)
        if not overlong:
            self._tell(line)
        self._flush()
        self._tell_dropped()

    async def _next(self, stream: asyncio.StreamReader) -> bytes:
        """Return what comes next; when nothing comes for a moment, what was gathered is logged meanwhile."""
        if self._gathered:
            try:
                # What never ends a line, such as a bar of progress, holds up no lines before it.
                async with asyncio.timeout(min(_SILENCE, self._since + _LONGEST_WAIT - time.monotonic())):
                    return await stream.read(65_536)
            except TimeoutError:
                self._flush()
        return await stream.read(65_536)

    def _tell(self, line: bytes) -> None:
        text = harmless(line[:_LONGEST].decode("utf-8", "replace")).rstrip()
        if not text:
            return
        self._last.append(text.strip())
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._filled) * _RATE)
        self._filled = now
        if self._allowance < 1:
            self._dropped += 1
            return
        self._allowance -= 1
        self._tell_dropped()
        if not self._gathered:
            self._since = now
        self._gathered.append(text)
        if len(self._gathered) >= _MOST_LINES or now - self._since > _LONGEST_WAIT:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            text, self._gathered = "\n".join(self._gathered), []
            telemetry.log.info("mount.stderr", mount=self._mount, text=text)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._flush()
            telemetry.log.warning("mount.stderr_dropped", mount=self._mount, lines=self._dropped)
            self._dropped = 0


_CHUNK = 65_536
# Lines in a row that are no message, after which a server is given up.
_MOST_NONSENSE = 1_000
# Seconds for a child to end by itself when its standard input was closed, and after SIGTERM.
_LEAVING = 2.0
# Bytes at each end of a message that is too long, in which the id of what it answers is looked for.
_ENDS = 256
_ID_AT_START = re.compile(rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\s*,')
_ANSWER = re.compile(rb'\s*"(?:result|error)"\s*:')
_ID_AT_END = re.compile(rb',\s*"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')

# The kernel ends the child when this process is killed; a server that hangs would not see the end of its input.
_TIED = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9);os.getppid()==int(sys.argv[1]) or os._exit(1);os.execvp(sys.argv[2],sys.argv[2:])"
)

Message = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Message], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio(command: Command, most_bytes: int, stderr: StderrLog, ended: Callable[[str], None]) -> AsyncIterator[Streams]:
    """Start a server, and end it and its own children at the exit.

    Args:
        command: what to start.
        most_bytes: bytes of one of its messages; a longer one is answered with an error instead.
        stderr: reads its standard error.
        ended: called with the reason when it ends, or says too much that is no message.

    Raises:
        ConfigurationError: it can't be started.
    """
    child = await _started(command)
    incoming, messages = anyio.create_memory_object_stream[Message](0)
    requests, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    leaving = False

    def tell(reason: str) -> None:
        if not leaving:
            ended(reason)

    def tell_failure(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Without this task calls would wait for ever.
            tell(f"speaking with it failed: {reason_of(error)}")

    reader = _Reader(child, incoming, most_bytes, tell)
    tasks = [
        asyncio.create_task(reader.read()),
        asyncio.create_task(_write(child, outgoing, tell)),
        asyncio.create_task(stderr.read(_pipe(child.stderr))),
    ]
    for task in tasks:
        task.add_done_callback(tell_failure)
    try:
        yield messages, requests
    finally:
        leaving = True
        with anyio.CancelScope(shield=True):
            messages.close()
            requests.close()
            await _stop(child)
            # A grandchild that survives may hold the pipes open.
            await asyncio.wait(tasks, timeout=_LEAVING / 4)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (incoming, outgoing):
                stream.close()
            transport: Any = getattr(child, "_transport", None)
            if transport is not None:
                transport.close()


async def _started(command: Command) -> asyncio.subprocess.Process:
    import shutil  # noqa: PLC0415 - only commands need it

    program = shutil.which(command.words[0], path=command.environment.get("PATH", os.defpath))
    if program is None:
        raise ConfigurationError(f"there is no program {command.words[0]!r}: install it, or give its path")
    words = (program, *command.words[1:])
    if sys.platform == "linux":
        words = (sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *words)
    pipe = asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=dict(command.environment),
            cwd=command.folder or None,
            # Its own group, so that what it starts ends with it, and Ctrl-C reaches this process alone.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{command.shown} can't be started: {getattr(error, 'strerror', '') or error}") from None


class _Reader:
    """Reads messages, one a line."""

    def __init__(
        self, child: asyncio.subprocess.Process, incoming: MemoryObjectSendStream[Message], most: int, ended: Callable[[str], None]
    ) -> None:
        self._child = child
        self._incoming = incoming
        self._most = most
        self._ended = ended
        self._nonsense = 0

    async def read(self) -> None:
        stream, buffer, overlong = _pipe(self._child.stdout), bytearray(), b""
        async with self._incoming:
            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                while chunk := await stream.read(_CHUNK):
                    *lines, rest = chunk.split(b"\n")
                    for line in lines:
                        whole, start, buffer, overlong = bytes(buffer) + line, overlong, bytearray(), b""
                        await (self._refuse(start, whole) if start else self._take(whole))
                    buffer += rest
                    if len(buffer) > self._most or overlong:
                        overlong = overlong or bytes(buffer[:_ENDS])
                        # Of the rest its end is kept.
                        del buffer[:-_ENDS]
                    # What has arrived is read without waiting, so others must be given their turn.
                    await asyncio.sleep(0)
            self._ended("it has ended" if not self._nonsense else "it has ended, and what it last wrote was no message")
        # Its output is read on, so that it is not blocked in a write when it is told to end.
        with contextlib.suppress(ConnectionError):
            while await stream.read(_CHUNK):
                pass

    async def _take(self, line: bytes) -> None:
        if len(line) > self._most:
            await self._refuse(line[:_ENDS], line[-_ENDS:])
            return
        if not line.strip():
            return
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            number = _answered(line)
            if number is not None:
                # Answered in its place: a call waits for it.
                self._nonsense = 0
                await self._fail(number, UNREADABLE, "it is no object, or not valid JSON")
                return
            self._nonsense += 1
            if self._nonsense >= _MOST_NONSENSE:
                self._ended(f"it wrote {_MOST_NONSENSE:,} lines that are no message")
                await asyncio.Event().wait()
            return
        self._nonsense = 0
        await self._incoming.send(SessionMessage(message))

    async def _refuse(self, start: bytes, end: bytes) -> None:
        """Answer in the place of a message that is too long."""
        found = _ID_AT_START.match(start) or _ID_AT_END.search(end[-_ENDS:])
        if found is None:
            self._ended(f"it wrote a message of more than {self._most:,} bytes")
            return
        await self._fail(int(found[1]), TOO_LONG, f"the answer has more than {self._most:,} bytes, so it was not read")

    async def _fail(self, number: int, code: int, message: str) -> None:
        error = mcp_types.ErrorData(code=code, message=message)
        await self._incoming.send(SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=number, error=error)))


def _answered(line: bytes) -> int | None:
    """Return the id of the request that a message answers which can't be read, or None."""
    try:
        # It takes lone surrogates, which the SDK does not.
        found = json.loads(line)
    except (ValueError, RecursionError):
        start = _ID_AT_START.match(line[:_ENDS])
        return int(start[1]) if start and _ANSWER.match(line, start.end()) else None
    if not isinstance(found, dict) or "method" in found or not {"result", "error"} & found.keys():
        return None
    number = found.get("id")
    return number if isinstance(number, int) and not isinstance(number, bool) else None


async def _write(
    child: asyncio.subprocess.Process, outgoing: MemoryObjectReceiveStream[SessionMessage], ended: Callable[[str], None]
) -> None:
    stdin = child.stdin
    if stdin is None:
        return
    try:
        async with outgoing:
            async for each in outgoing:
                stdin.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
    except (OSError, anyio.ClosedResourceError):
        ended("it reads no more messages")


def _pipe(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise RuntimeError("the child was started without pipes")
    return stream


async def _stop(child: asyncio.subprocess.Process) -> None:
    """End a child: close its input, then SIGTERM, then SIGKILL, for all that it has started."""
    if child.stdin is not None:
        child.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            _signal_group(child.pid, number)
        if await _ends(child, _LEAVING):
            break
    else:
        telemetry.log.error("mount.unkillable", pid=child.pid)
    # What it had started may still run.
    _signal_group(child.pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _ends(child: asyncio.subprocess.Process, seconds: float) -> bool:
    # Process.wait() may wait for the pipes too, which a grandchild can hold open.
    with anyio.move_on_after(seconds):
        while child.returncode is None:  # noqa: ASYNC110 - there is no event of the exit alone
            await anyio.sleep(0.01)
    return child.returncode is not None
