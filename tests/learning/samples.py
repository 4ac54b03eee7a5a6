"""Executions for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from toolbus.toolkit.learning import Edge, Execution, Scores

START = 1_750_000_000.0
DAY = 86_400.0


def execution(number: int = 0, **fields: Any) -> Execution:
    """One execution; ``number`` makes its id and its time, a second apart."""
    given = {"episode": f"e{number}", "position": 0, "action": "count", "tool": "sql", "outcome": "success", "at": START + number}
    return Execution(**{"id": f"x{number}", **given, **fields})


def calls(tool: str, outcomes: Iterable[bool], *, first: int = 0, **fields: Any) -> list[Execution]:
    """A call per outcome, each in an episode of its own."""
    return [
        execution(first + number, id=f"{tool}-{first + number}", tool=tool, outcome="success" if good else "failure", **fields)
        for number, good in enumerate(outcomes)
    ]


def scores(*, nexts: dict[str, dict[str, float]] | None = None, **rows: dict[str, float]) -> Scores:
    """Scores from call edges by action, and next edges."""
    edges = [Edge("call", action, tool, score) for action, row in rows.items() for tool, score in row.items()]
    return Scores(edges + [Edge("next", action, other, score) for action, row in (nexts or {}).items() for other, score in row.items()])
