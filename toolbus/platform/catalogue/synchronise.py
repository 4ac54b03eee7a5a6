"""Connect the items of a catalogue with recorded tools and groups, on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from toolbus.bus.client.tools.groups import ToolGroup
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.platform.records import RecordedTool
from toolbus.platform.store import Records, Snapshot

CONNECTED = "connected"
"""The status of an item that is a tool or group here."""

ITEMS = "toolhub_items"
"""The field and the path under which a catalogue has its items."""


class CatalogueUnavailable(ToolbusError):
    """The catalogue can't be read or written; nothing was changed, or nothing more."""


class Item(msgspec.Struct, frozen=True):
    """An item of the catalogue.

    Attributes:
        slug: its id there.
        title, description, category: for people.
        keywords: words for it.
        status: ``connected`` when it is a tool or a group here.
        tool_ids, group_ids: the tools and groups here that are it.
    """

    slug: str
    title: str = ""
    description: str = ""
    category: str = ""
    keywords: tuple[str, ...] = ()
    status: str = ""
    tool_ids: tuple[str, ...] = ()
    group_ids: tuple[str, ...] = ()

    def linked(self) -> dict[str, Any]:
        """Return the fields that a connection changes."""
        return {"status": self.status, "tool_ids": list(self.tool_ids), "group_ids": list(self.group_ids)}


class Catalogue(Protocol):
    """An external catalogue."""

    async def items(self) -> tuple[list[Item], list[str]]:
        """Return the items that can be read, and a line for each that can't.

        Raises:
            CatalogueUnavailable: the catalogue can't be read.
        """

    async def connect(self, item: Item) -> None:
        """Write an item's status, tools and groups; its other fields stay.

        Raises:
            CatalogueUnavailable: it can't be written; nothing has changed.
        """


def read_items(document: Any) -> tuple[list[Item], list[str]]:
    """Return the items of a document: a list, or an object by slug, maybe under ``toolhub_items``.

    Raises:
        CatalogueUnavailable: it is neither.
    """
    found, wrong = list[Item](), list[str]()
    for place, entry in entries(document):
        try:
            item = msgspec.convert(entry, Item)
        except msgspec.ValidationError as error:
            wrong.append(f"item {place}: {error}")
            continue
        if not item.slug.strip():
            wrong.append(f"item {place}: it has no slug")
        elif any(item.slug == each.slug for each in found):
            wrong.append(f"item {place}: another item has its slug")
        else:
            found.append(item)
    return found, wrong


def entries(document: Any) -> list[tuple[str, Any]]:
    """Return the entries of a document with their slugs or places.

    Raises:
        CatalogueUnavailable: it has no such form.
    """
    inside = document.get(ITEMS, document) if isinstance(document, Mapping) else document
    if isinstance(inside, Mapping):
        return [(str(slug), {"slug": slug, **each} if isinstance(each, Mapping) else each) for slug, each in inside.items()]
    if isinstance(inside, list):
        return [(f"#{index + 1}", each) for index, each in enumerate(inside)]
    raise CatalogueUnavailable(f"the catalogue is neither a list of items nor an object of them, also not under {ITEMS!r}")


_WORD = re.compile(r"\w+")
_LEAST_NAME = 3
# What a name says before the thing itself, as in "runcomfy".
_VERBS = ("run", "launch")
_LEAST_THING = 5
_LEAST_WORD = 4
# Shared keywords that make a match: with the same category, and without one.
_SHARED_WITH_CATEGORY, _SHARED_ALONE = 2, 4
_SHARE_ALONE = 0.5
# Words that say nothing of a tool.
_COMMON = frozenset(
    {
        "about", "after", "also", "another", "answer", "answers", "before", "been", "being", "both", "call", "called", "calls",
        "data", "does", "each", "every", "from", "given", "gives", "have", "into", "item", "items", "made", "make", "makes",
        "many", "more", "most", "only", "other", "others", "over", "result", "results", "return", "returns", "same", "some",
        "such", "than", "that", "their", "them", "then", "there", "these", "they", "this", "tool", "tools", "used", "user",
        "users", "uses", "using", "value", "values", "very", "want", "what", "when", "where", "which", "while", "will", "with",
        "without", "would", "your",
    }
)  # fmt: skip


def match_tool(item: Item, tool: RecordedTool) -> str:
    """Return why an item is a tool, or an empty text when it is not."""
    meta = tool.meta
    return _by_name(item, meta.tool_id, meta.name) or _by_words(item, f"{meta.name} {meta.description}", meta.category)


def match_group(item: Item, group: ToolGroup) -> str:
    """Return why an item is a group of tools, or an empty text when it is not."""
    return _by_name(item, group.group_id, group.name) or _by_words(item, f"{group.name} {group.description}", group.category)


def _by_name(item: Item, name: str, title: str) -> str:
    for said, what in ((item.slug, "slug"), (item.title, "title")):
        sought = _plain(said)
        if len(sought) < _LEAST_NAME:
            continue
        things = {sought, *(thing for verb in _VERBS if len(thing := sought.removeprefix(verb)) >= _LEAST_THING)}
        for text, where in ((name, "id"), (title, "name")):
            if any(f" {each} " in f" {_plain(text)} " for each in things):
                return f"its {what} {said!r} is in the {where} {text!r}"
    return ""


def _by_words(item: Item, text: str, category: str) -> str:
    wanted = _keywords([*item.keywords, *([] if item.keywords else [item.title, item.description])])
    shared = sorted(wanted & _keywords([text]))
    same = bool(item.category) and item.category.casefold() == category.casefold()
    if same and len(shared) >= _SHARED_WITH_CATEGORY:
        return f"the category {category!r} and the keywords {', '.join(shared[:6])} of the description"
    differ = bool(item.category) and bool(category) and not same
    if not differ and len(shared) >= _SHARED_ALONE and len(shared) >= _SHARE_ALONE * len(wanted):
        return f"the keywords {', '.join(shared[:6])} of the description"
    return ""


def _plain(text: str) -> str:
    """Return the words of a text, so that ``image-stitcher`` is ``Image Stitcher``."""
    return " ".join(_WORD.findall(text.casefold().replace("_", " ")))


def _keywords(texts: Iterable[str]) -> set[str]:
    words = {word for text in texts for word in _plain(text).split()}
    # A plural is its word.
    return {word.removesuffix("s") for word in words if len(word) >= _LEAST_WORD} - _COMMON - {word.removesuffix("s") for word in _COMMON}


class Match(msgspec.Struct, frozen=True):
    """An item that is a tool or a group.

    Attributes:
        slug: of the item.
        kind: ``tool`` or ``group``.
        id: of the tool or the group.
        why: the reason of the match.
        changed: what was changed for it: ``here``, ``there``, both, or nothing.
    """

    slug: str
    kind: str
    id: str
    why: str
    changed: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The outcome of one synchronisation.

    Attributes:
        matches: every match that was found, also those that had been made before.
        wrong: items and tools that could not be connected, and why.
    """

    matches: tuple[Match, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def changes(self) -> list[Match]:
        """The matches for which something was changed."""
        return [each for each in self.matches if each.changed]


async def synchronise(records: Records, catalogue: Catalogue) -> Report:
    """Match all items with all recorded tools and groups; doing it again changes nothing.

    The catalogue is written first: when it can't be, nothing is changed here.

    Raises:
        CatalogueUnavailable: the catalogue can't be read, and nothing was changed; or written, and what was done before stays.
        BrokerError: the server could not be asked.
    """
    items, wrong = await catalogue.items()
    snapshot = await records.all()
    found: list[Match] = []
    for item in items:
        matches = list(_matches(item, snapshot))
        if matches:
            found += await _connected(records, catalogue, snapshot, item, matches, wrong)
    return Report(tuple(found), tuple(wrong))


def _matches(item: Item, snapshot: Snapshot) -> Iterable[Match]:
    for tool_id, tool in snapshot.tools.items():
        known = "it is connected already" if item.slug in tool.meta.tool_slug_ids else ""
        if why := match_tool(item, tool) or known:
            yield Match(item.slug, "tool", tool_id, why)
    for group_id, group in snapshot.groups.items():
        if why := match_group(item, group) or ("it is connected already" if group_id in item.group_ids else ""):
            yield Match(item.slug, "group", group_id, why)


async def _connected(
    records: Records, catalogue: Catalogue, snapshot: Snapshot, item: Item, matches: list[Match], wrong: list[str]
) -> list[Match]:
    """Connect an item with what it matches; return the matches with what was changed."""
    there = msgspec.structs.replace(
        item,
        status=CONNECTED,
        tool_ids=_with(item.tool_ids, [each.id for each in matches if each.kind == "tool"]),
        group_ids=_with(item.group_ids, [each.id for each in matches if each.kind == "group"]),
    )
    if there != item:
        await catalogue.connect(there)
    found: list[Match] = []
    for each in matches:
        listed = item.tool_ids if each.kind == "tool" else item.group_ids
        changed = ["there"] if there != item and (each.id not in listed or item.status != CONNECTED) else []
        if each.kind == "tool" and item.slug not in snapshot.tools[each.id].meta.tool_slug_ids:
            try:
                await records.revise(each.id, lambda tool: _linked(tool, item.slug))
                changed.insert(0, "here")
            except ConfigurationError as error:
                # It was removed or spoilt meanwhile.
                wrong.append(f"{item.slug}: {error}")
        found.append(msgspec.structs.replace(each, changed=tuple(changed)))
    return found


def _linked(tool: RecordedTool, slug: str) -> RecordedTool:
    if slug in tool.meta.tool_slug_ids:
        return tool
    return msgspec.structs.replace(tool, meta=msgspec.structs.replace(tool.meta, tool_slug_ids=(*tool.meta.tool_slug_ids, slug)))


def _with(before: tuple[str, ...], ids: Iterable[str]) -> tuple[str, ...]:
    return (*before, *(each for each in ids if each not in before))


__all__ = ["CatalogueUnavailable", "Match", "Report", "synchronise"]
