"""Starting: which deliveries run, and which are refused."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from tests.worker.unit.fakes import Bench, hold
from toolbus import ErrorInfo, Retry, Session, ToolError, ToolService, tool
from toolbus.bus.values.results import deadline_exceeded

pytestmark = pytest.mark.anyio

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


async def test_deliveries_start_while_there_are_slots_and_the_rest_goes_back(gate: asyncio.Event, seen: list[Any]) -> None:
    """Two slots run two calls; the third and fourth are handed back without an attempt."""
    bench = Bench(hold)
    deliveries = [bench.delivery("hold", {"name": str(number)}) for number in range(4)]
    bench.slots.start_all(deliveries)
    await bench.settle()
    assert seen == ["0", "1"]
    assert bench.broker.handed_back == deliveries[2:]
    assert bench.slots.statistics() == {"running": 2, "sessions": 0, "free": 0, "started": 2, "finished": 0}
    assert (bench.slots.free_slots(), bench.slots.busy(), bench.slots.idle()) == (0, True, False)
    gate.set()
    await bench.settle()
    assert bench.slots.statistics() == {"running": 0, "sessions": 0, "free": 2, "started": 2, "finished": 2}
    assert (bench.slots.free_slots(), bench.slots.busy(), bench.slots.idle()) == (2, False, True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deadline": 1000.0}, deadline_exceeded("the deadline passed while the request waited 12 ms", "not_taken")),
        ({"service": "other"}, ErrorInfo("not_found", message="this worker does not serve 'other'")),
    ],
)
async def test_what_can_not_run_is_refused(changes: dict[str, Any], expected: ErrorInfo) -> None:
    """A request whose time has passed, or whose service is not here, is answered without a run, and frees its key."""
    bench = Bench(hold)
    bench.slots.start(bench.delivery("hold", **changes))
    [end] = bench.broker.ends
    assert (end.frame.error, end.frees) == (expected, True)
    assert bench.slots.started == 0


async def test_an_unknown_tool_is_refused() -> None:
    """The error names the tools that there are."""
    bench = Bench(hold)
    bench.slots.start(bench.delivery("nothing"))
    assert bench.broker.errors() == [("not_found", "")]
    assert bench.slots.running == 0


async def test_a_request_with_too_many_attempts_becomes_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    """The last allowed attempt runs; the next delivery is set aside."""
    bench = Bench(hold, max_deliveries=3)
    bench.slots.start(bench.delivery("hold", attempt=4))
    [letter] = bench.broker.buried
    message = "given up at attempt 4: the workers of 3 before died or lost their leases while it ran"
    assert (letter.reason, letter.error) == ("max_deliveries", message)
    assert letter.frame.error == ErrorInfo("tool_error", "max_deliveries", message)
    failed, line = [record.getMessage() for record in caplog.records]
    assert failed.startswith("call.failed error=tool_error code=max_deliveries")
    assert line == f"request.buried service=unit tool=hold id=call-1 reason={message!r}".replace("'", '"')
    bench.slots.start(bench.delivery("hold", attempt=3), alone=True)
    await bench.settle()
    assert bench.slots.running == 1


async def test_runs_do_not_see_each_others_context(seen: list[Any]) -> None:
    """A call that starts when another one ends has the worker's context variables, not that call's."""

    @tool(service="unit", replace=True, retry=Retry(attempts=2, delay=0.0))
    async def colour() -> str:
        """Set a variable."""
        seen.append(variable.get())
        variable.set("set")
        raise ToolError("again", retryable=True)

    bench = Bench(colour)
    bench.slots.start(bench.delivery("colour"))
    await asyncio.sleep(1)
    assert seen == ["unset", "unset"]


async def test_a_service_with_sessions_starts_its_calls_in_them(seen: list[Any]) -> None:
    """The call's session is open afterwards, and its state was known to be new."""

    class Keeping(ToolService):
        """Keeps sessions."""

        id = "unit"
        tools = ({"name": "keep", "description": "Keep.", "arguments": []},)

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            seen.append(variable.get())
            variable.set("set")
            return "kept"

        async def cleanup(self, session: Session | None = None) -> None:
            seen.append(session)

    bench = Bench(Keeping)
    for _ in range(2):
        bench.slots.start(bench.delivery("keep", user="u", session="s"))
        await bench.settle()
    assert bench.slots.statistics()["sessions"] == 1
    assert seen == ["unset", "unset"]
    await bench.slots.sessions.aclose()
    assert seen[2:] == [("u", "s")]
