"""Approve the tools of a mount that were never approved; what changes later waits for ``toolbus approve``."""

from __future__ import annotations

from typing import Any

from toolbus.broker.admin import Admin
from toolbus.results import ConfigurationError
from toolbus.settings import Settings


async def pin_new(settings: Settings, mount: str) -> list[str]:
    """Pin the tools that a mount offers now and that have no pin; return their names.

    Raises:
        ConfigurationError: this version keeps no pins.
        BrokerError: the server could not be asked.
    """
    async with Admin(settings) as admin:
        pins: Any = getattr(admin, "pins", None)
        if pins is None:
            raise ConfigurationError("this version keeps no pins; leave --pin out")
        offered = await pins.offered()
        names: list[str] = await pins.pin_new([tool for tool in offered.values() if tool.service == mount], by=f"mount {mount}")
        return names
