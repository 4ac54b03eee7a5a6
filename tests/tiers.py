"""Matrices of which ``make test`` runs a few members, and ``make test-slow`` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
