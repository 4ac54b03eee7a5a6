"""toolbus's own agent, driven as ``toolbus protocol conformance agent`` drives others."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.values.events import Finished, Reset, Text

_OPTIONS = {"timeout": "timeout", "key": "idempotency_key", "user": "user", "session": "session"}


def _report(name: str, **event: Any) -> None:
    sys.stdout.write(msgspec.json.encode({"call": name, **event}).decode() + "\n")
    sys.stdout.flush()


async def _call(bus: ToolBus, asked: dict[str, Any]) -> None:
    name, text = asked["call"], ""
    options = {option: asked[word] for word, option in _OPTIONS.items() if word in asked}
    async with bus.stream(asked["tool"], asked["arguments"], **options) as call:
        async for event in call.events():
            if isinstance(event, Text):
                text += event.text
                _report(name, text=event.text)
            elif isinstance(event, Reset):
                text = ""
                _report(name, reset=True)
            elif isinstance(event, Finished):
                error = event.result.error
                _report(name, end={"text": event.result.output or text, "error": error})


async def main() -> None:
    """Make the calls that standard input asks for, until it ends."""
    calls: dict[str, asyncio.Task[None]] = {}
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with ToolBus() as bus:
        async for line in lines:
            asked = msgspec.json.decode(line)
            if "call" in asked:
                calls[asked["call"]] = asyncio.create_task(_call(bus, asked))
            elif "close" in asked:
                await bus.end_session(asked["user"], asked["close"])
            elif task := calls.get(asked["cancel"]):
                task.cancel()
                _report(asked["cancel"], end={"text": "", "error": {"type": "cancelled"}})
        for task in calls.values():
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
