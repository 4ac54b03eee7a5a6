"""The rows that the page shows, by section and key, and the differences between two states of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.watch.views import InstanceView, SessionView, Snapshot

Sections = dict[str, dict[str, Any]]
"""Rows by key, by section."""

_MOST_TEXT = 240
_MOST_ERROR = 2_000
_MOST_REFUSED = 100
_MOST_RUNNING = 300


class CatalogueRow(msgspec.Struct, frozen=True):
    """A tool in the list of tools; its schema is read when somebody opens it."""

    name: str
    service: str
    text: str
    category: str
    groups: tuple[str, ...]
    available: bool
    digest: str


class InstanceRow(msgspec.Struct, frozen=True):
    """A worker, without what changes while nothing happens."""

    id: str
    answered: bool
    host: str
    pid: int
    version: str
    started: float
    services: tuple[str, ...]
    slots: int
    running: int
    calls: int
    failures: int
    calls_per_s: float


class SessionRow(msgspec.Struct, frozen=True):
    """An open session, and since when none of its calls began."""

    service: str
    user: str
    session: str
    instance: str
    running: int
    since: int


class RefusedRow(msgspec.Struct, frozen=True):
    """A tool that can't be used."""

    name: str
    service: str
    reason: str


def catalogue_row(tool: Tool) -> CatalogueRow:
    """Return a tool's row."""
    text = " ".join(tool.descriptor.description[: 2 * _MOST_TEXT].split())[:_MOST_TEXT]
    return CatalogueRow(tool.name, tool.service, text, tool.category, tool.groups, tool.available, tool.digest)


def sections_of(snapshot: Snapshot, refused: Iterable[RefusedTool]) -> Sections:
    """Return the rows of a snapshot."""
    return {
        "services": {row.id: row for row in snapshot.services},
        "instances": {row.id: _instance(row) for row in snapshot.instances},
        "tools": {f"{row.service} {row.name}": msgspec.structs.replace(row, description="") for row in snapshot.tools},
        "recent": {row.entry: row for row in snapshot.recent},
        "dead": {f"{row.queue} {row.id}": msgspec.structs.replace(row, error=row.error[:_MOST_ERROR]) for row in snapshot.dead},
        "confirmations": {row.id: row.visible() for row in snapshot.confirmations},
        "sessions": {f"{row.service} {row.user} {row.session} {row.instance}": _session(row, snapshot.at) for row in snapshot.sessions},
        "running": {f"{row.instance} {row.id}": row for row in snapshot.running[:_MOST_RUNNING]},
        "refused": {f"{row.service} {row.name}": RefusedRow(*row) for row in list(refused)[:_MOST_REFUSED]},
    }


def changes(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what makes ``after`` of ``before``: by section, the rows to ``set`` and the keys to ``drop``."""
    found: dict[str, Any] = {}
    for section, rows in after.items():
        old = before.get(section, {})
        new = [row for key, row in rows.items() if old.get(key) != row]
        gone = [key for key in old if key not in rows]
        if new or gone:
            found[section] = {"set": new, "drop": gone}
    return found


def _instance(row: InstanceView) -> InstanceRow:
    return InstanceRow(**{name: getattr(row, name) for name in InstanceRow.__struct_fields__})


def _session(row: SessionView, at: float) -> SessionRow:
    return SessionRow(row.service, row.user, row.session, row.instance, row.running, round(at - row.idle))
