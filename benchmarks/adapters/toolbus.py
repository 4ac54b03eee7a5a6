"""toolbus through its public API, with every safety feature on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.adapters.contract import Peer, Setup, dated, main, ready
from toolbus import ToolBus, Worker, tool

NAMESPACE = "bench"


@tool
async def echo(text: str) -> str:
    """Return the argument.

    Args:
        text: anything
    """
    return text


@tool
async def nap(seconds: float) -> str:
    """Sleep, like a tool that waits for a network.

    Args:
        seconds: how long
    """
    await asyncio.sleep(seconds)
    return "slept"


@tool
async def chunks(count: int, size: int) -> AsyncIterator[str]:
    """Stream pieces of text, letting the event loop run between them.

    Args:
        count: how many pieces
        size: characters in each
    """
    piece = "x" * size
    for _ in range(count):
        yield piece
        await asyncio.sleep(0)


@tool
async def trickle(count: int, size: int, seconds: float) -> AsyncIterator[str]:
    """Stream pieces of text that say when they leave.

    Args:
        count: how many pieces
        size: characters in each
        seconds: from one to the next
    """
    async for text in dated(count, size, seconds):
        yield text


class Caller:
    """Calls over one bus."""

    def __init__(self, bus: ToolBus) -> None:
        self.bus = bus

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        result = await self.bus.call("echo", {"text": text})
        return result.output or ""

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        result = await self.bus.call("nap", {"seconds": seconds})
        assert result.output == "slept", result

    async def chunks(self, count: int, size: int) -> AsyncIterator[str]:
        """Have the worker stream ``count`` pieces."""
        async with self.bus.stream("chunks", {"count": count, "size": size}) as call:
            async for text in call:
                yield text

    async def trickle(self, count: int, size: int, seconds: float) -> AsyncIterator[str]:
        """Have the worker stream ``count`` dated pieces."""
        async with self.bus.stream("trickle", {"count": count, "size": size, "seconds": seconds}) as call:
            async for text in call:
                yield text


async def serve(setup: Setup) -> None:
    """Serve the tools until terminated, then drain."""
    worker = Worker([echo, nap, chunks, trickle], url=setup.url, namespace=NAMESPACE, concurrency=setup.concurrency)
    ready()
    await worker.run()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a bus and wait for the tools."""
    async with ToolBus(setup.url, namespace=NAMESPACE) as bus:
        for name in ("echo", "nap", "chunks", "trickle"):
            await bus.wait_for_tool(name, timeout=10)
        yield Caller(bus)


if __name__ == "__main__":
    main(Peer(serve, connect))
