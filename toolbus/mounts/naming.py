"""Names of mounted tools on the bus: most stand for themselves, and two never become one."""

from __future__ import annotations

import base64
import hashlib
import re

from toolbus.display import visible

_PLAIN = re.compile(r"[^\s\x00-\x1f/\\{}]{1,128}\Z")
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE = 50


def bus_name(name: str) -> str:
    """Return the name under which a tool is published.

    One that the bus allows stands for itself. Another becomes as much of it as fits, ``-`` and ten letters that depend on the whole
    name only.
    """
    if _PLAIN.match(name) and (name.isascii() or visible(name) == name):
        return name
    hashed = base64.b32encode(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=10).digest()).decode().lower()
    return f"{_OTHERS.sub('_', name)[:_READABLE]}-{hashed[:10]}"


def words_of(text: str) -> str:
    """Return a text as a name of letters, digits and ``_``."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
