"""Publish presets with the scores of a revision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.items import ToolGroup
from toolbus.toolkit.learning.revisions import Revisions, check_graph
from toolbus.toolkit.live import MAX_PUBLISHED
from toolbus.toolkit.presets import graph_of, names_of, read_preset, scores_of, with_scores
from toolbus.toolkit.starting import Preset

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin


async def publish(admin: Admin, preset: Preset, owner: str) -> None:
    """Publish a preset; every agent of the namespace sees it at once.

    Raises:
        ToolkitError: it is too large.
        ToolbusError: the name is another owner's, or the server can't be reached.
    """
    document = msgspec.json.encode(preset)
    if len(document) > MAX_PUBLISHED:
        raise ToolkitError(f"the preset has {len(document):,} bytes, and {MAX_PUBLISHED:,} can be published: publish it in parts")
    await admin.put(f"toolkit/{preset.name}", document, owner)


async def is_published(admin: Admin, preset: Preset) -> bool:
    """Return whether exactly this preset is published."""
    return await admin.item(f"toolkit/{preset.name}") == msgspec.json.encode(preset)


async def publish_current(admin: Admin, revisions: Revisions, owner: str) -> list[str]:
    """Publish the current revision in the place of other revisions of the same folder; return the names of the presets.

    Raises:
        ConfigurationError: the current revision is of another graph.
        ToolbusError: a preset is another owner's, or the server can't be reached.
    """
    current, known = revisions.current(), set(revisions.ids())
    changed: list[str] = []
    for key, document in (await admin.items("toolkit/")).items():
        try:
            preset = read_preset(document, key)
        except ToolkitError:
            continue  # the commands that list presets tell why
        if current is not None and preset.revision in known:
            check_graph(current, scores_of(graph_of(preset)).scores, preset.name)
            await publish(admin, with_scores(preset, current.edges, current.id), owner)
            changed.append(preset.name)
    return sorted(changed)


async def live_names(admin: Admin, preset: Preset) -> dict[str, list[str]]:
    """Return the names of the tools that a preset's groups have on the bus at the moment, by group.

    Raises:
        ToolbusError: the server can't be reached.
    """
    services, _ = await admin.snapshot()
    tools = [tool for record in services.values() if isinstance(record, ServiceRecord) for tool in record.publication.tools]
    return {
        group.id: sorted(tool.name for tool in tools if (group.service and tool.service == group.service) or group.group in tool.groups)
        for group in preset.groups
        if group.service or group.group
    }


def all_names(preset: Preset, live: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Return the names by which a log may know a preset's vertices, without their ids; ``live`` has those of groups on the bus."""
    graph = graph_of(preset)
    names = {vertex: names_of(graph, vertex).union(live.get(vertex, ())) - {vertex} for vertex, _ in graph.items()}
    return {vertex: found for vertex, found in names.items() if found or isinstance(graph.item(vertex), ToolGroup)}
