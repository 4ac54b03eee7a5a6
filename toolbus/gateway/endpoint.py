"""``Endpoint``: a route's function without the layers that Starlette puts around one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Endpoint:
    """Answers requests with a function, for routes that are used thousands of times a second.

    Args:
        handler: returns the answer to a request; what it raises is handled by the application.
    """

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        response = await self._handler(Request(scope, receive, send))
        await response(scope, receive, send)
