"""Keep what Python and uv make of approved code in folders of the host's own, so that nothing beside the approved files is run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from toolbus.platform.backends.runner import CannotStart

MOST_UNUSED = 64
"""Most folders that no program uses; those that were used last stay."""
UNUSED_FOR = 30 * 86_400.0
"""Seconds for which a folder stays that no program uses."""

_DIGEST = re.compile(r"[0-9a-f]{16,128}")
_USED, _LOCK, _REMOVED = "used", "lock", ".removed-"
# Others hold the lock for a few system calls.
_LOCKED_WITHIN, _LOOK_AGAIN = 10.0, 0.02


class MadeFolder:
    """The folder of what was made of one digest's code; nobody removes it until ``release``, or until this process ends.

    Args:
        own: the folder.
        used: descriptor of the file in it by whose lock others see that it is used.

    Attributes:
        variables: lead the environment and the byte code of the code there.
    """

    def __init__(self, own: Path, used: int) -> None:
        self._used = used
        self.variables = {"UV_PROJECT_ENVIRONMENT": str(own / "venv"), "PYTHONPYCACHEPREFIX": str(own / "pycache")}

    def release(self) -> None:
        """Let it be removed when it has not been used for long."""
        used, self._used = self._used, -1
        if used >= 0:
            with contextlib.suppress(OSError):
                os.utime(used)
            os.close(used)


def made_elsewhere(folder: Path, digest: str) -> MadeFolder:
    """Return a folder for the environment and the byte code of a folder's code, which only this user may enter.

    A digest leaves ``.venv``, ``__pycache__`` and ``*.pyc`` out, so they may hold what nobody approved.

    Raises:
        CannotStart: the host can't write its cache, or the folder has byte code that Python would read as a module.
    """
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {".venv", "__pycache__"}]
        for name in files:
            if name.endswith(".pyc"):
                raise CannotStart(f"{Path(path, name)} is byte code that no approval covers, and Python could run it; remove it")
    cache = _cache()
    own = cache / digest
    try:
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o700)
        if not own.exists():
            # Each new revision has a folder of its own, also at a host that runs for years.
            remove_unused()
        with _changing(cache):
            own.mkdir(exist_ok=True)
            own.chmod(0o700)
            return MadeFolder(own, _begin_use(own))
    except OSError as error:
        raise CannotStart(
            f"the host can't write its cache {str(own)!r} ({error.strerror}); set XDG_CACHE_HOME to a folder of its own"
        ) from None


def _begin_use(own: Path) -> int:
    used = os.open(own / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Only a removal locks it otherwise, and none is under way.
        fcntl.flock(used, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(used)
    except OSError:
        os.close(used)
        raise
    return used


def remove_unused(*, most: int = MOST_UNUSED, seconds: float = UNUSED_FOR) -> list[str]:
    """Remove folders that no program of any host uses, if they were not used for long, or too many others were used since.

    Returns:
        A line for each.
    """
    cache = _cache()
    try:
        with _changing(cache):
            names = _put_aside(cache, most, time.time() - seconds)
        # Those of a process that was killed while it removed them, too.
        for each in cache.glob(f"{_REMOVED}*"):
            shutil.rmtree(each, ignore_errors=True)
    except OSError:
        # There is none, or it is not this user's to look after.
        return []
    return [f"what was made of the code {name[:12]}… was used no more, and is removed" for name in names]


def _put_aside(cache: Path, most: int, before: float) -> list[str]:
    """Rename folders that are to be removed, which takes as long as one system call each; return their names."""
    found = sorted(((_used_at(each), each) for each in cache.iterdir() if _DIGEST.fullmatch(each.name) and each.is_dir()), reverse=True)
    removed = []
    for position, (used_at, each) in enumerate(found):
        if (position >= most or used_at < before) and not _is_used(each):
            each.rename(cache / f"{_REMOVED}{secrets.token_hex(8)}")
            removed.append(each.name)
    return removed


def _used_at(own: Path) -> float:
    with contextlib.suppress(OSError):
        return (own / _USED).stat().st_mtime
    return own.stat().st_mtime


def _is_used(own: Path) -> bool:
    try:
        used = os.open(own / _USED, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Of a toolbus that took no lock.
        return False
    try:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(used)
    return False


@contextlib.contextmanager
def _changing(cache: Path) -> Iterator[None]:
    """Hold the lock under which folders begin to be used or are put aside.

    Raises:
        OSError: it can't be had.
    """
    lock = os.open(cache / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _LOCKED_WITHIN
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_AGAIN)
        yield
    finally:
        os.close(lock)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus" / "programs"
