"""Rank an action's edges by score, and measure how good an order is."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.toolkit.learning.evidence import Choice
from toolbus.toolkit.learning.scores import Row


def ranked(row: Row, static: Row) -> list[str]:
    """Return targets by score, best first; ties by static score, then by name."""
    return sorted(row, key=lambda target: (-row[target], -static.get(target, 0.0), target))


def reciprocal_rank(order: Sequence[str], target: str) -> float:
    """Return 1 for the first, 1/2 for the second, …, and 0 when the target is missing."""
    return 1.0 / (order.index(target) + 1) if target in order else 0.0


def wanted(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that succeeded, which a good order has at its top."""
    return [choice for choice in choices if choice.success]


def fused(orders: Sequence[Sequence[str]], constant: int = 60) -> dict[str, float]:
    """Return the reciprocal rank fusion (Cormack et al., 2009): the sum of 1 / (constant + rank) over the orders with an item."""
    scores: dict[str, float] = {}
    for order in orders:
        for rank, item in enumerate(order, 1):
            scores[item] = scores.get(item, 0.0) + 1.0 / (constant + rank)
    return scores
