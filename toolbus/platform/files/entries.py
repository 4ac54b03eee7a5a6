"""Split a file into its entries by id: from a list, a mapping, or either of them under the file's own word."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from toolbus.display import shortened
from toolbus.platform.files.names import MOST_FILE
from toolbus.results import DescriptorError
from toolbus.schema.documents import read_document

_MOST_TOLD = 80


class Wrong(NamedTuple):
    """An entry that was left out, and why; ``id`` is its place in the file when it has none."""

    file: str
    id: str
    reason: str


class Entries(NamedTuple):
    """A file's entries by id, in its order; a list of more than one for an id that stands there several times."""

    by_id: dict[str, list[Any]]
    wrong: list[Wrong]


def load(folder: Path, file: str) -> Any:
    """Return a file's JSON, or None when there is no such file.

    Raises:
        DescriptorError: it can't be read; the message names it.
    """
    try:
        with open(folder / file, "rb", opener=_open_at_once) as opened:
            # A pipe may never end, and a device neither.
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise DescriptorError(f"{file} is no regular file; put one there")
            data = opened.read(MOST_FILE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DescriptorError(f"{file} can't be read: {error.strerror or error}") from None
    if len(data) > MOST_FILE:
        raise DescriptorError(f"{file} is over the limit of {MOST_FILE:,} bytes")
    try:
        document = read_document(data, Any)
    except ValueError as error:
        raise DescriptorError(f"{file} can't be read as JSON: {error}") from None
    if document is None:
        raise DescriptorError(f"{file} is null, and expected is a list or an object of entries by id; an empty one is {{}}")
    return document


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for somebody who writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def entries(document: Any, file: str, id_field: str, word: str) -> Entries:
    """Return the entries of a file.

    Args:
        document: the file's JSON.
        file: its name, for what is wrong.
        id_field: the field with an entry's id.
        word: under which all entries may stand, such as ``tools``.

    Raises:
        DescriptorError: it is neither a list nor an object.
    """
    found, wrong = dict[str, list[Any]](), list[Wrong]()
    inside = unwrapped(document, word)
    if isinstance(inside, dict):
        for name, entry in inside.items():
            named = entry.get(id_field, name) if isinstance(entry, dict) else name
            if named != name:
                wrong.append(Wrong(file, name, f"it stands under {name!r} and says {_told(named)} - at `$.{id_field}`"))
            else:
                found[name] = [entry]
        return Entries(found, wrong)
    if not isinstance(inside, list):
        raise DescriptorError(f"{file} is neither a list nor an object of entries by id")
    for index, entry in enumerate(inside):
        name = entry.get(id_field) if isinstance(entry, dict) else None
        if isinstance(name, str) and name:
            found.setdefault(name, []).append(entry)
        else:
            wrong.append(Wrong(file, f"#{index + 1}", f"it has no {id_field} - at `$[{index}].{id_field}`"))
    return Entries(found, wrong)


def unwrapped(document: Any, word: str) -> Any:
    """Return what stands under the file's own word, or the document itself; one tool may have that word as its id."""
    if isinstance(document, dict) and isinstance(inside := document.get(word), (dict, list)):
        if isinstance(inside, list) and word != "sources":
            return inside
        if isinstance(inside, list) and all(isinstance(each, dict) and "tool_id" in each for each in inside):
            return inside
        if isinstance(inside, dict) and all(isinstance(each, (dict, list)) for each in inside.values()) and len(document) == 1:
            return inside
    return document


def _told(value: object) -> str:
    return shortened(repr(value), _MOST_TOLD)
