"""Define how requests are sent: one form for programs of this machine, and for APIs elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from toolbus.backends.http.requests import Request


class NotReached(Exception):
    """There is no connection, so that nothing was sent."""


class Broken(Exception):
    """The connection was lost after the request may have arrived."""


class Nonsense(Exception):
    """An answer is none, or is not what it says."""


class TooLong(Exception):
    """An answer has more bytes than are read; the message is how many."""


class Unfit(Exception):
    """The request can't be sent."""


class Received(Protocol):
    """An answer whose headers have come."""

    @property
    def status(self) -> int:
        """The status of HTTP."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers by name in lower case."""

    @property
    def ended_with_connection(self) -> bool:
        """Tell whether nothing but the end of the connection said that the body is whole; known once it was read."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, decompressed.

        Raises:
            Broken: it was cut off.
            Nonsense: it is not coded as it says.
            TooLong: it does not end within the limits.
        """

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""


class Sender(Protocol):
    """Sends requests to one place."""

    @property
    def closed(self) -> bool:
        """Tell whether it was closed."""

    async def send(self, request: Request, headers: Mapping[str, str]) -> Received:
        """Send a request, and return its answer; cancelling it closes the connection.

        Raises:
            NotReached: it was not sent.
            Broken: there is no answer.
            Nonsense: the answer is none.
            Unfit: it can't be sent.
        """

    async def aclose(self) -> None:
        """Close all connections."""
