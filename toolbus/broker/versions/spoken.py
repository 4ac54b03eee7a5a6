"""The versions of the protocol that a side speaks."""

from __future__ import annotations

from toolbus.envelope import OLDEST, VERSION
from toolbus.results import DescriptorError

FIRST = 1
"""The version of sides that do not say which ones they speak."""

Versions = tuple[int, int]
"""The oldest and the newest version that a side speaks."""

OURS: Versions = (OLDEST, VERSION)
"""The versions of this release."""


def spoken(versions: Versions | None) -> str:
    """Return in words which versions a side speaks; a side that does not say speaks the first one."""
    oldest, newest = versions or (FIRST, FIRST)
    return f"version {newest}" if oldest == newest else f"versions {oldest} to {newest}"


def speaks(versions: Versions | None, version: int) -> bool:
    """Return whether a side speaks a version."""
    oldest, newest = versions or (FIRST, FIRST)
    return oldest <= version <= newest


def check_versions(versions: Versions | None) -> None:
    """Refuse a service whose workers have no version of the protocol in common with this process.

    Raises:
        DescriptorError: see there; the message says which side is to be upgraded.
    """
    oldest, newest = versions or (FIRST, FIRST)
    if not FIRST <= oldest <= newest:
        raise DescriptorError(f"{oldest} to {newest} are no versions of the protocol", path="$.versions")
    if oldest > VERSION or newest < OLDEST:
        behind = "this process" if oldest > VERSION else "the workers"
        raise DescriptorError(
            f"its workers speak {spoken(versions)} of the protocol, and this process {spoken(OURS)}: upgrade {behind}", path="$.versions"
        )
