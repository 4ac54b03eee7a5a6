"""Record executions, learn scores from them, and roll back, with what the page on learning names."""

from __future__ import annotations

import asyncio
import sys

from toolbus import ToolBus, Worker, tool
from toolbus.toolkit.learning import Edge, Parameters, Recorder, Revisions, Scores, episodes, learn, open_store
from toolbus.toolkit.learning.revisions import digest
from toolbus.toolkit.starting import Starter


@tool(effect="read")
async def run_sql(query: str):
    """Ask the database."""
    return 42


@tool(effect="read")
async def grep_dump(query: str):
    """Search the nightly dump."""
    raise ValueError("there was no dump tonight")


STATIC = Scores([Edge("call", "count orders", "run_sql", 0.4), Edge("call", "count orders", "grep_dump", 0.8)])


async def main():
    starter = Starter({"count orders": "Count the orders of a month", "weather": "Tell the weather of a city"})
    async with Worker([run_sql, grep_dump], url="memory://"), ToolBus("memory://") as bus:
        store = open_store("executions.jsonl")
        executor = bus.executor()
        with Recorder(store, bus.events) as recorder:
            for number in range(60):
                sentence = "How many orders were there in March?"
                episode = recorder.episode(sentence)
                start = starter.rank(sentence)[0]
                # What a model was shown in this action, and how probable that was; here, always both tools.
                with episode.action(start.action, shown={"run_sql": 1.0, "grep_dump": 1.0}):
                    await executor.execute(("run_sql", "grep_dump")[number % 2], {"query": "orders"})

    logged, parameters = episodes(store.read()), Parameters()
    learned = learn(STATIC, logged, parameters)
    for change in learned.changes:
        sys.stdout.write(f"{change.target}: {change.static} -> {change.new:.2f}\n")
    revisions = Revisions("revisions")
    revisions.add(STATIC, learned, digest(logged), parameters)
    _, back = revisions.roll_back()
    sys.stdout.write(f"{back.note}\n")


asyncio.run(main())
