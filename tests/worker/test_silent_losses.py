"""Parts of a definition that have no effect are told when a worker is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

from toolbus import ToolService, Worker, tool


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """Return what the log says of a kind of event when a worker serves a target."""

    def read(target: object, event: str) -> list[str]:
        caplog.clear()
        Worker(target, url="memory://")
        return [line for line in (record.getMessage() for record in caplog.records) if line.startswith(event)]

    return read


def ends_plainly() -> Generator[str, None, None]:
    """Return nothing."""
    yield "a"


def ends_early(stop: bool = True) -> Generator[str, None, None]:
    """Return nothing, early."""
    if stop:
        return
    yield "a"


def ends_with_a_number() -> Generator[str, None, int]:
    """Return a number."""
    yield "a"
    return 5


def ends_with_a_variable(stop: bool = True) -> Generator[str, None, str]:
    """Return a variable, early."""
    text = "a"
    if stop:
        return text
    yield text
    return ""


async def streams() -> AsyncIterator[str]:
    """Stream."""
    yield "a"


def answers() -> int:
    """Return a number, as functions do."""
    return 5


class Returning(ToolService):
    """Generates, and returns."""

    id = "losing-invoke"

    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Yield, and return."""
        yield "a"
        return 5


@pytest.mark.parametrize(
    ("function", "lost"),
    [
        (ends_plainly, False),
        (ends_early, False),
        (ends_with_a_number, True),
        (ends_with_a_variable, True),
        (streams, False),
        (answers, False),
    ],
)
def test_a_generators_return_value_is_told_as_lost(function: Any, lost: bool, told: Any) -> None:
    """The returned value reaches nobody; the line names the tool and the place."""
    lines = told(tool(service=f"losing-{function.__name__}", replace=True)(function), "tool.return_ignored")
    assert len(lines) == lost
    for line in lines:
        assert f"tool={function.__name__}" in line
        assert f"test_silent_losses.py:{function.__code__.co_firstlineno}" in line


def test_a_services_generator_is_told_alike(told: Any) -> None:
    """The line names the service."""
    [line] = told(Returning, "tool.return_ignored")
    assert "service=losing-invoke" in line


def stored(store: Stor, n: int, other: list[Missing] | None = None) -> str:  # type: ignore[name-defined] # noqa: F821 - as misspelt
    """Take a type that is not there."""
    return f"{store} {n} {other}"


def test_an_annotation_that_can_not_be_evaluated_is_told(told: Any) -> None:
    """The parameter takes anything, and the line names it and the name that is not there; other parameters keep their types."""
    served = tool(service="losing-annotations", replace=True)(stored)
    first, second = told(served, "tool.unresolved_annotation")
    assert "parameter=store" in first
    assert "name 'Stor' is not defined" in first
    assert "parameter=other" in second
    given = tool("given", parameters={"type": "object"}, service="losing-given", replace=True)(lambda store: store)
    assert told(given, "tool.unresolved_annotation") == []
