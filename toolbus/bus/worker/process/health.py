"""The health file: fresh while the worker can serve."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry

if TYPE_CHECKING:
    from toolbus.bus.worker.worker import Worker


_EVERY = 2.0


def report(worker: Worker) -> dict[str, Any]:
    """Return what a probe reads."""
    if not worker.healthy:
        return {"healthy": False, "time": time.time()}
    return {"healthy": True, "instance": worker.instance, "time": time.time(), **worker.statistics()}


async def keep_file(worker: Worker, path: Path) -> None:
    """Write the report to a file every two seconds while the worker is healthy; remove it when it is not, and at the end.

    Raises:
        OSError: it can't be written at the start, or something else than a file is there; later failures are logged, and it is tried
            again.
    """
    _write(path, msgspec.json.encode(report(worker)) if worker.healthy else None)
    failed = False
    try:
        while True:
            await asyncio.sleep(_EVERY)
            try:
                _write(path, msgspec.json.encode(report(worker)) if worker.healthy else None)
            except OSError as error:
                if not failed:
                    telemetry.log.warning("health.file_failed", file=str(path), error=error.strerror or str(error))
                failed = True
            else:
                failed = False
    finally:
        with contextlib.suppress(OSError):
            _write(path, None)


def _write(path: Path, content: bytes | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        # A link is replaced, and not what it leads to; a device, a pipe or a socket is somebody else's.
        if stat.S_IFMT(path.lstat().st_mode) not in {stat.S_IFREG, stat.S_IFLNK}:
            raise OSError(errno.EEXIST, "it exists and is no regular file", str(path))
    if content is None:
        path.unlink(missing_ok=True)
        return
    # Renamed into place, so that a probe never reads half of it; under a name that nobody can have put a link at.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with fresh.open("xb") as file:
            file.write(content)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
