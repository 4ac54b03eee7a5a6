"""The options of ready-made middleware: each is checked where it is written."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolbus import ConfigurationError, ToolBus, ToolResult, ToolService, Worker, middleware, tool
from toolbus.middleware import Cache, CircuitBreaker, Metering, Next, Quota, RateLimit, Timeout, ToolCall, only

LIMITS: dict[str, list[Any]] = {
    "limit": ["3", 1.5, 0, -1, True, None],
    "per": ["second", 0, math.nan, math.inf, None],
    "by": ["user", 3, None],
    "name": [3, None],
}
# Wrong values of each option; the others have their defaults, or these values.
WRONG: dict[Any, dict[str, list[Any]]] = {
    Cache: {
        "ttl": ["60", 0, -1, math.nan, True, None],
        "most_bytes": ["1", 0, 1.5, None],
        "by": ["user", None],
        "invalidates": ["all", None],
    },
    RateLimit: LIMITS,
    Quota: LIMITS,
    Timeout: {"seconds": ["5", 0, -1, math.nan, math.inf, None]},
    CircuitBreaker: {
        "failures": ["3", 0, 1.5, None],
        "cooldown": ["1", 0, math.nan, math.inf, None],
        "trips": ["tool_error", ["no_such_error"], 3, None],
        "by": ["tool", None],
    },
    Metering: {},
    only: {"middleware": [3, None, Metering, types], "tools": [3, None, [1], {"a": 1}]},
}
NEEDED: dict[Any, dict[str, Any]] = {
    RateLimit: {"limit": 1},
    Quota: {"limit": 1},
    Timeout: {"seconds": 1},
    only: {"middleware": Metering(), "tools": ["a"]},
}
CASES = [(make, name, value) for make, options in WRONG.items() for name, values in options.items() for value in values]


@tool(service="around", effect="read")
async def add(call: int, next: int) -> int:
    """Add two numbers, with parameters named as those of middleware."""
    return call + next


class Anything(ToolService):
    """Runs whatever its callers' descriptors say."""

    id = "around-anything"

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Run."""
        return "done"


async def passing(call: ToolCall, next: Next) -> ToolResult:
    """Let the call pass."""
    return await next(call)


async def generating(call: ToolCall, next: Next) -> AsyncIterator[ToolResult]:
    """Do what no middleware does."""
    yield await next(call)


async def alone(call: ToolCall) -> None:
    """Lack a parameter."""


def test_every_option_of_every_middleware_is_listed_here() -> None:
    """New middleware and new options need wrong values here, so that their checks are not forgotten."""
    exported = [getattr(middleware, name) for name in middleware.__all__]
    ready_made = {each for each in exported if inspect.isclass(each) and inspect.iscoroutinefunction(each.__call__)} | {only}
    assert WRONG.keys() == ready_made
    for make, options in WRONG.items():
        assert options.keys() == ({} if make is Metering else inspect.signature(make).parameters).keys()


@pytest.mark.parametrize(("make", "name", "value"), CASES)
def test_a_wrong_value_is_told_with_what_is_expected(make: Any, name: str, value: Any) -> None:
    """The message names the middleware, the option and the value in one line."""
    with pytest.raises(ConfigurationError) as refused:
        make(**{**NEEDED.get(make, {}), name: value})
    said = str(refused.value)
    assert "\n" not in said
    if name != "middleware":
        assert said.startswith(f"{make.__name__}: {name} must be ")
        assert repr(value) in said


def test_right_values_are_accepted() -> None:
    """Middleware as the documentation shows it can be made."""
    for made in (
        Cache(math.inf, most_bytes=1, by=lambda call: call.user, invalidates=lambda call: ()),
        RateLimit(1, 0.001, by=lambda call: "", name="n"),
        Quota(10),
        Timeout(0.5),
        CircuitBreaker(1, 1.5, trips=["tool_error"], by=lambda call: ""),
        only(Timeout(5), tools=("add",)),
        only(functools.partial(passing), tools={"add"}),
        passing,
    ):
        assert ToolBus("memory://", middleware=[made]), made


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (types, "it is a module; name the middleware in it, types:NAME"),
        (alone, r"it does not take \(call, next\)"),
        (lambda: None, r"it does not take \(call, next\)"),
        (generating, "it is a generator"),
    ],
)
def test_what_can_not_run_around_a_call_is_refused_with_the_reason(wrong: Any, says: str) -> None:
    """A bus and a worker say what is wrong with it when they are made."""
    with pytest.raises(ConfigurationError, match=f"is no middleware: {says}"):
        ToolBus("memory://", middleware=[wrong])
    with pytest.raises(ConfigurationError, match=f"is no middleware: {says}"):
        Worker(add, url="memory://", middleware=[wrong])


def test_a_tool_is_no_middleware() -> None:
    """A worker refuses a tool as middleware when it is made, whatever its parameters are called."""
    with pytest.raises(ConfigurationError, match=r"test_options\.add is a tool, not middleware"):
        Worker(add, url="memory://", middleware=[add])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("services", "tools", "unknown"),
    [
        ([add], "add", []),
        ([add], ["add", "around"], []),
        ([add], ["add", "ad", "sub"], ["ad", "sub"]),
        ([add, Anything], ["sub"], []),
    ],
)
def test_names_that_a_worker_does_not_serve_are_logged(
    services: list[object], tools: Any, unknown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Middleware for tools that are not there would never run; a service that runs any tool may have them."""
    with caplog.at_level(logging.WARNING):
        Worker(services, url="memory://", middleware=[only(Timeout(5), tools=tools)])
    said = [record.getMessage() for record in caplog.records if "middleware.unknown_tools" in record.getMessage()]
    assert bool(said) == bool(unknown)
    assert all(name in said[0] for name in unknown)
