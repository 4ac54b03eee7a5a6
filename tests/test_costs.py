"""What a call costs the server: commands and bytes, which depend on the protocol and not on the machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus import ToolBus, tool
from toolbus.broker.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio

TEXT = "x" * 200
CALLS = 1_000


@tool(service="costs", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


class Meter:
    """Counts what a server is asked."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self.commands = self.bytes = 0

    def start(self) -> None:
        """Begin to count."""
        self._client.config_resetstat()

    def read(self) -> None:
        """Take the counts; commands within scripts count too."""
        stats = self._client.info("stats")
        self.commands = stats["total_commands_processed"]
        self.bytes = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


async def calls(bus: ToolBus, at_once: int) -> None:
    """Make many calls, so many at a time."""
    left = CALLS

    async def one_after_another() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            assert (await bus.call("echo", {"text": TEXT})).output == TEXT

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))


@pytest.mark.parametrize(
    ("at_once", "commands", "size"),
    # What was measured (14.06, 1.44 and 1.40 commands; 2,866 and 1,747 bytes), and a tenth more.
    [(1, 15.4, 3_150), (64, 1.6, 1_920), (256, 1.6, 1_920)],
)
async def test_a_call_costs_no_more_commands_and_bytes_than_it_did(
    fresh_server: Any, namespace: str, at_once: int, commands: float, size: float
) -> None:
    """Alone it takes a handful of commands; many at once share them."""
    server: EmbeddedServer = fresh_server()
    place = Place(server.url, namespace)
    async with place.serving(echo, lease=30.0) as bus:
        await bus.wait_for_tool("echo")
        await calls(bus, at_once)
        meter = Meter(server.url)
        meter.start()
        await calls(bus, at_once)
        meter.read()
        meter.close()
    assert meter.commands / CALLS <= commands, f"{meter.commands / CALLS:.2f} commands a call"
    assert meter.bytes / CALLS <= size, f"{meter.bytes / CALLS:.0f} bytes a call"
