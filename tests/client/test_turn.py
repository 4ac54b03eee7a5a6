"""Turns: several calls of a model at once, what they stream, and what leaving them early does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.executing import chat, repeat
from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, ToolService, Worker, tool
from toolbus.bus.client.executor.observers import Requested
from toolbus.bus.client.tools.tool import wire_name
from toolbus.bus.values.events import Finished, Started, Text

pytestmark = pytest.mark.anyio


async def test_a_turn_in_every_shape(place: Place) -> None:
    """Calls of each provider are run together and answered in order in their own shape, failures among them."""
    async with place.serving(repeat) as bus:
        made = await bus.process_tool_calls(
            {
                "role": "assistant",
                "tool_calls": [
                    chat("c1", "wait_a_bit", {"seconds": 0.05}),
                    chat("c2", "repeat", {"text": "é", "times": 2}),
                    chat("c3", "crash", {}),
                    chat("c4", "repaet", {}),
                    chat("c5", "repeat", '{"text": '),
                    chat("c6", "repeat", {"text": 1}),
                    chat("c7", "long", ""),
                    chat("c8", wire_name("find.docs"), {"query": "q"}),
                ],
            },
            user="alice",
        )
        assert [(each["role"], each["tool_call_id"]) for each in made] == [("tool", f"c{number}") for number in range(1, 9)]
        said = [each["content"] for each in made]
        assert said[:2] == ["waited", "éé"]
        assert said[2].startswith("Error (tool_error): it broke\nNext: ")
        assert "did you mean 'repeat'?" in said[3]
        assert said[3].startswith("Error (not_found)")
        assert said[4].startswith("Error (invalid_arguments): The arguments are not valid JSON")
        assert "$.text" in said[5]
        assert len(said[6]) == 200
        assert json.loads(said[7]) == {"results": [{"id": "q-1"}, {"id": "q-2"}]}
        assert made[7]["name"] == wire_name("find.docs")
        responses = await bus.process_tool_calls(
            [{"type": "function_call", "call_id": "r1", "name": "repeat", "arguments": '{"text": "a"}'}]
        )
        assert responses == [{"type": "function_call_output", "call_id": "r1", "output": "a"}]
        anthropic = await bus.process_tool_calls(
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a1", "name": "repeat", "input": {"text": "b"}}]}
        )
        assert anthropic == [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a1", "content": "b"}]}]
        assert await bus.process_tool_calls({"role": "assistant", "content": "no calls"}) == []


@pytest.mark.usefixtures("slow")
async def test_calls_run_together_or_one_after_another(place: Place) -> None:
    """Calls of a turn run at the same time, unless the caller or the tool opts out."""
    async with place.serving(repeat) as bus:
        calls = [chat(f"c{number}", "wait_a_bit", {"seconds": 0.3}) for number in range(4)]

        async def seconds(work: Any) -> float:
            started = time.monotonic()
            assert [each["content"] for each in await work] == ["waited"] * 4
            return time.monotonic() - started

        assert await seconds(bus.process_tool_calls(calls)) < 1.1
        assert await seconds(bus.process_tool_calls(calls, concurrent=False)) >= 1.2
        assert await seconds(bus.executor(sequential=["wait_a_bit"]).process_tool_calls(calls)) >= 1.2


async def test_a_turn_streams_what_happens(place: Place) -> None:
    """The streaming variant tells each call's request, start, pieces and end, and then has the same messages."""
    async with place.serving(repeat) as bus:
        calls = [chat("c1", "pieces", {"count": "3"}), chat("c2", "nothing", {}), chat("c3", "repeat", {"text": "a"})]
        async with bus.stream_tool_calls(calls, user="u", session="s") as turn:
            events = [event async for event in turn]
            made = await turn.messages()
        assert {(event.user, event.session) for event in events} == {("u", "s")}
        first = [event.event for event in events if event.index == 0]
        assert first[0] == Requested({"count": 3}, ("string → integer - at `$.count`",))
        assert isinstance(first[1], Started)
        assert "".join(event.text for event in first if isinstance(event, Text)) == "0 1 2 "
        assert isinstance(first[-1], Finished)
        assert first[-1].result.meta.changes
        assert [type(event.event) for event in events if event.id == "c2"] == [Finished]
        assert [each["content"] for each in made][::2] == ["0 1 2 ", "a"]


async def test_observers_are_told_what_was_repaired(place: Place) -> None:
    """The changes to a model's text come before those that its schema asked for, for observers as in the result."""
    async with place.serving(repeat) as bus:
        told: list[Requested] = []
        bus.events.subscribe(lambda each: told.append(each.event) if isinstance(each.event, Requested) else None)
        result = await bus.executor().execute("pieces", '```json\n{"count": "2",}\n```')
        changes = ("a code fence was taken off", "commas before closing brackets were taken out", "string → integer - at `$.count`")
        assert [(event.arguments, event.changes) for event in told] == [({"count": 2}, changes)]
        assert result.meta.changes == changes


@pytest.mark.parametrize(
    ("name", "arguments", "changes"),
    [
        ("pieces", '```json\n{"count": "x"}\n```', ("a code fence was taken off",)),
        ("repeat", {"text": "a", "times": "3", "more": 1}, ("string → integer - at `$.times`",)),
        ("nowhere", "```json\n{}\n```", ("a code fence was taken off",)),
    ],
    ids=["repaired", "cast", "no such tool"],
)
async def test_a_refusal_tells_what_was_changed(place: Place, name: str, arguments: object, changes: tuple[str, ...]) -> None:
    """Observers and the caller see what became of arguments that were refused all the same."""
    async with place.serving(repeat) as bus:
        told: list[Finished] = []
        bus.events.subscribe(lambda each: told.append(each.event) if isinstance(each.event, Finished) else None)
        result = await bus.executor().execute(name, arguments)
        assert (result.success, result.meta.changes) == (False, changes)
        assert [event.result for event in told] == [result]


async def test_leaving_a_turn_early_cancels_its_calls(place: Place) -> None:
    """A turn that is left early, or whose task is cancelled, does not wait for its calls, and none stays in flight."""
    async with place.serving(repeat) as bus:
        started = time.monotonic()
        async with bus.stream_tool_calls([chat("c1", "wait_a_bit", {"seconds": 30})]) as turn:
            async for event in turn:
                if isinstance(event.event, Started):
                    break
        task = asyncio.create_task(bus.process_tool_calls([chat("c1", "wait_a_bit", {"seconds": 30})]))
        await eventually(lambda: bus.statistics()["in_flight"] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 10
        assert bus.statistics()["in_flight"] == 0


async def test_a_slow_reader_holds_the_calls_back(namespace: str) -> None:
    """Events that nobody reads do not pile up without end, and messages() needs no reader."""

    @tool(service="flood", effect="read", replace=True)
    async def flood() -> AsyncIterator[str]:
        """Say much."""
        for _ in range(5000):
            yield "x" * 1000

    async with Worker(flood, url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        async with bus.stream_tool_calls([chat("c1", "flood", {})]) as turn:
            [message] = await turn.messages()
        assert len(message["content"]) == 24_000
        async with bus.stream_tool_calls([chat("c1", "flood", {})]) as turn:
            length = 0
            async for event in turn:
                assert len(turn._events) <= 1001
                length += len(event.event.text) if isinstance(event.event, Text) else 0
        assert length == 5_000_000


async def test_a_tool_can_ask_to_be_alone(namespace: str) -> None:
    """A tool that calls itself sequential runs after the calls before it and before those after it."""
    running: list[str] = []
    pairs = asyncio.Barrier(2)
    seen: list[tuple[str, int]] = []

    class Orderly(ToolService):
        """Two tools, of which one wants to be alone."""

        id = "orderly"
        effect = "read"
        tools = [  # noqa: RUF012 - as users write it
            {"name": "alone", "description": "Alone", "x-toolbus": {"sequential": True}},
            {"name": "beside", "description": "Beside"},
        ]

        async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
            """Note who runs at the same time."""
            name = arguments["name"]
            running.append(name)
            seen.append((name, len(running)))
            if name.startswith("beside"):
                await pairs.wait()
            else:
                # Long enough for others to begin.
                await asyncio.sleep(0.02)
            running.remove(name)
            return name

    async with Worker(Orderly, url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        names = ["beside", "beside", "alone", "beside", "beside"]
        made = await bus.process_tool_calls([chat(f"c{i}", name, {"name": f"{name}{i}"}) for i, name in enumerate(names)])
    assert [each["content"] for each in made] == ["beside0", "beside1", "alone2", "beside3", "beside4"]
    assert seen == [("beside0", 1), ("beside1", 2), ("alone2", 1), ("beside3", 1), ("beside4", 2)]
