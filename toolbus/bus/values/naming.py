"""Refuse names that are not what they look like."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolbus.bus.support.display import visible
from toolbus.bus.values.results import DescriptorError

# Names become parts of paths and of keys, where these two lead elsewhere.
_NO_DOTS = r"(?!\.{1,2}\Z)"

SERVICE_ID = re.compile(_NO_DOTS + r"[A-Za-z0-9_.-]{1,128}\Z")
TOOL_NAME = re.compile(_NO_DOTS + r"[^\s\x00-\x1f/\\{}]{1,128}\Z")
"""Tool names are shown to people and models; each wire format maps them to its own alphabet."""
RECORD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
GROUP_ID = re.compile(_NO_DOTS + r"[A-Za-z0-9_.-]{1,64}\Z")
"""Gateways take these ids, too, which have always been allowed for groups."""


class DocumentKind(NamedTuple):
    """Describe the documents of the registry whose keys begin with one word and a slash.

    Attributes:
        name: what may follow in the key.
        table: the attribute of ``Keys`` that names the hash in which they stand.
        of_platform: whether ``toolbus.platform`` reads them; the catalogue hands these on as they are.
    """

    name: re.Pattern[str]
    table: str = "items"
    of_platform: bool = False


DOCUMENT_KINDS: Mapping[str, DocumentKind] = {
    "tool": DocumentKind(TOOL_NAME),
    "tool-service": DocumentKind(SERVICE_ID),
    "toolkit": DocumentKind(SERVICE_ID),
    "recorded": DocumentKind(RECORD_ID, "recorded", of_platform=True),
    "pending": DocumentKind(RECORD_ID, "pending", of_platform=True),
    "group": DocumentKind(GROUP_ID, "groups", of_platform=True),
    "backend-runtime": DocumentKind(RECORD_ID, "groups", of_platform=True),
    "pin": DocumentKind(TOOL_NAME, "pins"),
}
"""Everything that is known of each kind; a new one is a row here."""


def did_you_mean(near: Iterable[str], shown: Callable[[str], str] = repr, between: str = ", ") -> str:
    """Return the end of a sentence about an unknown name that offers those which look like it; empty when there are none."""
    names = between.join(map(shown, near))
    return f"; did you mean {names}?" if names else ""


_MOST_STEP = 40


def key_flaw(key: str) -> str:
    """Return why no document of the registry can have this key, with the command that removes one; empty when it can.

    Whoever may write the registry's tables may write any key there, and keys become parts of paths and of commands.
    """
    kind, _, name = key.partition("/")
    about = DOCUMENT_KINDS.get(kind)
    if about is None:
        return f"its key is none of {', '.join(f'{each}/NAME' for each in DOCUMENT_KINDS)}; {_removing(key)}"
    if about.name.match(name) is None or visible(name) != name:
        return f"its key has no possible name after {kind}/; {_removing(key)}"
    return ""


def _removing(key: str) -> str:
    """Return the command that removes a document with a key of any characters."""
    if key.isascii() and key.isprintable():
        word = shlex.quote(key)
    else:
        plain = (chr(each) if 32 <= each < 127 and each not in b"'\\" else f"\\x{each:02x}" for each in key.encode("utf-8", "replace"))
        word = f"$'{''.join(plain)}'"
    return f"`toolbus operate items rm {'-- ' if key.startswith('-') else ''}{word}` removes it"


def check_names(tool: str, arguments: Sequence[str], schema: Mapping[str, Any] | None) -> None:
    """Refuse names in a tool's descriptor that look like others, or like none.

    Raises:
        DescriptorError: the tool, one of its arguments or a property of its schema has characters that are invisible, that turn text,
            that command a terminal, or that imitate letters.
    """
    _check(tool, "tool", "$.name")
    for index, argument in enumerate(arguments):
        _check(argument, f"argument of tool {tool!r}", f"$.arguments[{index}].name")
    if schema is not None:
        _check_properties(schema, f"argument of tool {tool!r}")


def _check(name: str, what: str, path: str) -> None:
    if _misleads(name):
        raise DescriptorError(f"the name of the {what} has invisible or imitating characters: '{visible(name)}'", path=path)


def _misleads(name: str) -> bool:
    # The first is the quick answer for almost every name.
    return not (name.isascii() and name.isprintable()) and visible(name) != name


def _check_properties(schema: Mapping[str, Any], what: str) -> None:
    """Check the names of all properties, without a stack that a schema could overflow."""
    # A place is that of its parent and a step from there: whole paths take time by the square of the depth.
    left: list[tuple[tuple[Any, str], object]] = [((None, "$.parameters"), schema)]
    while left:
        place, part = left.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict):
                for name in properties:
                    if _misleads(name):
                        _check(name, what, f"{_path(place)}.properties")
            left += [((place, visible(key)[:_MOST_STEP]), each) for key, each in part.items() if isinstance(each, (dict, list))]
        elif isinstance(part, list):
            left += [(place, each) for each in part]


def _path(place: tuple[Any, str] | None) -> str:
    """Return the steps to a place in a schema."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return ".".join(reversed(steps))
