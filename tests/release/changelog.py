"""The changelog's part in a release: its section has the release's date and becomes its notes."""

from __future__ import annotations

import datetime
import re

from tests.release.project import ROOT, Mistake, version


def section(wanted: str, text: str | None = None) -> str:
    """Return what the changelog says of a version.

    Args:
        wanted: the version, such as ``1.2.3``.
        text: the changelog; None reads the project's.

    Raises:
        Mistake: there is no such section, it has no date, or it is empty.
    """
    given = (ROOT / "CHANGELOG.md").read_text("utf-8") if text is None else text
    heads = list(re.finditer(r"^## \[([^\]]+)\](.*)$", given, re.MULTILINE))
    for head, after in zip(heads, [*heads[1:], None], strict=True):
        if head[1] == wanted:
            body = given[head.end() : after.start() if after else len(given)]
            return _checked(wanted, head[2], re.sub(r"^\[[^\]]+\]: .*$", "", body, flags=re.MULTILINE).strip())
    raise Mistake(f"CHANGELOG.md has no section [{wanted}]: rename [Unreleased] to [{wanted}] - YYYY-MM-DD, and begin a new one")


def _checked(wanted: str, rest: str, body: str) -> str:
    """Return the text of a section whose heading ends in a date."""
    try:
        datetime.date.fromisoformat(rest.removeprefix(" - "))
    except ValueError:
        raise Mistake(f"the section [{wanted}] of CHANGELOG.md has no date: write ## [{wanted}] - YYYY-MM-DD") from None
    if not re.search(r"^- ", body, re.MULTILINE):
        raise Mistake(f"the section [{wanted}] of CHANGELOG.md names no change")
    return body


def check_tag(tag: str) -> str:
    """Return the version that a tag names.

    Raises:
        Mistake: it is not the project's version with a ``v`` before it.
    """
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        raise Mistake(f"{tag!r} is not a tag of a release, which is vX.Y.Z")
    if tag != f"v{version()}":
        raise Mistake(f"the tag is {tag}, but pyproject.toml says {version()}: change the version, or tag v{version()}")
    return version()
