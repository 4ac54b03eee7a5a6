"""Lock files between processes, and replace files atomically."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolbus.bus.values.results import ConfigurationError

try:
    import fcntl
except ImportError:  # systems without flock: there the user must run one process at a time
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(path: Path, *, reading: bool = False, patient: bool = True) -> Iterator[None]:
    """Hold a lock on a file or folder, through a lock file beside it, against other threads and processes.

    With ``reading``, go on without the lock where the folder is read-only, since no process can write there.

    Raises:
        ConfigurationError: the folder does not exist or can't be written; or another one holds the lock, unless ``patient``.
    """
    name = path.with_name(f".{path.name}.lock")
    try:
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if reading and error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            yield
            return
        raise ConfigurationError(f"{name} can't be locked: {error.strerror or error}") from None
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if patient else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(f"another process works in {path.parent} at the moment; try again when it is done") from None
        yield
    finally:
        os.close(file)


def replace(path: Path, content: bytes) -> None:
    """Replace a file so that readers, even after a crash, find either the old or the new content.

    Raises:
        ConfigurationError: the file can't be written.
    """
    try:
        written = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            with written.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigurationError(f"{path} can't be written: {error.strerror or error}") from None
