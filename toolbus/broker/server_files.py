"""Open files in the embedded server's folder, which may hold anything of anybody's already."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from toolbus.results import ConfigurationError

MARK = b"# Written by toolbus for its embedded server, at each start.\n"
# A link is not followed, and neither a pipe nor a device is waited for.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def overwrite(path: Path) -> BinaryIO:
    """Open a file anew, for its owner alone; it begins with a line by which it is known as ours at the next start.

    Raises:
        ConfigurationError: a file that is not ours is there, or anything else.
        OSError: it can't be opened.
    """
    file = os.fdopen(os.open(path, _FLAGS, 0o600), "r+b")
    try:
        _check(path, file)
        os.fchmod(file.fileno(), 0o600)
        file.seek(0)
        file.truncate()
        file.write(MARK)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _check(path: Path, file: BinaryIO) -> None:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path} is no regular file; give the embedded server another data_dir")
    if found.st_uid != os.geteuid() or (found.st_size and file.read(len(MARK)) != MARK):
        raise ConfigurationError(f"{path} is no file of the embedded server; give it another data_dir, or move the file")
