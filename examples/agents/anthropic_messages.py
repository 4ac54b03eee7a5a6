"""An agent by Anthropic's SDK. Needs `toolbus[anthropic]`."""

import asyncio
import os

from anthropic import AsyncAnthropic

from toolbus import Progress, ToolBus
from toolbus.adapters.anthropic import converse
from toolbus.events import Finished, Started

QUESTION = "Which train from Oslo to Bergen has the most free seats tomorrow?"


def show(told):
    """Print what becomes of each call, as it happens."""
    match told.event:
        case Started():
            print(f"{told.tool} …")
        case Progress(message=message):
            print(f"  {message}")
        case Finished(result=result):
            print(result)


async def main():
    """Ask one question; the list of messages is the conversation, and grows with it."""
    async with ToolBus() as bus, AsyncAnthropic() as client:
        bus.events.subscribe(show)
        executor = bus.executor(model=os.environ.get("ANTHROPIC_MODEL", "claude-sonnet-5"), user="alice")
        messages = [{"role": "user", "content": QUESTION}]
        message = await converse(client, executor, messages, max_turns=8)
        print(message.content[-1].text)


asyncio.run(main())
