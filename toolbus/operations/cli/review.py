"""Collect what an operator put into the registry and agents can't use, or can't use yet."""

from __future__ import annotations

from collections.abc import Mapping

from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.review import unusable
from toolbus.bus.client.tools.tool import Tool


def refused(catalogue: Catalogue) -> list[RefusedTool]:
    """Return the tools and the presets that agents leave out, each with its reason; a preset belongs to no service."""
    return [*unusable(catalogue), *_refused_presets(catalogue.presets)]


def pending(catalogue: Catalogue) -> list[Tool]:
    """Return the static tools whose service no worker has served yet, by name."""
    return [tool for _, tool in sorted(catalogue.tools.items()) if tool.owner == "operator" and _waits(tool, catalogue)]


def title(tool: RefusedTool) -> str:
    """Return the name of what is refused, with that of its service if it has one."""
    return f"{tool.name} of {tool.service}" if tool.service else tool.name


def _waits(tool: Tool, catalogue: Catalogue) -> bool:
    return tool.service_descriptor is None or tool.service_descriptor is catalogue.static_services.get(tool.service)


def _refused_presets(presets: Mapping[str, bytes]) -> list[RefusedTool]:
    try:
        from toolbus.toolkit.live import unreadable
    except ModuleNotFoundError:
        # Without the packages of the toolkit, nobody here uses presets.
        return []
    return [RefusedTool(f"toolkit/{name}", "", reason) for name, reason in unreadable(presets).items()]
