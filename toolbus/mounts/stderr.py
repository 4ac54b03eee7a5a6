"""A child's standard error as log events, of which a flood is left out."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from toolbus import telemetry
from toolbus.display import harmless

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
