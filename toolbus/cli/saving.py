"""Write the blobs of a result to files."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolbus.cli.common import fail
from toolbus.cli.output import say
from toolbus.display import visible

if TYPE_CHECKING:
    from toolbus import Blob

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_NAME = 100
# Files of one tool in one folder.
_MOST_FILES = 100_000
# Those that the operating system may not know, or knows by an unusual name.
_SUFFIXES = {"image/jpeg": ".jpg", "image/webp": ".webp", "text/plain": ".txt", "text/markdown": ".md", "application/jsonl": ".jsonl"}


def save_blobs(blobs: Sequence[Blob], tool: str, folder: str) -> None:
    """Write each blob to a new file that is named after the tool, and tell its path; no file is overwritten.

    The files of a result have successive numbers in its order, after those that are there.
    """
    if not blobs:
        say("the result has no images or files to save", err=True)
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # The name comes from a worker and must not lead elsewhere.
        name = _UNSAFE.sub("-", tool)[:_MOST_NAME].strip("-") or "result"
        number = _latest(name, Path(folder))
        for blob in blobs:
            path, number = _written(blob, name, Path(folder), number + 1)
            say(f"{visible(str(path))} ({visible(blob.media_type)}, {len(blob.data):,} bytes)", err=True)
    except OSError as error:
        fail(f"can't save to {visible(folder)}: {error.strerror or error}")


def _latest(name: str, folder: Path) -> int:
    """Return the highest number among the files of this name, whatever they are; 0 without any."""
    numbered = re.compile(re.escape(name) + r"-([0-9]{1,6})\.[^.]+")
    return max((int(found[1]) for each in folder.iterdir() if (found := numbered.fullmatch(each.name))), default=0)


def _written(blob: Blob, name: str, folder: Path, first: int) -> tuple[Path, int]:
    """Write a blob to a new file with this number or the next that is free; return its path and number.

    Raises:
        OSError: the file can't be written.
    """
    suffix = _suffix(blob.media_type)
    for number in range(first, _MOST_FILES):
        path = folder / f"{name}-{number}{suffix}"
        try:
            with path.open("xb") as file:
                file.write(blob.data)
        except FileExistsError:
            # Another process writes there, too.
            continue
        return path, number
    raise OSError(f"it has {_MOST_FILES:,} files of {name} already")


def _suffix(media_type: str) -> str:
    kind = media_type.partition(";")[0].strip().lower()
    return _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or ".bin"
