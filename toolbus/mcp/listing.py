"""List tools in pages, in the order of their names."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from toolbus.client.tools.view import ToolView

PAGE = 250
"""Most tools of one page."""

TTL_MS = 10_000
"""Milliseconds for which a client without a subscription may keep a list."""

_MOST_CURSOR = 256
_name = itemgetter("name")

Definition = Mapping[str, Any]


def definitions_of(tools: ToolView) -> list[dict[str, Any]]:
    """Return the definitions of the tools, sorted by the names that clients use."""
    return sorted(tools.definitions("mcp"), key=_name)


def page_of(tools: ToolView, cursor: str | None, *, modern: bool) -> dict[str, Any]:
    """Return one page of the list of tools.

    A cursor names the tool that its page comes after, so that it stays good when tools come and go, and at every replica.

    Args:
        modern: the client is of revision 2026-07-28 or later, so any schema of data is allowed.

    Raises:
        MCPError: the cursor is none of ours.
    """
    listed = definitions_of(tools)
    start = 0 if cursor is None else bisect_right(listed, _place(cursor), key=_name)
    page = listed[start : start + PAGE]
    shown = page if modern else list(map(_older, page))
    found: dict[str, Any] = {"resultType": "complete", "tools": shown, "ttlMs": TTL_MS, "cacheScope": "private"}
    if start + PAGE < len(listed):
        found["nextCursor"] = _cursor(page[-1]["name"])
    return found


def _older(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a definition for a client of a revision that knows only objects as data."""
    schema = definition.get("outputSchema")
    if schema is None or schema.get("type") == "object":
        return definition
    return {name: value for name, value in definition.items() if name != "outputSchema"}


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(f"after {name}".encode()).decode()


def _place(cursor: str) -> str:
    try:
        word, _, name = base64.b64decode(cursor[:_MOST_CURSOR].encode(), altchars=b"-_", validate=True).decode().partition(" ")
    except (binascii.Error, UnicodeError):
        word, name = "", ""
    if word != "after" or not name:
        raise MCPError(INVALID_PARAMS, "the cursor is none of this server's; list again without one")
    return name
