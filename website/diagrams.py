"""Diagrams of states as tables: a page needs no script to draw them, and a search finds their words."""

from __future__ import annotations

import re

_STEP = re.compile(r"^\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: (.*))?$")


def as_table(diagram: str) -> str | None:
    """Return a diagram of states as a Markdown table with a row for each step; None for diagrams of other kinds."""
    kind, *lines = [line for line in diagram.splitlines() if line.strip()]
    if kind.strip() != "stateDiagram-v2":
        return None
    steps = [_STEP.match(line) for line in lines]
    if not all(steps):
        return None
    rows = [f"| {_state(step[1], 'start')} | {_state(step[2], 'end')} | {step[3] or ''} |" for step in steps if step]
    return "\n".join(["", "| From | To | When |", "|---|---|---|", *rows, "", ""])


def _state(name: str, outside: str) -> str:
    """Return the name of a state; the point outside of all states has none."""
    return f"*{outside}*" if name == "[*]" else f"`{name}`"
