"""An agent by OpenAI's SDK and chat completions, at OpenAI or any compatible endpoint. Needs `toolbus[openai]`."""

import asyncio
import os

from openai import AsyncOpenAI

from toolbus import Progress, ToolBus
from toolbus.adapters.openai import chat
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
    async with ToolBus() as bus, AsyncOpenAI() as client:
        bus.events.subscribe(show)
        executor = bus.executor(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), user="alice")
        messages = [{"role": "user", "content": QUESTION}]
        completion = await chat(client, executor, messages, max_turns=8)
        print(completion.choices[0].message.content)


asyncio.run(main())
