"""Tables of transitions: which state may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeVar

from toolbus.bus.support.safe_text import type_name

S = TypeVar("S", bound=IntEnum)


class BadTransitionError(RuntimeError):
    """A move that the table of transitions does not have: a bug of the worker's own."""

    def __init__(self, before: IntEnum, after: IntEnum) -> None:
        super().__init__(f"{type_name(before)}: {before.name} is not followed by {after.name}")


def by_state(table: Mapping[S, tuple[S, ...]]) -> tuple[tuple[S, ...], ...]:
    """Return the table as a tuple that a state indexes: hashing a state would run Python code on the path of each call."""
    return tuple(table[state] for state in sorted(table))
