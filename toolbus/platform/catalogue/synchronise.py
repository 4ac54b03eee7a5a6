"""Connect the items of a catalogue with recorded tools and groups, on both sides."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolbus.platform.catalogue.items import CONNECTED, Catalogue, CatalogueUnavailable, Item
from toolbus.platform.catalogue.matching import match_group, match_tool
from toolbus.platform.records import RecordedTool
from toolbus.platform.store import Records, Snapshot
from toolbus.results import ConfigurationError


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
