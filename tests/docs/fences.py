"""The blocks of code of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SHELL = {"sh", "bash", "shell", "console"}

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1``` *$", re.DOTALL | re.MULTILINE)


class Fence(NamedTuple):
    """One block of code."""

    page: str
    kind: str
    text: str

    @property
    def first(self) -> str:
        """Its first line, by which tables name it."""
        return self.text.strip().splitlines()[0].strip() if self.text.strip() else ""


def fences(page: Path) -> list[Fence]:
    """Return the blocks of a page; ``page`` of each is the path below the repository."""
    name = str(page.relative_to(ROOT))
    found = []
    for indent, kind, text in _FENCE.findall(page.read_text("utf-8")):
        plain = "\n".join(line.removeprefix(indent) for line in text.splitlines())
        found.append(Fence(name, kind, f"{plain}\n"))
    return found


def statements(fence: Fence) -> list[str]:
    """Return the commands of a block: a line each, with those that go on in the next lines together and without comments.

    In a block of the kind ``console``, only lines after a ``$`` are commands; the others are what they print.
    """
    lines = fence.text.splitlines()
    if fence.kind == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found: list[str] = []
    held = ""
    for line in lines:
        held = f"{held}\n{line}" if held else line
        if held.strip() and _is_whole(held):
            found.append(held.strip())
            held = ""
        elif not held.strip():
            held = ""
    assert not held, f"{fence.page}: this command has no end: {held}"
    kept = [_without_comment(each) for each in found]
    return [each for each in kept if each]


def _is_whole(text: str) -> bool:
    """Return whether a command ends here: no quote is open, no line goes on, and no loop waits for its end."""
    if text.rstrip().endswith("\\"):
        return False
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return False
    return not (words and words[0] in {"for", "while", "if"} and words[-1] not in {"done", "fi"})


def _without_comment(text: str) -> str:
    """Return a command without the comment after it; one of several lines has none."""
    if "\n" in text:
        return text
    return re.split(r"(?:^|\s+)#\s", text, maxsplit=1)[0].rstrip()


def program_of(statement: str) -> str:
    """Return the first program of a command, after variables that are set for it alone."""
    words = [word for word in statement.split() if not re.match(r"[A-Z_]+=", word)]
    return words[0] if words else ""
