"""The records of services in the registry."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from toolbus.descriptors import Publication

ALL_TOOLS = "all tools"
"""Stands for the tools of a service that can't be read."""


class RefusedTool(NamedTuple):
    """A tool whose descriptor can't be used, and why; ``name`` is its place where it has none, or ``ALL_TOOLS``."""

    name: str
    service: str
    reason: str


class ItemChange(NamedTuple):
    """A change of a stored document.

    Attributes:
        expected: what it is now; None for none.
        document: what it becomes; None deletes it.
    """

    key: str
    expected: bytes | None
    document: bytes | None


class ServiceRecord(msgspec.Struct, frozen=True):
    """A service in the registry: its current publication, and whether an instance is live.

    Attributes:
        refused: tools of it that can't be used; the others are in the publication.
    """

    publication: Publication
    live: bool
    refused: tuple[RefusedTool, ...] = ()
