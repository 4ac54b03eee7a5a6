"""The published site: a folder for each version, a copy named ``latest``, and the list that the version selector reads."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from website.stage import SiteError

LATEST = "latest"
DEVELOPMENT = "dev"
# Older ones are removed: their pages stay in the repository, at their tags.
MOST_VERSIONS = 20

_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>toolbus</title>
<meta http-equiv="refresh" content="0; url={to}/">
<a href="{to}/">The documentation of toolbus</a>
"""


def version_of(tag: str) -> str:
    """Return the version that a tag is documented as: releases that differ in their last number share one.

    Args:
        tag: such as ``v1.4.2`` (documented as ``1.4``), or ``dev``.

    Raises:
        SiteError: the tag is neither.
    """
    if tag == DEVELOPMENT:
        return DEVELOPMENT
    match = _RELEASE.fullmatch(tag)
    if match is None:
        raise SiteError(f"{tag!r} is no version. Give a release such as v1.4.2, or {DEVELOPMENT}.")
    return f"{match[1]}.{match[2]}"


def publish(site: Path, pages: Path, tag: str) -> list[str]:
    """Put a built site among the published ones, and return the versions that these have then, the newest first.

    Doing it again changes nothing. ``latest`` is the newest release; until there is one, it is the development version.

    Args:
        site: what ``build`` made.
        pages: the folder that the web server serves, with earlier versions in it.
        tag: see ``version_of``.

    Raises:
        SiteError: there is no built site, or the tag is no version.
    """
    version = version_of(tag)
    if not (site / "index.html").is_file():
        raise SiteError(f"{site} has no index.html. Build the site first: make docs")
    _copied(site, pages / version)
    versions = sorted((each.name for each in pages.iterdir() if _is_version(each)), key=_age, reverse=True)
    for old in versions[MOST_VERSIONS:]:
        shutil.rmtree(pages / old)
    versions = versions[:MOST_VERSIONS]
    newest = next((each for each in versions if each != DEVELOPMENT), DEVELOPMENT)
    _copied(pages / newest, pages / LATEST)
    listed = [{"version": each, "title": each, "aliases": [LATEST] if each == newest else []} for each in versions]
    (pages / "versions.json").write_text(f"{json.dumps(listed, indent=2)}\n", "utf-8")
    (pages / "index.html").write_text(_REDIRECT.format(to=LATEST), "utf-8")
    # Without this file, GitHub would leave out files whose names begin with an underscore.
    (pages / ".nojekyll").touch()
    return versions


def _copied(source: Path, target: Path) -> None:
    """Make a folder a copy of another one."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _is_version(folder: Path) -> bool:
    """Return whether a folder of the published site is a version's."""
    return folder.is_dir() and (folder.name == DEVELOPMENT or re.fullmatch(r"\d+\.\d+", folder.name) is not None)


def _age(version: str) -> tuple[int, ...]:
    """Return the place of a version in time; the development version comes after all releases."""
    return (1,) if version == DEVELOPMENT else (0, *map(int, version.split(".")))
