"""Numbers of examples for Hypothesis: few by default, many with ``TOOLBUS_TEST_PROFILE=long``, as every night.

With ``TOOLBUS_TEST_PROFILE=mutants`` a test that fails has said enough: nobody waits for its smallest example.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

PROFILES = {"mutants": 0.2, "short": 0.5, "long": 10.0}
"""By name, how often as many examples as usual."""

_PROFILE = os.environ.get("TOOLBUS_TEST_PROFILE", "short")


def examples(usual: int) -> int:
    """Return how many examples a test makes up that usually makes up so many."""
    return max(1, int(usual * PROFILES[_PROFILE]))


def load_profile() -> None:
    """Make the chosen profile the one of every test. A busy machine is no reason to fail, so there are no deadlines."""
    settings.register_profile(
        _PROFILE,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=examples(100),
        phases=(Phase.explicit, Phase.generate) if _PROFILE == "mutants" else tuple(Phase),
    )
    settings.load_profile(_PROFILE)
