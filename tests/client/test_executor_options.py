"""The options of executors, and the names and answers that programs give: each is checked where it is said."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolBus, tool
from toolbus.bus.client.bus import BusView
from toolbus.bus.client.executor.context import RULES, ExecutorOptions
from toolbus.middleware import Metering

pytestmark = pytest.mark.anyio

WRONG: dict[str, list[Any]] = {
    "tools": [["add"], "add", 3],
    "output_limit": ["5", 0, 1.5, True, None],
    "attachment_limit": ["5", -1, 1.5, True, None],
    "confirmer": [3, "yes"],
    "confirm_timeout": ["5", 0, math.nan, math.inf, None],
    "confirm_anywhere": ["no", 1],
    "sequential": [3, [1], None],
    "model": [3, None],
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@tool(service="executed", effect="read", confirm=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(service="executed", effect="read")
async def look() -> str:
    """Look."""
    return "seen"


def test_every_option_is_listed_here() -> None:
    """A new option of a bus's, a view's or an executor's own needs wrong values here, so that its check is not forgotten."""
    for made in (ToolBus.executor, BusView.executor):
        named = {name for name, each in inspect.signature(made).parameters.items() if each.kind is each.KEYWORD_ONLY} - {"options"}
        assert named == WRONG.keys() == RULES.keys() == set(ExecutorOptions._fields)


@pytest.mark.parametrize(("name", "value"), CASES)
async def test_a_wrong_value_is_refused_when_the_executor_is_made(name: str, value: Any) -> None:
    """The message names the option and the value, before any call is made."""
    async with ToolBus("memory://") as bus:
        for make in (bus.executor, bus.bind(user="u").executor):
            with pytest.raises(ConfigurationError, match=f"the executor: {name} must be ") as refused:
                make(**{name: value})
            assert repr(value) in str(refused.value)


async def test_a_wrong_name_is_told_with_all_options() -> None:
    """The message lists the executor's own options beside those of its calls."""
    async with ToolBus("memory://") as bus:
        with pytest.raises(ConfigurationError, match=r"there is no option 'usr'; did you mean 'user'\?") as refused:
            bus.executor(usr="alice")  # type: ignore[call-arg]
        assert all(name in str(refused.value) for name in (*WRONG, "idempotency_key"))


async def test_one_sequential_tool_may_be_given_as_a_text(place: Place) -> None:
    """A text is one tool, and not its letters."""
    async with place.serving([look]) as bus:
        await bus.wait_for_tool("look")
        executor = bus.executor(sequential="look", tools=bus.tools.filter(names="look"), output_limit=5, model="m")
        assert executor.is_sequential(executor.find("look"))
        assert not bus.executor(sequential="k").is_sequential(executor.find("look"))
        assert (await executor.execute("look")).output == "seen"


@pytest.mark.parametrize("anywhere", [False, True])
@pytest.mark.parametrize("answer", ["yes", 1, [True]])
async def test_a_confirmers_wrong_answer_is_told(place: Place, answer: Any, anywhere: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is no permission; the log and the model learn that the confirmer is at fault, and not a person."""
    async with place.serving([pay]) as bus:
        await bus.wait_for_tool("pay")
        with caplog.at_level(logging.ERROR):
            result = await bus.executor(confirmer=lambda _: answer, confirm_anywhere=anywhere).execute("pay")
        assert result.error is not None
        assert result.error.type == "forbidden"
        assert "the confirmer answered neither True nor False" in result.error.message
        assert f"the confirmer returned {answer!r}" in caplog.text
        assert (await bus.executor(confirmer=lambda _: True, confirm_anywhere=anywhere).execute("pay")).output == "paid"


@pytest.mark.parametrize("middleware", [[], [Metering()]])
@pytest.mark.parametrize("name", [len, None, 3, b"look", ["look"]])
async def test_a_name_that_is_no_text_is_a_mistake_of_the_program(name: Any, middleware: list[Any]) -> None:
    """It is an exception that says what was given, from each way to call a tool or a service."""
    async with ToolBus("memory://", middleware=middleware) as bus:
        with pytest.raises(ConfigurationError, match="the name of a tool is a text, not "):
            await bus.call(name)
        with pytest.raises(ConfigurationError, match="the name of a tool is a text, not "):
            async with bus.stream(name) as call:
                await call.result()
        with pytest.raises(ConfigurationError, match="the id of a service must be a text, not "):
            bus.service(name)
