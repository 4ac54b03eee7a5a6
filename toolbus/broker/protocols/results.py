"""The results of a session's earlier calls, which all processes that continue the session share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MOST_RESULTS = 64
"""Most results that are kept of one session."""

MOST_BYTES = 1_048_576
"""Most bytes that are kept of one session."""


class SessionResults(Protocol):
    """The results of sessions' calls, as documents; those of a session that was not used for the retention time are gone."""

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session; the oldest ones beyond the bounds go. It never raises: the log tells of a server that takes none."""
