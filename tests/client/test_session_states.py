"""The state of a session that a bus takes note of is that of the answer which it gave its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.client.frames import run
from tests.servers import eventually
from toolbus import Settings, ToolBus, ToolService, Worker, tool
from toolbus.bus.client.calls.call import Call
from toolbus.bus.values.envelope import Frame

pytestmark = pytest.mark.anyio


class Waiting(ToolService):
    """A service with sessions, whose calls never end."""

    sticky_sessions = True

    @tool
    async def wait(self) -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""


OLD = run(1, response="old", state="old")
NEW = run(2, "new", state="new")
EARLY = run(1, "x", response="old", state="old")[1]
EVERY_ORDER: dict[str, tuple[list[Frame], str]] = {
    "a replaced run ends late": ([NEW[0], OLD[0], NEW[1]], "new"),
    "a replaced run ends, and the caller gives up": ([NEW[0], OLD[0]], ""),
    "a run ends whose frames are missing, and the caller gives up": ([EARLY], ""),
    "a run ends whose frames are missing, and is replaced": ([EARLY, *NEW], "new"),
    "the last frame overtakes the others": ([NEW[1], NEW[0]], "new"),
    "one frame": (run(2, response="new", state="new"), "new"),
    "another answer after the end": ([*NEW, *OLD], "new"),
}


@pytest.mark.parametrize(("frames", "state"), EVERY_ORDER.values(), ids=EVERY_ORDER)
async def test_the_next_call_is_meant_for_the_state_that_answered(namespace: str, frames: list[Frame], state: str) -> None:
    """Frames of a replaced run change nothing, in whichever order they come; the state is that of the accepted run's end."""
    settings = Settings.load({}, url="memory://", namespace=namespace, grace=0.1)
    async with Worker(Waiting(), settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("wait")
        dispatcher = bus._state.dispatcher
        view = bus.bind(user="ann", session="s")
        first: Call = view.stream("wait")
        async with first:
            await eventually(lambda: first.entry)
            dispatcher.on_frames([renamed(frame, first.id) for frame in frames])
        async with view.stream("wait") as second:
            assert second.request is not None
            assert second.request.state == state


def renamed(frame: Frame, id: str) -> Frame:
    """Return a frame as that of another call."""
    values: dict[str, Any] = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return Frame(**{**values, "id": id})
