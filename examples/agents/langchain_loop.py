"""An agent of LangChain's parts, whose loop stands here in full. Needs `toolbus[langchain]` and `langchain-openai`."""

import asyncio
import os

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

from toolbus import Progress, ToolBus
from toolbus.adapters.langchain import structured_tools
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
    """Ask the model, run the tools that it calls, and ask again, until it calls none."""
    async with ToolBus() as bus:
        bus.events.subscribe(show)
        tools = {tool.name: tool for tool in structured_tools(bus.executor(user="alice"))}
        model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini")).bind_tools(list(tools.values()))
        messages = [HumanMessage(QUESTION)]
        for _ in range(8):
            answer = await model.ainvoke(messages)
            messages.append(answer)
            if not answer.tool_calls:
                break
            messages += await asyncio.gather(*(tools[call["name"]].ainvoke(call) for call in answer.tool_calls))
        print(answer.content)


asyncio.run(main())
