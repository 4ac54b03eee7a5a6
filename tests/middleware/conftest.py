"""Let every test of the cache begin with nothing."""

from __future__ import annotations

import pytest

from tests.middleware.cached import late, measured, power, seen, switched


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    """Forget what earlier tests did."""
    power.clear()
    seen.clear()
    late.clear()
    switched.clear()
    measured.clear()
