"""The changelog's section of a version, and the tag."""

from __future__ import annotations

import pytest

from tests.release import changelog
from tests.release.project import Mistake, version

TEXT = """# Changelog

## [Unreleased]

### Added

- Something new.

## [1.2.3] - 2026-11-20

### Fixed

- A mistake, see [a page](docs/README.md).

## [1.2.2] - yesterday

- Something.

## [1.2.1] - 2026-11-01

Nothing in a list.

[1.2.3]: https://example.org/compare
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    """Neither headings of versions nor other sections are part of them."""
    assert changelog.section("1.2.3", TEXT) == "### Fixed\n\n- A mistake, see [a page](docs/README.md)."


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("1.2.4", r"has no section \[1\.2\.4\]: rename \[Unreleased\] to"),
        ("1.2", r"has no section \[1\.2\]"),
        ("1.2.2", r"has no date: write ## \[1\.2\.2\] - YYYY-MM-DD"),
        ("1.2.1", "names no change"),
        ("Unreleased", "has no date"),
    ],
)
def test_a_section_that_is_not_ready_is_refused(wanted: str, told: str) -> None:
    """The error says what to write."""
    with pytest.raises(Mistake, match=told):
        changelog.section(wanted, TEXT)


def test_the_tag_is_the_version() -> None:
    """A ``v`` stands before it, and nothing else is accepted."""
    assert changelog.check_tag(f"v{version()}") == version()
    for tag in (version(), "v1", "v1.2.3.4", f"v{version()}\n", "main", "v1.2.3-rc1", ""):
        with pytest.raises(Mistake, match=r"is not a tag of a release, which is vX\.Y\.Z"):
            changelog.check_tag(tag)
    with pytest.raises(Mistake, match=r"the tag is v99\.0\.0, but pyproject\.toml says"):
        changelog.check_tag("v99.0.0")


def test_the_changelog_of_the_project_can_be_read() -> None:
    """It has sections in the form from which notes are made; none has been released without a date."""
    with pytest.raises(Mistake, match="has no date"):
        changelog.section("Unreleased")
