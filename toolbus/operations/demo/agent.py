"""Run the demo's agent in its own process; it reports events as JSON lines on standard output."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from toolbus import Settings, ToolBus, ToolResult
from toolbus.bus.values.events import Finished, Reset, Started, Text

PLUGGED = "plugged_in"
UNARY_CALLS = 600
STREAMS = 12
_KILL_AT = 0.3


def report(event: str, **fields: Any) -> None:
    """Print one event for the conductor."""
    sys.stdout.write(msgspec.json.encode({"event": event, **fields}).decode() + "\n")
    sys.stdout.flush()


class Agent:
    """Calls tools and counts the results."""

    def __init__(self, bus: ToolBus, document: str) -> None:
        self._bus = bus.bind(user="demo")
        self._tools = bus
        self._document = document
        self.calls = self.failed = self.recovered = 0
        self.latencies: list[float] = []

    def count(self, result: ToolResult) -> None:
        """Add a finished call to the summary."""
        self.calls += 1
        self.failed += not result.success
        self.recovered += result.meta.attempts > 1

    async def discover(self) -> None:
        """Wait for the example tools."""
        started = time.monotonic()
        for name in ("calculator", "tell-pun", "text_stream", "text_stats", "json_query"):
            await self._tools.wait_for_tool(name, timeout=15)
        report("discovered", tools=list(self._tools.tools), seconds=round(time.monotonic() - started, 3))

    async def unary(self) -> None:
        """Make many calls at once, each with a known answer."""
        chance = random.Random(7)  # noqa: S311 - the same sums in every demo
        sums = [(chance.randrange(10**6), chance.randrange(10**6)) for _ in range(UNARY_CALLS)]

        async def one(left: int, right: int) -> bool:
            result = await self._bus.call("calculator", {"expression": f"{left} * {right}"})
            self.count(result)
            self.latencies.append(result.meta.ms)
            return bool(result.success and result.data == {"result": left * right})

        started = time.monotonic()
        right = await asyncio.gather(*(one(*pair) for pair in sums))
        seconds = time.monotonic() - started
        joke = await self._bus.call("tell-pun", {"topic": "queues"})
        self.count(joke)
        report("unary", calls=len(right), right=sum(right), seconds=round(seconds, 3), joke=joke.observation)

    async def streams(self) -> None:
        """Stream the document many times at once; each stream must return it unchanged."""

        async def one() -> tuple[bool, int]:
            pieces = 0
            text = []
            async with self._bus.stream("text_stream", {"text": self._document, "part": 200}) as call:
                async for piece in call:
                    pieces += 1
                    text.append(piece)
                self.count(await call.result())
            return "".join(text) == self._document, pieces

        started = time.monotonic()
        seen = await asyncio.gather(*(one() for _ in range(STREAMS)))
        report(
            "streams",
            streams=len(seen),
            whole=sum(whole for whole, _ in seen),
            pieces=sum(pieces for _, pieces in seen),
            seconds=round(time.monotonic() - started, 3),
        )

    async def survive(self) -> None:
        """Read a slow stream whose worker is killed in the middle; the text must still be the document."""
        part, delay = 200, 20
        text: list[str] = []
        length = resets = 0
        gap, last = 0.0, time.monotonic()
        worker, killed = "", False
        arguments = {"text": self._document, "part": part, "delay_ms": delay}
        async with self._bus.stream("text_stream", arguments, timeout=30.0) as call:
            async for event in call.events():
                now = time.monotonic()
                gap, last = max(gap, now - last), now
                if isinstance(event, Started):
                    worker = event.worker
                elif isinstance(event, Reset):
                    resets += 1
                    text.clear()
                elif isinstance(event, Text):
                    text.append(event.text)
                    length += len(event.text)
                    if not killed and length > _KILL_AT * len(self._document):
                        killed = True
                        report("kill", worker=worker, characters=length)
                elif isinstance(event, Finished):
                    self.count(event.result)
                    report(
                        "survived",
                        whole="".join(text) == self._document,
                        attempts=event.result.meta.attempts,
                        first=worker,
                        last=event.result.meta.worker,
                        resets=resets,
                        gap=round(gap, 3),
                        error=None if event.result.error is None else str(event.result.error),
                    )

    async def meet(self) -> None:
        """Call a tool that appears while this process runs, and wait until it is gone again."""
        report("ready_for_plug")
        async for change in self._tools.tools.changes():
            if change.name != PLUGGED:
                continue
            if change.kind == "removed":
                report("unplugged", at=time.time())
                return
            seen = time.time()
            result = await self._bus.call(PLUGGED, {"name": "agent"})
            self.count(result)
            report("plugged", at=seen, output=result.output, ok=result.success)


async def main(document: str) -> None:
    """Run every part, then report the summary."""
    async with ToolBus(settings=Settings.load()) as bus:
        agent = Agent(bus, document)
        await agent.discover()
        await agent.unary()
        await agent.streams()
        await agent.survive()
        async with asyncio.timeout(20):
            await agent.meet()
        latencies = sorted(agent.latencies)
        report(
            "summary",
            calls=agent.calls,
            failed=agent.failed,
            recovered=agent.recovered,
            p50_ms=latencies[len(latencies) // 2],
            p99_ms=latencies[int(len(latencies) * 0.99)],
            **{name: value for name, value in bus.statistics().items() if name in {"frames", "malformed", "commands", "connects"}},
        )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text("utf-8")))
