"""``RecentCall``: one attempt of a call, as a worker tells of it."""

from __future__ import annotations

from typing import Any

import msgspec

from toolbus.broker.protocols import Outcome


class RecentCall(msgspec.Struct):
    """One attempt of a call that has ended. Times are seconds since 1970 by the server's clock; 0 when they are unknown.

    Attributes:
        id: of the call; all attempts of a call have the same.
        tool, service, user, session: what was called, and for whom.
        instance: the worker whose attempt this was.
        attempt: its number, from 1.
        outcome: how it ended, see ``Outcome``.
        queued: when the request was published.
        taken: when the worker began to run it; 0 for one that was refused, and for a ``lost`` one that another worker tells of.
        first: when its first text was sent; 0 for calls that sent none before their result.
        ended: when it was answered; for a ``lost`` one, when it was taken over.
        error, code: the type and code of the error; empty when there was none.
        message: the error's message, shortened; empty for refused arguments, which it would quote.
        by: the worker that took a ``lost`` one over; empty when its worker gave it away.
        agent: the process that called.
        arguments: the arguments as JSON, shortened; only with ``TOOLBUS_RECENT=arguments``.
        trace: the id of its trace, if the caller had one.
        entry: of the record in the stream: newer ones are greater.
    """

    id: str
    tool: str = ""
    service: str = ""
    user: str = ""
    session: str = ""
    instance: str = ""
    attempt: int = 1
    outcome: Outcome = "succeeded"
    queued: float = 0.0
    taken: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    error: str = ""
    code: str = ""
    message: str = ""
    by: str = ""
    agent: str = ""
    arguments: str = ""
    trace: str = ""
    entry: str = ""

    @property
    def ms(self) -> float:
        """Milliseconds that it ran; 0 when they are unknown."""
        return max(0.0, (self.ended - self.taken) * 1000) if self.taken else 0.0

    @property
    def queued_ms(self) -> float:
        """Milliseconds that it waited until it ran; 0 when they are unknown."""
        return max(0.0, (self.taken - self.queued) * 1000) if self.taken and self.queued else 0.0

    def document(self) -> dict[str, Any]:
        """Return the fields, and the two durations, for JSON."""
        return {**msgspec.structs.asdict(self), "ms": round(self.ms, 1), "queued_ms": round(self.queued_ms, 1)}
