"""``Early``: what a worker hears of requests before it has them."""

from __future__ import annotations

_MOST = 10_000


class Early:
    """Cancellations and later deadlines of requests that are on their way to this worker; the oldest are forgotten first.

    Attributes:
        cancelled: calls that must not start, each with the type of the error that its caller has.
        extended: later deadlines by call, in monotonic seconds.
    """

    __slots__ = ("cancelled", "extended")

    def __init__(self) -> None:
        self.cancelled: dict[str, str] = {}
        self.extended: dict[str, float] = {}

    def cancel(self, call: str, why: str = "cancelled") -> None:
        """Remember that a call must not start."""
        if len(self.cancelled) >= _MOST:
            del self.cancelled[next(iter(self.cancelled))]
        self.cancelled.setdefault(call, why)

    def extend(self, call: str, deadline: float) -> None:
        """Remember the time of a call that joined another one."""
        if len(self.extended) >= _MOST:
            del self.extended[next(iter(self.extended))]
        self.extended[call] = deadline
