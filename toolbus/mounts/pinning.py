"""Approve the tools of a mount that were never approved; what changes later waits for ``toolbus approve``."""

from __future__ import annotations

from toolbus.broker.admin import Admin
from toolbus.settings import Settings


async def pin_new(settings: Settings, mount: str) -> list[str]:
    """Pin the tools that a mount offers now and that have no pin; return their names.

    Raises:
        BrokerError: the server could not be asked.
    """
    async with Admin(settings) as admin:
        offered = await admin.pins.offered()
        return await admin.pins.pin_new([tool for tool in offered.values() if tool.service == mount], by=f"mount {mount}")
