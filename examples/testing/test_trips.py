"""Tests of a tool: alone with stand-ins, on a bus in process, and on a server. Run them with `pytest testing`."""

import asyncio

from trips import plan_trip

from toolbus import Progress, tool
from toolbus.testing import InvocationEnvironment

TRAINS = [{"train": "R61", "departs": "08:25"}]


@tool(effect="read")
async def find_trains(start: str, to: str) -> list[dict[str, str]]:
    """Find trains, always the same."""
    return TRAINS


def test_a_trip_is_planned():
    """The tool runs without a bus; what it calls is answered by a stand-in."""

    async def check():
        async with InvocationEnvironment(user="alice", answers={"find_trains": TRAINS}) as environment:
            outcome = await environment.run(plan_trip, {"start": "Oslo", "to": "Bergen"})
        assert outcome.text == "alice takes the 08:25 to Bergen"
        assert outcome.progress == [Progress(1, 2, "1 trains")]
        assert [(call.tool, call.arguments) for call in outcome.calls] == [("find_trains", {"start": "Oslo", "to": "Bergen"})]

    asyncio.run(check())


def test_a_trip_without_a_train_fails():
    """A failure has a type to branch on."""

    async def check():
        async with InvocationEnvironment(answers={"find_trains": []}) as environment:
            result = await environment.call(plan_trip, {"start": "Oslo", "to": "Atlantis"})
            wrong = await environment.call(plan_trip, {"from": "Oslo"})
        assert (result.error.type, wrong.error.type) == ("not_found", "invalid_arguments")

    asyncio.run(check())


def test_tools_call_each_other_in_process(toolbus_bus):
    """A worker and a bus in this process need no server."""

    async def check():
        async with toolbus_bus(plan_trip, find_trains) as bus:
            result = await bus.call("plan_trip", {"start": "Oslo", "to": "Bergen"}, user="bob")
        assert result.output == "bob takes the 08:25 to Bergen"

    asyncio.run(check())


def test_tools_call_each_other_over_a_server(toolbus_bus, toolbus_server):
    """The same through a server, which the fixture starts and stops."""

    async def check():
        async with toolbus_bus(plan_trip, find_trains, url=toolbus_server.url) as bus:
            result = await bus.call("plan_trip", {"start": "Oslo", "to": "Bergen"}, user="bob")
        assert result.output == "bob takes the 08:25 to Bergen"

    asyncio.run(check())
