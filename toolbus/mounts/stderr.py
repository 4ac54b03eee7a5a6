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

    @property
    def last_words(self) -> str:
        """The last lines that were not empty, in one line."""
        return " / ".join(self._last)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Log what comes until the stream ends."""
        line, overlong = b"", False
        while chunk := await stream.read(65_536):
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
        self._tell_dropped()

    def _tell(self, line: bytes) -> None:
        text = harmless(line[:_LONGEST].decode("utf-8", "replace")).strip()
        if not text:
            return
        self._last.append(text)
        now = time.monotonic()
        self._allowance = min(_BURST, self._allowance + (now - self._filled) * _RATE)
        self._filled = now
        if self._allowance < 1:
            self._dropped += 1
            return
        self._allowance -= 1
        self._tell_dropped()
        telemetry.log.info("mount.stderr", mount=self._mount, line=text)

    def _tell_dropped(self) -> None:
        if self._dropped:
            telemetry.log.warning("mount.stderr_dropped", mount=self._mount, lines=self._dropped)
            self._dropped = 0
