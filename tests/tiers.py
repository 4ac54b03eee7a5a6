"""Matrices: which members ``make test`` runs and which ``make test-slow``, and products of which only pairs matter."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def some(quick: Collection[Any], members: Iterable[Any]) -> list[Any]:
    """Return the members of a matrix as parameters; those that are not named as quick are slow.

    Raises:
        ValueError: a quick one is no member.
    """
    found = list(members)
    if strange := [each for each in quick if each not in found]:
        raise ValueError(f"not in the matrix: {strange}")
    # A parameter can't ask for the fixture ``slow``.
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in found]


def spread(number: int, among: int) -> set[int]:
    """Return so many places among those of a sequence, from its first to its last, as far apart as can be; all if there are no more.

    Raises:
        ValueError: fewer than two are asked for.
    """
    if number < 2:
        raise ValueError(f"the first and the last are two, not {number}")
    return {place * (among - 1) // (number - 1) for place in range(number)}


def pairs(*dimensions: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows of a product, few of them, in which each value of a dimension meets each value of every other one.

    For a claim that no three values together could break.
    """
    rows = {row: set(itertools.combinations(enumerate(row), 2)) for row in itertools.product(*(range(len(each)) for each in dimensions))}
    chosen, met = [], set[Any]()
    while fresh := max(rows, key=lambda row: len(rows[row] - met), default=()):
        if not (rows[fresh] - met):
            break
        met |= rows.pop(fresh)
        chosen.append(tuple(values[place] for values, place in zip(dimensions, fresh, strict=True)))
    return chosen
