"""The project as its own files describe it; imports nothing but the standard library and packaging."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = {"": "constraints-core.txt", "image": "constraints.txt", "all": "constraints-all.txt"}
"""The file of pinned packages of each set that people install."""


class Mistake(Exception):
    """A release must not be made; the text says why in one line."""


def project() -> dict[str, object]:
    """Return the table ``project`` of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return table


def version() -> str:
    """Return the version that is to be released."""
    return str(project()["version"])


def variable(name: str) -> str:
    """Return the value of a variable of the Makefile.

    Raises:
        Mistake: there is no such variable.
    """
    found = re.search(rf"^{name} := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise Mistake(f"the Makefile has no variable {name}")
    return found[1]


def pins(name: str) -> dict[str, list[str]]:
    """Return the versions of each package of a file of deploy/; one for newer Pythons may differ from one for older ones."""
    text = (ROOT / "deploy" / name).read_text("utf-8").replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        package, _, rest = line.partition(" --hash")[0].partition("==")
        if package:
            found.setdefault(package, []).append(rest.partition(";")[0].strip())
    return found
