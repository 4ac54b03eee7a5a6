"""Bearer tokens whose records stand in a file, which is read again when it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from toolbus import telemetry
from toolbus.gateway.auth.credentials import Credential, accepted
from toolbus.gateway.auth.records_file import read
from toolbus.results import ConfigurationError
from toolbus.tokens import TokenRecord, id_of

_LOOK_EVERY = 1.0


class FileTokens:
    """A ``Source`` of the tokens in a file.

    A changed file counts within a second. One that can't be read any more leaves the tokens as they were; one that is gone, none.

    Raises:
        ConfigurationError: the file can't be read.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._now = now
        self._seen = _stamp(path)
        self._records: Mapping[str, TokenRecord] = read(path)
        self._looked = clock()

    def takes(self, token: str) -> bool:
        """Return whether a token has the form of toolbus's own."""
        return id_of(token) is not None

    async def credential(self, token: str) -> Credential | None:
        """Return whom a token of the file stands for."""
        self._look()
        record = self._records.get(id_of(token) or "")
        return None if record is None else accepted(record, token, self._now())

    def _look(self) -> None:
        if self._clock() < self._looked + _LOOK_EVERY:
            return
        self._looked = self._clock()
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        if stamp is None:
            self._records = {}
            telemetry.log.error("tokens.gone", path=str(self._path), error="the file is gone, so none of its tokens is accepted")
            return
        try:
            self._records = read(self._path)
        except ConfigurationError as error:
            telemetry.log.error("tokens.unreadable", path=str(self._path), error=str(error))
        else:
            telemetry.log.info("tokens.loaded", path=str(self._path), tokens=len(self._records))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
