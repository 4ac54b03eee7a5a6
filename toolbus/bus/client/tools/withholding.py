"""Withhold tools that no operator has approved as they are."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.display import shortened
from toolbus.bus.values.pins import Pin, approves, changes, read
from toolbus.bus.values.results import DescriptorError

_MOST_REASON = 200


class Withholding:
    """The pins of a namespace, and the tools that are withheld because of them.

    Args:
        required: withhold tools without a pin, too.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required = required
        self.tools: dict[str, Tool] = {}
        self._pins: dict[str, Pin | None] = {}
        self._reasons: dict[str, str] = {}

    def clear(self) -> None:
        """Forget the pins, which a snapshot names anew."""
        self._pins.clear()

    def take(self, name: str, document: bytes | None) -> None:
        """Take in a tool's pin, or that it is gone (None); one that can't be read approves nothing."""
        if document is None:
            self._pins.pop(name, None)
            return
        try:
            self._pins[name] = read(document)
        except DescriptorError as error:
            self._pins[name] = None
            telemetry.log.warning("pin.unreadable", tool=name, error=str(error))

    def admitted(self, service: str, tools: dict[str, Tool]) -> dict[str, Tool]:
        """Return the tools of a service that are not withheld, and keep the others."""
        for name in [name for name, tool in self.tools.items() if tool.service == service and name not in tools]:
            self._release(name)
        if not self._pins and not self.required:
            for name in tools:
                self._release(name)
            return tools
        found: dict[str, Tool] = {}
        for name, tool in tools.items():
            reason = self._reason(tool)
            if not reason:
                self._release(name)
                found[name] = tool
                continue
            if self._reasons.get(name) != reason:
                telemetry.log.warning("tool.withheld", tool=name, service=service, reason=reason)
            self.tools[name], self._reasons[name] = tool, reason
        return found

    def reason(self, name: str) -> str:
        """Return why a tool is withheld; empty when it is not."""
        return self._reasons.get(name, "")

    def refuses(self, name: str) -> bool:
        """Return whether a tool of this name would be withheld in every form that nobody offers now."""
        if name not in self._pins:
            return self.required
        pin = self._pins[name]
        return pin is None or pin.state == "rejected"

    def refused(self) -> list[RefusedTool]:
        """Return the tools that are withheld, with the reason."""
        return [RefusedTool(name, tool.service, self._reasons[name]) for name, tool in self.tools.items()]

    def _release(self, name: str) -> None:
        self.tools.pop(name, None)
        self._reasons.pop(name, None)

    def _reason(self, tool: Tool) -> str:
        name = tool.name
        if name not in self._pins:
            return (
                f"it waits for approval: look at `toolbus see describe {name}`, then `toolbus secure approve {name}`"
                if self.required
                else ""
            )
        pin = self._pins[name]
        if pin is None:
            return f"its approval can't be read; `toolbus secure approve {name}` makes another"
        if pin.state == "rejected":
            why = f" ({shortened(pin.reason, _MOST_REASON)})" if pin.reason else ""
            return f"an operator rejected it{why}; `toolbus secure approve {name}` lets it be used"
        if approves(pin, tool.descriptor):
            return ""
        what = ", ".join(changes(pin, tool.descriptor)) or "something"
        told = f"it has changed since it was approved ({shortened(what, _MOST_REASON)})"
        return f"{told}; look at `toolbus secure pins show {name}`, then `toolbus secure approve {name}`"


_MOST = 1_000


class FormerTools:
    """The tools that went last, at most a thousand.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tools: dict[str, tuple[Tool, float]] = {}

    def add(self, tool: Tool) -> None:
        """Remember a tool that goes now."""
        self._tools.pop(tool.name, None)
        self._tools[tool.name] = (tool, self._clock())
        if len(self._tools) > _MOST:
            del self._tools[next(iter(self._tools))]

    def remove(self, name: str) -> None:
        """Forget a tool that is there again."""
        self._tools.pop(name, None)

    def get(self, name: str) -> Tool | None:
        """Return the tool as it was, or None."""
        found = self._tools.get(name)
        return None if found is None else found[0]

    def seconds(self, name: str) -> float:
        """Return the seconds since it went."""
        return self._clock() - self._tools[name][1]
