"""The formats in which models are told of tools."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["bare", "openai", "responses", "anthropic", "mcp"]

FORMATS: tuple[Format, ...] = get_args(Format)
"""All of them."""
