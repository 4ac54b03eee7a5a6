"""Reads the pages of ``examples/``: commands, and the tables that say what to run and what is seen then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = sorted(EXAMPLES.rglob("README.md"))


class Row(NamedTuple):
    """A row of a table that has a command.

    Attributes:
        file: the example, below ``examples/``.
        command: runs it there.
        seen: a part of its output.
    """

    file: str
    command: str
    seen: str


def rows() -> list[Row]:
    """Return the rows of the first page."""
    text = (EXAMPLES / "README.md").read_text("utf-8")
    return [Row(*found) for found in re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \|[^|]*\| `([^`]+)` \| `([^`]+)` \|$", text, re.MULTILINE)]


def commands(page: Path) -> list[str]:
    """Return each line of the code blocks of a page."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line]
