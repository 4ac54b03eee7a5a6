"""``Described``: the tools of a mount as the bus publishes them, each with what runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.schema.mend import mended_document
from toolbus.bus.values.descriptors import ServiceDescriptor, check_types, parse_tool
from toolbus.bus.values.results import DescriptorError, ToolResult
from toolbus.bus.worker.invocation import Invocation
from toolbus.edges.mounts.options import Options, bus_name

_MOST_DESCRIPTION = 16_384
# Bytes of one tool's descriptor, and of all of a mount: every agent reads them.
_MOST_DOCUMENT = 262_144
_MOST_TOGETHER = 1_500_000

Run = Callable[[dict[str, Any], Invocation], Awaitable[ToolResult]]
"""Runs one call of a tool."""


class Described:
    """Collects descriptors; one that can't be published is left out and named in the log.

    Args:
        mount: the name of the mount, which is the service's id.
        options: how its tools are served.
        known: tools that were left out before, and why; the log has named them.

    Attributes:
        documents: the descriptors in the two-tier form.
        left_out: the reasons by tool.
    """

    def __init__(self, mount: str, options: Options, known: Mapping[str, str] = MappingProxyType({})) -> None:
        self._mount = mount
        self._service = ServiceDescriptor(mount)
        self._options = options
        self._known = known
        self._runs: dict[str, tuple[str, Run]] = {}
        self._size = 0
        self.documents: list[dict[str, Any]] = []
        self.left_out: dict[str, str] = {}

    @property
    def runs(self) -> Mapping[str, tuple[str, Run]]:
        """By name on the bus, the tool's own name and what runs it."""
        return self._runs

    def add(self, name: str, description: str, parameters: Mapping[str, Any] | None, effect: str, run: Run, about: dict[str, Any]) -> None:
        """Add a tool.

        Args:
            name: the tool's own name.
            description: for models.
            parameters: the schema of its arguments.
            effect: of a second execution.
            run: what runs its calls.
            about: what else is known of it, for those who look at its descriptor.
        """
        if not self._options.selects(name):
            return
        published = bus_name(self._options.prefix + name)
        document = self._document(published, description.strip() or name, parameters, effect, about)
        reason = self._flaw(published, document)
        if reason:
            self.leave_out(name, reason)
            return
        self._runs[published] = (name, run)
        self.documents.append(document)

    def leave_out(self, name: str, reason: str) -> None:
        """Name a tool that can't be published, unless it is not selected anyway."""
        if not self._options.selects(name):
            return
        self.left_out[name] = reason
        if self._known.get(name) != reason:
            telemetry.log.warning("mount.tool_left_out", mount=self._mount, tool=name, reason=reason)

    def _document(
        self, name: str, description: str, parameters: Mapping[str, Any] | None, effect: str, about: dict[str, Any]
    ) -> dict[str, Any]:
        options = self._options
        document: dict[str, Any] = {
            "name": name,
            "description": description if len(description) <= _MOST_DESCRIPTION else f"{description[: _MOST_DESCRIPTION - 1]}…",
            "parameters": dict(parameters) if parameters else {"type": "object"},
            "effect": effect,
            "groups": list(options.groups),
            "category": options.category,
            "timeout": options.timeout,
            "output_limit": options.output_limit,
            "external": options.external,
            "x-toolbus": about,
        }
        return {key: value for key, value in document.items() if value or key == "parameters"}

    def _flaw(self, published: str, document: dict[str, Any]) -> str:
        """Return why a descriptor can't be published, or an empty text."""
        if published in self._runs:
            return f"its name on the bus, {published!r}, is that of {self._runs[published][0]!r}"
        from toolbus.bus.schema.validate import preparer_for  # noqa: PLC0415 - it loads the compiler of schemas, which few need

        try:
            size = len(msgspec.json.encode(document))
            if size > _MOST_DOCUMENT:
                return f"its description and schemas have more than {_MOST_DOCUMENT:,} bytes"
            if self._size + size > _MOST_TOGETHER:
                return f"the tools before it have {_MOST_TOGETHER:,} bytes of descriptions and schemas; serve some of them: --include"
            preparer_for(check_types(parse_tool(mended_document(document)[0], self._service)))
        except (DescriptorError, TypeError, ValueError, RecursionError) as error:
            return str(error) or "it is nested too deeply"
        self._size += size
        return ""
