"""The table of migrations: which stored documents a version writes in another form than the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Migration(NamedTuple):
    """A change of stored documents.

    A release reads both forms as long as it speaks the version before. Requests, replies, sessions and everything else that has a TTL are
    not converted: they are gone before the older form is no longer read.

    Attributes:
        version: the version that writes the new form.
        name: short, for people.
        about: what changes, in one sentence.
        prefix: the beginning of the keys of the static documents that may have the older form, such as ``group/``.
        convert: returns the new form of a document with this key, or None when it has it already. It raises a ``ToolbusError`` or a
            ``ValueError`` for a document that is neither.
    """

    version: int
    name: str
    about: str
    prefix: str
    convert: Callable[[str, bytes], bytes | None]


MIGRATIONS: list[Migration] = []
"""All migrations, in the order in which they are done. No release has changed a stored form so far."""
