"""The confirmation requests that any process of a namespace can answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest


class Confirmations(Protocol):
    """The requests that wait for a confirmation, which any process of a namespace can give."""

    async def ask(self, request: ConfirmationRequest, seconds: float) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when there is no answer within ``seconds``. Cancelling it withdraws the request.

        A permission that names another digest than the request's is a refusal.

        Raises:
            ToolError: ``overloaded``, because too many requests wait.
            BrokerError: the server refuses.
        """

    async def pending(self) -> list[ConfirmationRequest]:
        """Return the open requests, the oldest first, without the ``whole`` of their arguments.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def get(self, id: str) -> ConfirmationRequest:
        """Return one open request.

        Raises:
            ConfirmationClosed: it is not open.
        """

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
        """

    def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Yield each request once: those that are open, and then new ones as they come."""
