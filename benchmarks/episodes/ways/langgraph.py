"""Turns by a graph of LangGraph with a ``ToolNode``."""

from __future__ import annotations

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.episodes.player import Player
from benchmarks.episodes.ways.endpoint import DONE, text_of
from benchmarks.episodes.ways.every import MOST_TURNS, executor_of
from toolbus.adapters.langchain import structured_tools
from toolbus.bus.client.bus import BusView


async def play(view: BusView, player: Player) -> None:
    """Play an episode."""
    executor = executor_of(view, player)

    async def model(state: MessagesState) -> MessagesState:
        said = {each.tool_call_id: text_of(each.content) for each in state["messages"] if isinstance(each, ToolMessage)}
        calls = await player.answer(said)
        wanted = [{"type": "tool_call", "id": each.id, "name": each.tool, "args": each.arguments} for each in calls]
        return {"messages": [AIMessage("" if wanted else DONE, tool_calls=wanted)]}

    graph = StateGraph(MessagesState).add_node("model", model).add_node("tools", ToolNode(structured_tools(executor)))
    graph.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    await graph.compile().ainvoke({"messages": []}, {"recursion_limit": 3 * MOST_TURNS})
