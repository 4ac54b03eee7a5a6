"""An agent as a LangGraph, which shows what tools stream. Needs `toolbus[langgraph]` and `langchain-openai`."""

import asyncio
import os

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from toolbus import ToolBus
from toolbus.adapters.langchain import structured_tools

QUESTION = "Which train from Oslo to Bergen has the most free seats tomorrow?"


async def main():
    """Build the graph of two nodes, and follow both its steps and the tools' deltas."""
    async with ToolBus() as bus:
        tools = structured_tools(bus.executor(user="alice"))
        model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini")).bind_tools(tools)

        async def think(state):
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("think", think).add_node("tools", ToolNode(tools))
        graph.add_edge(START, "think").add_conditional_edges("think", tools_condition).add_edge("tools", "think")
        question = {"messages": [("user", QUESTION)]}
        async for mode, event in graph.compile().astream(question, stream_mode=["tools", "updates"]):
            if mode == "tools":
                print("  ", event.get("delta") or event["event"])
            elif "think" in event:
                answer = event["think"]["messages"][-1]
                print(answer.content or [call["name"] for call in answer.tool_calls])


asyncio.run(main())
