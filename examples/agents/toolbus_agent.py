"""An agent without a framework: toolbus' own loop, at any endpoint that speaks like OpenAI. Needs `toolbus[agent]`."""

import asyncio
import os

from toolbus import Progress, ToolBus
from toolbus.agent import OPENAI, Agent, ChatEndpoint, ModelText
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


def speak(told):
    """Print the model's words as they come."""
    if isinstance(told, ModelText):
        print(told.text, end="", flush=True)


async def main():
    """Ask one question; the conversation would go on with the next `ask`."""
    url, key = os.environ.get("OPENAI_BASE_URL", OPENAI), os.environ["OPENAI_API_KEY"]
    async with ToolBus() as bus, ChatEndpoint(url, key) as endpoint:
        bus.events.subscribe(show)
        executor = bus.executor(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), user="alice")
        answer = await Agent(endpoint, executor, max_turns=8, max_seconds=120).ask(QUESTION, speak)
        print(f"\n({answer.reason} after {answer.calls} calls)")


asyncio.run(main())
