"""Names as models may say them: letters, digits, ``_`` and ``-``, at most 64.

A name that fits stands for itself. Another one becomes as much of it as fits, ``--`` and twelve letters that only depend on the
name: ``météo.paris`` is ``m_t_o_paris--`` and so on in every process and after every restart. Names that look like that are
themselves replaced, so that a name never stands for itself and for another.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_REPLACED = re.compile(r".*--[a-z2-7]{12}\Z", re.DOTALL)
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")
_READABLE = 50
_LONGEST = 64


def is_replaced(name: str) -> bool:
    """Return whether a name is, or looks like, what ``wire_name`` makes of a name that does not fit."""
    return _REPLACED.match(name) is not None


def wire_name(name: str) -> str:
    """Return the name under which a model calls a tool."""
    # The first is the quick answer for most names.
    if name.isidentifier() and name.isascii() and len(name) <= _LONGEST:
        return name
    if _PLAIN.match(name) and not ("--" in name and is_replaced(name)):
        return name
    hashed = base64.b32encode(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=10).digest()).decode().lower()
    readable = _OTHERS.sub("_", name)[:_READABLE]
    return f"{readable}--{hashed[:12]}"


def replaced_names(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the wire names that differ, with their names, and the refused names, with those that have their wire name.

    Two names share a wire name only if an attacker makes them so; the first in order keeps it.
    """
    taken: dict[str, str] = {}
    refused: dict[str, str] = {}
    # Those that stand for themselves need no order; most do.
    for name in sorted(name for name in names if not (name.isidentifier() and name.isascii() and len(name) <= _LONGEST)):
        wire = wire_name(name)
        if wire == name:
            continue
        if wire in taken:
            refused[name] = taken[wire]
        else:
            taken[wire] = name
    return taken, refused
