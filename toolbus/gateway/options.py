"""The options of a gateway."""

from __future__ import annotations

import msgspec


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a gateway; times are in seconds.

    Attributes:
        chat: name of the tool or service that answers ``POST /chat``.
        heartbeat: longest silence of a stream of events.
        resume: for how long a call with an idempotency key goes on after its client has gone, so that the client can come back.
        buffer: megabytes of events that all streams together may hold for clients that read slowly.
        outage: for how long a request waits for a lost connection to the server before it is refused.
    """

    chat: str = "chat"
    heartbeat: float = 15.0
    resume: float = 10.0
    buffer: float = 128.0
    outage: float = 2.0
