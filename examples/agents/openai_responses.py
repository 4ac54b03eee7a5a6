"""An agent by OpenAI's SDK and its responses. Needs `toolbus[openai]`."""

import asyncio
import os

from openai import AsyncOpenAI

from toolbus import Progress, ToolBus
from toolbus.adapters.openai import respond
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
    """Ask one question; the list of items is the conversation, and grows with it."""
    async with ToolBus() as bus, AsyncOpenAI() as client:
        bus.events.subscribe(show)
        executor = bus.executor(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), user="alice")
        items = [{"role": "user", "content": QUESTION}]
        response = await respond(client, executor, items, max_turns=8)
        print(response.output_text)


asyncio.run(main())
