"""An agent of Pydantic AI: a tool that starts during its run is offered in the next step. Needs `toolbus[pydantic-ai]` and `openai`."""

import asyncio
import os

from pydantic_ai import Agent

from toolbus import Progress, ToolBus
from toolbus.adapters.pydantic_ai import BusToolset
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
    """Run an agent until its output."""
    async with ToolBus() as bus:
        bus.events.subscribe(show)
        model = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
        agent = Agent(f"openai-chat:{model}", toolsets=[BusToolset(bus.executor(user="alice"))])
        result = await agent.run(QUESTION)
        print(result.output)


asyncio.run(main())
