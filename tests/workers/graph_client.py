"""A client of the graph store's tools, and a graph of people."""

import asyncio
import contextlib
import sys

from toolbus_workers.graph_store import GraphStore, tools
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits

from toolbus import ToolBus, Worker

TOOLS = {"graph_import", "graph_query", "graph_schema"}
PEOPLE = "id,name,age,score\nann,Ann,30,\nbob,Bob,,1.5\ncid,Cid,41,2\n"
KNOWS = [{"from": "ann", "to": "bob", "since": 2001}, {"from": "bob", "to": "cid", "since": 2010}]


class Client:
    """A bus with the tools behind it, and their store."""

    def __init__(self, bus, store):
        self.bus = bus
        self.store = store

    async def call(self, tool, timeout=30, **arguments):
        return await self.bus.call(tool, arguments, timeout=timeout)

    async def query(self, query, timeout=30, **arguments):
        return await self.call("graph_query", timeout, query=query, **arguments)

    async def rows(self, query, **arguments):
        result = await self.query(query, **arguments)
        assert result.success, result.error
        return result.data["rows"]

    async def load(self, kind, label, **arguments):
        return await self.call("graph_import", kind=kind, label=label, **arguments)


@contextlib.asynccontextmanager
async def serving(namespace, address="memory://", **limits):
    async with (
        EmbeddedGraph(Limits(**{"memory": 64 << 20, **limits})) as store,
        Worker(tools, url=address, namespace=namespace, provide={GraphStore: store}),
        ToolBus(address, namespace=namespace) as bus,
    ):
        for name in TOOLS:
            await bus.wait_for_tool(name, 20)
        yield Client(bus, store)


@contextlib.asynccontextmanager
async def process(url, namespace, *targets, **options):
    command = [sys.executable, "-m", "toolbus", "--url", url, "--namespace", namespace, "worker", *map(str, targets)]
    made = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, **options)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.terminate()
        await asyncio.wait_for(made.wait(), 30)
