"""Hear of what other processes change, and wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec

from toolbus.bus.broker.transport.link import Link


class News(msgspec.Struct, eq=False):
    """What is told on one channel: that there is something new to look at. Not every change is told.

    Attributes:
        count: how much this process heard.
        ended: nobody waits any more.
    """

    link: Link
    channel: str
    count: int = 0
    ended: bool = False
    followed: bool = False
    heard: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def follow(self) -> None:
        """Hear of changes from now on."""
        if not self.followed:
            self.followed = True
            self.link.subscribe(self.channel)

    def pushed(self, message: list[Any]) -> None:
        """Take in a message of the server's; those of other channels are ignored."""
        if len(message) == 3 and message[0] == b"message" and message[1] == self.channel.encode():
            self.nudge()

    def nudge(self) -> None:
        """Let everybody look again: what was told meanwhile may not have arrived."""
        self.count += 1
        self.heard.set()
        self.heard = asyncio.Event()

    def end(self) -> None:
        """Let nobody wait any more."""
        self.ended = True
        self.nudge()

    async def wait(self, since: int, seconds: float | None = None) -> None:
        """Wait until ``count`` is another number than ``since``, and no longer than ``seconds``."""
        self.follow()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count == since:
                    await self.heard.wait()
