"""Items of an external catalogue, and the protocol of its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from toolbus.results import ToolbusError

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
