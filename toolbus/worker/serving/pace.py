"""Remember how long the calls of a function take."""

from __future__ import annotations

_UNKNOWN = 1.0


class Pace:
    """Tells how long the calls of one function take, by its last ones."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = _UNKNOWN

    def learn(self, seconds: float) -> None:
        """Take in how long a call took: a single long one is remembered for dozens of quick ones."""
        self.seconds = seconds if self.seconds == _UNKNOWN else max(seconds, 0.8 * self.seconds + 0.2 * seconds)
