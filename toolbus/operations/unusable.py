"""Say which tools and presets agents leave out, and which wait for a worker."""

from __future__ import annotations

from collections.abc import Mapping

from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.catalogue import Catalogue, unusable
from toolbus.bus.client.tools.tool import Tool


def refused(catalogue: Catalogue) -> list[RefusedTool]:
    """Return the tools and the presets that agents leave out, each with its reason; a preset belongs to no service."""
    return [*unusable(catalogue), *_refused_presets(catalogue.presets)]


def pending(catalogue: Catalogue) -> list[Tool]:
    """Return the static tools whose service no worker has served yet, by name."""

    def waits(tool: Tool) -> bool:
        return tool.service_descriptor is None or tool.service_descriptor is catalogue.static_services.get(tool.service)

    return [tool for _, tool in sorted(catalogue.tools.items()) if tool.owner == "operator" and waits(tool)]


def title(tool: RefusedTool) -> str:
    """Return the name of what is refused, with that of its service if it has one."""
    return f"{tool.name} of {tool.service}" if tool.service else tool.name


def _refused_presets(presets: Mapping[str, bytes]) -> list[RefusedTool]:
    try:
        from toolbus.toolkit.live import unreadable  # noqa: PLC0415 - most deployments have no packages of the toolkit
    except ModuleNotFoundError:
        # Without the packages of the toolkit, nobody here uses presets.
        return []
    return [RefusedTool(f"toolkit/{name}", "", reason) for name, reason in unreadable(presets).items()]
