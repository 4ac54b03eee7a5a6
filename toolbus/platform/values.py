"""Rules for values in records: ids, paths, ports, and texts that must not be secrets."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from toolbus.display import shortened
from toolbus.naming import RECORD_ID
from toolbus.results import DescriptorError

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"secret|token|passw|pwd|credential|authorization|cookie|session[-_]?id|(?:api|access|private|signing|auth)[-_]?key|(?:^|[-_])(?:key|auth)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"(?:bearer|basic) \S|-----BEGIN|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16}|\bgh[pousr]_[A-Za-z0-9]{16}|\bgithub_pat_"
    r"|\bxox[a-z]-|\bAKIA[A-Z0-9]{12}|\beyJ[A-Za-z0-9_-]{10,}\.|://[^/\s@]*:[^/\s@]+@|(?:token|secret|passw(?:or)?d|api[-_]?key)=(?!env:|file:|\{|$).",
    re.IGNORECASE,
)
# Places of values within a text, and what may stand around one that is a secret.
_WITHIN = re.compile(r"\{((?:env|file):[^{}]+)\}")
_AROUND = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}[ =]?|")
_SETTINGS = "TOOLBUS_"
_MOST_TOLD = 80


def check_id(value: str, path: str) -> None:
    """Check the id of a tool, a group, a runtime or a host's label.

    Raises:
        DescriptorError: it is none.
    """
    if RECORD_ID.match(value) is None:
        raise wrong(value, "1 to 64 letters, digits, '_', '.' and '-', beginning with a letter or digit", path)


def check_text(value: str, path: str, most: int) -> None:
    """Check a text for people and models.

    Raises:
        DescriptorError: it is longer than ``most`` characters, or has a NUL.
    """
    if len(value) > most:
        raise DescriptorError(f"it has {len(value):,} characters, over the limit of {most:,}", path=path)
    check_plain(value, path)


def check_plain(value: str, path: str) -> None:
    """Check that a text has no NUL, which ends texts in commands, paths and variables.

    Raises:
        DescriptorError: it has one.
    """
    if "\0" in value:
        raise DescriptorError("it has a NUL", path=path)


def check_folder(value: str, path: str) -> None:
    """Check a path of the host: absolute, or relative to the folder in which the host works; never out of it by ``..``.

    Raises:
        DescriptorError: it is unsafe.
    """
    if not value.isprintable():
        raise wrong(value, "a path of printable characters", path)
    if ".." in PurePosixPath(value.replace("\\", "/")).parts:
        raise wrong(value, "a path without '..'", path)
    if value.startswith("~"):
        raise wrong(value, "a path without '~', which nobody expands", path)


def check_variable(name: str, path: str) -> None:
    """Check the name of an environment variable.

    Raises:
        DescriptorError: it is none.
    """
    if _VARIABLE.fullmatch(name) is None:
        raise wrong(name, "the name of a variable: letters, digits and '_'", path)


def check_value(name: str, value: str, path: str) -> None:
    """Check a value that may be ``env:NAME`` or ``file:PATH`` of the host, or have ``{env:NAME}`` within; a secret must be one of these.

    Raises:
        DescriptorError: it is a secret, or names no place; the message does not repeat it.
    """
    check_plain(value, path)
    if value.startswith(("env:", "file:")):
        _check_place(value, path)
        return
    for found in _WITHIN.finditer(value):
        _check_place(found[1], path)
    around = _WITHIN.sub("", value)
    placed = around != value and _AROUND.fullmatch(around)
    if seems_secret(around) or (value and not placed and _SECRET_NAME.search(name)):
        raise DescriptorError("it seems to be a secret, which everybody could read here: give env:NAME or file:PATH of the host", path=path)


def _check_place(source: str, path: str) -> None:
    kind, _, place = source.partition(":")
    if kind == "env":
        check_variable(place, path)
        if place.startswith(_SETTINGS):
            raise wrong(source, f"a variable of the tool's: those of {_SETTINGS}… are settings of toolbus", path)
    else:
        if not place.startswith("/"):
            raise wrong(source, "file: with an absolute path", path)
        check_folder(place, path)


def seems_secret(value: str) -> bool:
    """Return whether a text looks like a key, a token, or a URL with a password."""
    return _SECRET_VALUE.search(value) is not None


def check_number(value: float, least: float, most: float, path: str) -> None:
    """Check a number, NaN included.

    Raises:
        DescriptorError: it is out of its range.
    """
    if not least <= value <= most:
        raise DescriptorError(f"{value:g} is not a number from {least:g} to {most:g}", path=path)


def wrong(value: str, expected: str, path: str) -> DescriptorError:
    """Return the error for a value that is not what is expected."""
    return DescriptorError(f"{shortened(repr(value), _MOST_TOLD)} is not {expected}", path=path)
