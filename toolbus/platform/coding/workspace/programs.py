"""A program that runs in a workspace, under the launcher: its output, its end, and what ends it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import msgspec

from toolbus.bus.support.safe_text import text_of
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.confinement import LAUNCHER


class Output:
    """Takes in text, keeps at most so many characters.

    Args:
        most: characters that are kept; three quarters of them from the beginning.
    """

    def __init__(self, most: int) -> None:
        self._head_room = most - most // 4
        self._most_tail = most // 4
        self._head: list[str] = []
        self._tail = ""
        self._unseen = 0

    def add(self, text: str) -> str:
        """Take in text; return what of it belongs to the beginning, to be passed on at once."""
        begin = text[: self._head_room]
        if begin:
            self._head.append(begin)
            self._head_room -= len(begin)
        rest = self._tail + text[len(begin) :]
        cut = max(0, len(rest) - self._most_tail)
        self._unseen += cut
        self._tail = rest[cut:]
        return begin

    @property
    def rest(self) -> str:
        """The rest after the beginning: how much is left out, and the end."""
        gap = f"\n[… {self._unseen:,} characters left out …]\n" if self._unseen else ""
        return gap + self._tail

    def __str__(self) -> str:
        return "".join(self._head) + self.rest


class Unread:
    """The output of a program since it was last read; what is not read in time is left out from its beginning.

    Args:
        most: characters that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._text = ""
        self._lost = 0

    def add(self, text: str) -> None:
        """Take in text."""
        self._text += text
        cut = max(0, len(self._text) - self._most)
        self._lost += cut
        self._text = self._text[cut:]

    def take(self) -> str:
        """Return what came since the last time."""
        gap = f"[… {self._lost:,} characters left out …]\n" if self._lost else ""
        text, self._text, self._lost = gap + self._text, "", 0
        return text


_CHUNK = 65_536
# A program that prints more than this is ended.
MOST_PRINTED = 64 << 20
# Seconds for the guard to end what is left, once it is told.
_GONE = 5.0

REASONS = {
    "time": "it was ended: it took longer than {seconds:.1f} s",
    "memory": "it was ended: its processes used more than {memory:,} bytes of memory",
    "processes": "it was ended: it had more than {processes} processes at once",
    "output": "it was ended: it printed more than {printed:,} bytes",
    "disk": "it was ended: the workspace is full ({total_bytes:,} bytes or {entries:,} entries)",
}
"""Texts for the model about a program that was ended, by the reason."""


Made = TypeVar("Made", bound="Program")


class Finished(msgspec.Struct, frozen=True):
    """A program that has ended.

    Attributes:
        status: its exit status; 128 and the signal's number when one ended it.
        reason: why it was ended, see ``REASONS``; empty when it ended by itself.
        output: what is kept of its output.
        seconds: that it ran.
    """

    status: int
    reason: str
    output: str
    seconds: float


class Program:
    """A running program; ``start`` makes one."""

    def __init__(self, process: asyncio.subprocess.Process, report: int, output: Output, unread: Unread) -> None:
        self._process = process
        self._report = report
        self._output = output
        self.unread = unread
        self._began = time.monotonic()
        self._pieces: asyncio.Queue[str] | None = None
        self.reason = ""
        self._ending: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return not self._reading.done()

    @property
    def rest(self) -> str:
        """The rest after the pieces: how much is left out, and the end of its output."""
        return self._output.rest

    def on_end(self, done: Callable[[], object]) -> None:
        """Have a function called when it has ended."""
        self._reading.add_done_callback(lambda _task: done())

    def limit(self, seconds: float) -> None:
        """Have it ended after a time."""
        timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)
        self.on_end(timer.cancel)

    def _time_is_up(self) -> None:
        self._ending = asyncio.create_task(self.end(reason="time"))

    async def finished(self) -> Finished:
        """Wait until it has ended, and nothing that it started is left.

        Raises:
            ToolError: the machine lets no program be confined.
        """
        await asyncio.wait((self._reading,))
        status = self._process.returncode
        confine, _, reason = self.reason.partition("confine:")
        if reason and not confine:
            raise cant_confine(reason)
        return Finished(status if status is not None else -1, self.reason, str(self._output), time.monotonic() - self._began)

    async def pieces(self) -> AsyncIterator[str]:
        """Yield its output as it comes, to the end. Only once, and from the start on."""
        # What comes here is bounded by what is kept of the output.
        pieces = self._pieces = asyncio.Queue()
        while not self._reading.done() or not pieces.empty():
            getting = asyncio.ensure_future(pieces.get())
            try:
                await asyncio.wait((getting, self._reading), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not getting.done():
                    getting.cancel()
            if getting.done() and not getting.cancelled():
                yield getting.result()

    async def end(self, grace: float = 0.0, reason: str = "") -> None:
        """End it with everything that it started: ask first, and kill it after ``grace`` seconds. Twice is once."""
        self.reason = self.reason or reason
        with anyio.CancelScope(shield=True):
            if grace > 0 and self.running:
                self._signal(signal.SIGTERM)
                await asyncio.wait((self._reading,), timeout=grace)
            self._signal(signal.SIGKILL)
            await asyncio.wait((self._reading,), timeout=_GONE)
            if self.running:
                # Something that can't be ended holds its output open.
                self._reading.cancel()
                await asyncio.wait((self._reading,))

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 - it is started with a pipe
        decoder, total = codecs.getincrementaldecoder("utf-8")("replace"), 0
        try:
            while chunk := await stream.read(_CHUNK):
                self._take(decoder.decode(chunk))
                total += len(chunk)
                if total > MOST_PRINTED:
                    self.reason = self.reason or "output"
                    self._signal(signal.SIGKILL)
                # What has arrived is read without waiting, so others must be given their turn.
                await asyncio.sleep(0)
            self._take(decoder.decode(b"", final=True))
            await self._process.wait()
        finally:
            with contextlib.suppress(OSError):
                told = os.read(self._report, 4000).decode("utf-8", "replace").partition("\n")[0]
                self.reason = told or self.reason
            os.close(self._report)

    def _take(self, text: str) -> None:
        self.unread.add(text)
        begin = self._output.add(text)
        if begin and self._pieces is not None:
            self._pieces.put_nowait(begin)


async def start_plain(words: Sequence[str], environment: Mapping[str, str], most_output: int, make: type[Made]) -> Made:
    """Start a program of ours that is not confined, such as a command line that speaks with a daemon.

    Args:
        words: its command line.
        environment: all that the program sees of one.
        most_output: characters of its output that are kept.
        make: the class of what is returned.

    Raises:
        ToolError: it can't be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.close(writing)
    process = await _process(words, environment, (), reading)
    return make(process, reading, Output(most_output), Unread(most_output))


async def start(plan: Mapping[str, Any], environment: Mapping[str, str], most_output: int, on_start: Callable[[Program], None]) -> Program:
    """Start a program under the launcher.

    Args:
        plan: the launcher's plan, without ``parent`` and ``report``.
        environment: all that the program sees of one.
        most_output: characters of its output that are kept.
        on_start: called with it at once, so that it is never lost to a cancellation.

    Raises:
        ToolError: it can't be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    words = [sys.executable, "-I", "-S", LAUNCHER, json.dumps({**plan, "parent": os.getpid(), "report": writing})]
    try:
        process = await _process(words, environment, (writing,), reading)
    finally:
        os.close(writing)
    program = Program(process, reading, Output(most_output), Unread(most_output))
    on_start(program)
    return program


async def _process(words: Sequence[str], environment: Mapping[str, str], handed: Sequence[int], report: int) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            pass_fds=handed,
            start_new_session=True,
        )
    except BaseException as error:
        os.close(report)
        if isinstance(error, (OSError, ValueError)):
            reason = getattr(error, "strerror", "") or text_of(error)
            raise ToolError(f"no program can be started here: {reason}", type="unavailable", code="cant_start") from None
        raise


def cant_confine(reason: str) -> ToolError:
    """Return the error of a machine that lets no program be confined."""
    message = (
        f"this machine lets no command be confined ({reason}), so none is run. An operator can allow user namespaces, or run the coding "
        "agent in a container of its own and allow commands that are not confined"
    )
    return ToolError(message, type="unavailable", code="cant_confine")
