"""Types for the tests of schemas, and how they look at a schema and at a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from toolbus.bus.schema.derivation import derive
from toolbus.bus.values.results import ToolError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Opaque:
    pass


class Database:
    pass


def properties(function: Any, **options: Any) -> dict[str, Any]:
    found = derive(function, **options).parameters["properties"]
    assert isinstance(found, dict)
    return found


def refused(bind: Any, arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        bind(arguments)
    assert caught.value.error.type == "invalid_arguments"
    return caught.value.error.message


def search(query: str, count: int = 5, *, exact: bool = False) -> list[str]:
    """Search the web.

    Uses whatever index is at hand.

    Args:
        query: what to look for
        count: how many results,
            at most
    """
    return [query] * count if exact else []
