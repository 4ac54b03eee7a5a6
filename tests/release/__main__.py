"""The parts of a release that take more than a line of make: ``python -m tests.release check|notes|sbom|licences``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.release import archives, changelog, consistency, licences, sbom
from tests.release.project import ROOT, Mistake


def _check(tag: str | None) -> str:
    if tag:
        changelog.section(changelog.check_tag(tag))
    consistency.check()
    wheel, sdist = archives.check(ROOT / "dist")
    return f"{wheel.name} and {sdist.name} can be released"


def _notes(tag: str | None) -> str:
    if not tag:
        raise Mistake("the notes are those of a tag: make release-notes TAG=vX.Y.Z")
    notes = changelog.section(changelog.check_tag(tag))
    (file := ROOT / "build" / "notes.md").parent.mkdir(exist_ok=True)
    file.write_text(notes + "\n", "utf-8")
    return str(file.relative_to(ROOT))


def _sbom(_tag: str | None) -> str:
    return "\n".join(str(path.relative_to(ROOT)) for path in sbom.write(ROOT / "build" / "sbom"))


def _licences(_tag: str | None) -> str:
    return str(licences.write().relative_to(ROOT))


_TASKS = {"check": _check, "notes": _notes, "sbom": _sbom, "licences": _licences}


def main() -> int:
    """Do a part of a release, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("task", choices=_TASKS)
    parser.add_argument("tag", nargs="?", help="the tag of the release, vX.Y.Z")
    given = parser.parse_args()
    try:
        done = _TASKS[given.task](given.tag)
    except Mistake as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{Path(error.cmd[0]).name} failed: {error.stderr.strip()}\n")
        return 1
    sys.stdout.write(f"{done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
