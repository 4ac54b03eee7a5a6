"""Loads: the share of the greatest rate at each moment, and the moments at which calls come."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

_DAY_LOW = 0.08


class Shape(NamedTuple):
    """A load over time.

    Attributes:
        about: in words.
        seconds: its length, by the controllers' clock.
        share: of the greatest rate, at a second.
    """

    about: str
    seconds: float
    share: Callable[[float], float]


def steps(at: float) -> float:
    """Return the share at a second of four steps of 90 seconds each."""
    return (0.2, 1.0, 0.4, 0.8)[min(3, int(at // 90))]


def spike(at: float) -> float:
    """Return the share at a second of a quiet time with a sudden peak of 90 seconds."""
    return 1.0 if 60 <= at < 150 else 0.1


def day(at: float) -> float:
    """Return the share at a second of a day that was compressed to eight minutes: a night, a morning's rise, a dip at noon."""
    hour = at / 480 * 24
    wave = max(0.0, math.sin((hour - 6) / 14 * math.pi)) if 6 <= hour <= 20 else 0.0
    dip = 0.35 * math.exp(-(((hour - 12.5) / 0.9) ** 2))
    return max(_DAY_LOW, wave - dip)


def bursts(at: float) -> float:
    """Return the share at a second of bursts of half a minute, every 75 seconds."""
    return 1.0 if at % 75 < 30 else 0.2


SHAPES = {
    "steps": Shape("20, 100, 40 and 80 % of the greatest rate, 90 seconds each", 360.0, steps),
    "spike": Shape("10 %, and from one second to the next 100 % for 90 seconds", 240.0, spike),
    "bursts": Shape("20 %, and 100 % for 30 of each 75 seconds", 375.0, bursts),
    "day": Shape("a day in eight minutes: night, morning, a dip at noon, evening", 480.0, day),
}


def arrivals(shape: Shape, rate: float, pace: float, seed: int) -> Iterator[float]:
    """Yield the seconds of the real clock at which calls come, at random as independent callers make them.

    Args:
        shape: the load.
        rate: the greatest one, in calls per real second.
        pace: seconds of the controllers' clock in a real one.
        seed: of the random numbers.
    """
    chance = random.Random(seed)
    now = 0.0
    while (now := now + chance.expovariate(rate)) * pace < shape.seconds:
        if chance.random() < shape.share(now * pace):
            yield now
