"""Compute the beta distribution's cumulative function with the standard library alone."""

from __future__ import annotations

import math

_STEPS = 300
_TINY = 1e-300


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the probability that a Beta(a, b) variable is at most ``x``; accurate to about 1e-10.

    Raises:
        ValueError: ``a`` or ``b`` is not above 0.
    """
    if a <= 0 or b <= 0:
        raise ValueError("the parameters of a beta distribution are above 0")
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    # The continued fraction converges quickly only on this side of the mean.
    if x > (a + 1) / (a + b + 2):
        return 1.0 - beta_cdf(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return min(1.0, max(0.0, scale * _fraction(x, a, b) / a))


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    upper, lower = 1.0, 1.0 - (a + b) * x / (a + 1)
    lower = 1.0 / (lower or _TINY)
    value = lower
    for step in range(1, _STEPS):
        for factor in (
            step * (b - step) * x / ((a + 2 * step - 1) * (a + 2 * step)),
            -(a + step) * (a + b + step) * x / ((a + 2 * step) * (a + 2 * step + 1)),
        ):
            lower = 1.0 / ((1.0 + factor * lower) or _TINY)
            upper = (1.0 + factor / upper) or _TINY
            change = upper * lower
            value *= change
        if abs(change - 1.0) < 1e-12:
            break
    return value
