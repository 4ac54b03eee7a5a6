"""``Retry``: whether, and after how long, a failed run is tried again."""

from __future__ import annotations

import random

import msgspec

from toolbus import rules

_RULES = {
    "attempts": rules.whole("a whole number above 0", 1),
    "delay": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "most": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "jitter": rules.number("a number from 0 to 1", least=0, most=1),
}


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Run a handler again when it raises, or fails with ``retryable``; off unless a service or tool asks for it.

    The worker keeps the request meanwhile, without a slot. A run that still fails after the last attempt becomes a
    dead letter, and its caller is answered with the last error. Tools whose effect is ``once`` are never run again.

    Attributes:
        attempts: most runs in all, the first one and those after a worker crashed among them.
        delay: seconds before the second run; doubled for each further one. ``retry_after`` of an error counts when it is longer.
        most: most seconds between two runs.
        jitter: the fraction by which a delay is shortened at random, so that failures of one moment do not return together.

    Raises:
        ConfigurationError: a value is of another kind, or out of its range.
    """

    attempts: int = 3
    delay: float = 0.5
    most: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        rules.check(msgspec.structs.asdict(self), _RULES, "Retry")

    def allows(self, attempt: int, most: int) -> bool:
        """Return whether this attempt (from 1) may be followed by another one, where requests have ``most`` attempts at most."""
        return attempt < min(self.attempts, most)

    def after(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after this attempt (from 1)."""
        backoff = min(self.most, self.delay * 2.0 ** min(attempt - 1, 30))
        spread: float = backoff * (1 - self.jitter * random.random())  # noqa: S311 - jitter, not a secret
        return max(spread, retry_after or 0.0)
