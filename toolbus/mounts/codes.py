"""Errors that never came from a server's tools: those of ours, and those of the SDK that it tells by their text only."""

from __future__ import annotations

from typing import Any

from mcp_types import PARSE_ERROR

TOO_LONG = -32_099
"""The code of the error that stands for an answer that was too long to be read."""

UNREADABLE = -32_098
"""The code of the error that stands for an answer that no MCP server may give."""

_INVALID_REQUEST = -32_600


def is_over(error: Any) -> bool:
    """Return whether an ``MCPError`` says that a server at an address knows its session no more, and has not run the request."""
    return bool(error.code == _INVALID_REQUEST and error.message == "Session terminated")


def is_unreadable(error: Any) -> bool:
    """Return whether an ``MCPError`` stands for an answer that could not be read."""
    return bool(error.code == UNREADABLE or (error.code == PARSE_ERROR and error.message.startswith("Failed to parse ")))
