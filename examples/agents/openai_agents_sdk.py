"""An agent of OpenAI's Agents SDK. Needs `toolbus[openai-agents]`."""

import asyncio
import os

from agents import Agent, Runner

from toolbus import Progress, ToolBus
from toolbus.adapters.openai_agents import function_tools, run_config
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
    """Run an agent until its final output."""
    async with ToolBus() as bus:
        bus.events.subscribe(show)
        executor = bus.executor(user="alice")
        agent = Agent("Railway desk", tools=function_tools(executor), model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
        result = await Runner.run(agent, QUESTION, run_config=run_config(executor))
        print(result.final_output)


asyncio.run(main())
