"""Approve the tools of a mount when it is first served; what changes later waits for ``toolbus approve``."""

from __future__ import annotations

from toolbus.results import ConfigurationError
from toolbus.settings import Settings
from toolbus.worker.definition.service import ToolService


async def pin_first(settings: Settings, service: ToolService) -> None:
    """Pin the tools of a service, unless some of them were pinned before.

    Raises:
        ConfigurationError: this version keeps no pins.
    """
    raise ConfigurationError("this version keeps no pins; leave --pin out")
