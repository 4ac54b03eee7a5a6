"""Errors that never came from a server's tools: those of ours, and those of the SDK that it tells by their text only."""

from __future__ import annotations

from typing import Any

TOO_LONG = -32_099
"""The code of the error that stands for an answer that was too long to be read."""

_INVALID_REQUEST = -32_600


def is_over(error: Any) -> bool:
    """Return whether an ``MCPError`` says that a server at an address knows its session no more, and has not run the request."""
    return bool(error.code == _INVALID_REQUEST and error.message == "Session terminated")
