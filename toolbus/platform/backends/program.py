"""``Program``: a program with everything that it starts, which ends with its host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolbus.platform.backends import marks
from toolbus.platform.backends.runner import CannotStart, Line

_KEEPER = str(Path(__file__).with_name("keeper.py"))
# Bytes of what a keeper says in one line.
_LONGEST = 16_384
_KEPT = 3
# Seconds that a keeper has, after it has killed everything, to end.
_ENDING = 15.0
# Seconds that it has to start the program.
_STARTING = 60.0


class Program:
    """One program; make it with ``start``.

    Attributes:
        pid: its process.
        code: its exit code, negative for a signal; None while it runs.
    """

    def __init__(self, keeper: asyncio.subprocess.Process, lifeline: socket.socket, mark: str, line: Line) -> None:
        self._keeper = keeper
        self._lifeline = lifeline
        self._mark = mark
        self._line = line
        self._told = asyncio.Event()
        self._last: deque[str] = deque(maxlen=_KEPT)
        self._reason = ""
        self.pid = 0
        self.code: int | None = None
        self._life = asyncio.create_task(self._follow(), name="toolbus-program")

    @property
    def last_words(self) -> str:
        """The last lines that it has written, in one."""
        return " / ".join(self._last)

    @property
    def is_ended(self) -> bool:
        """True once it has ended."""
        return self.code is not None

    @property
    def ending(self) -> str:
        """Say why it does not run, in one line."""
        if self._reason:
            return f"it can't be started: {self._reason}"
        how = "it has ended" if not self.code else f"it ended with exit code {self.code}" if self.code > 0 else _by_signal(-self.code)
        return f"{how}: {self.last_words}" if self.last_words else how

    async def told(self) -> None:
        """Wait until it runs, or has ended."""
        await self._told.wait()

    async def ended(self) -> None:
        """Wait until it has ended, with everything that it started."""
        await asyncio.shield(self._life)

    async def stop(self, within: float) -> None:
        """Ask it to end, and kill it after so many seconds; with everything that it started."""
        with contextlib.suppress(OSError):
            self._lifeline.send(b"%.3f\n" % max(0.0, within))
        await self._end(within)

    async def kill(self) -> None:
        """Kill it with everything that it started."""
        self._hang_up()
        await self._end(0.0)

    async def _end(self, within: float) -> None:
        await asyncio.wait([self._life], timeout=within + _ENDING)
        if not self._life.done():
            with contextlib.suppress(ProcessLookupError):
                self._keeper.kill()
            await asyncio.wait([self._life], timeout=_ENDING)

    async def _follow(self) -> None:
        """Take in what the keeper says until it ends."""
        reader, writer = await asyncio.open_connection(sock=self._lifeline, limit=_LONGEST)
        with contextlib.suppress(OSError, ValueError):
            while said := await reader.readline():
                self._take(said[:1], said[2:-1])
        status = await self._keeper.wait()
        if self.code is None:
            self.code = status
            # Its keeper was killed, so that nobody has ended what the program had started.
            await asyncio.to_thread(marks.end, self._mark)
        writer.close()
        self._hang_up()
        self._told.set()

    def _take(self, kind: bytes, text: bytes) -> None:
        if kind == b"o":
            line = text.decode("utf-8", "replace")
            if line.strip():
                self._last.append(line.strip())
            self._line(line)
        elif kind == b"p":
            self.pid = int(text)
            self._told.set()
        elif kind == b"f":
            self._reason = text.decode("utf-8", "replace")
        elif kind == b"e":
            self.code = int(text)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_RDWR)


async def start(words: Sequence[str], folder: Path, environment: Mapping[str, str], line: Line, handed: Sequence[int] = ()) -> Program:
    """Start a program; it runs when this returns, or has ended already. Cancelling it leaves nothing behind.

    Args:
        words: its command line.
        folder: where it runs.
        environment: all variables that it gets.
        line: takes in each line of its output.
        handed: descriptors that it inherits.

    Raises:
        CannotStart: the system can't start any.
    """
    making = asyncio.ensure_future(_start(words, folder, environment, line, handed))
    try:
        program = await asyncio.shield(making)
        async with asyncio.timeout(_STARTING):
            await program.told()
    except TimeoutError:
        await asyncio.shield(asyncio.ensure_future(_kill(making)))
        raise CannotStart(f"the system did not start it within {_STARTING:g} s") from None
    except asyncio.CancelledError:
        # A process that is just being made can't be taken back, so it is ended.
        await asyncio.shield(asyncio.ensure_future(_kill(making)))
        raise
    return program


async def _kill(making: asyncio.Future[Program]) -> None:
    with contextlib.suppress(CannotStart):
        await (await making).kill()


async def _start(words: Sequence[str], folder: Path, environment: Mapping[str, str], line: Line, handed: Sequence[int]) -> Program:
    mark = marks.new(secrets.token_hex(8))
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            keeper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _KEEPER, str(theirs.fileno()), *words),
                cwd=folder,
                env={**environment, marks.VARIABLE: mark},
                pass_fds=(theirs.fileno(), *handed),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                # Ctrl-C at the host must not reach it: the host ends its programs in order.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            ours.close()
            raise CannotStart(f"it can't be started in {os.fspath(folder)!r}: {getattr(error, 'strerror', '') or error}") from None
    ours.setblocking(False)
    return Program(keeper, ours, mark, line)


def _by_signal(number: int) -> str:
    try:
        return f"it was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"it was ended by signal {number}"
