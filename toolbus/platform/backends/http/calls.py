"""``HttpCalls``: the calls of one endpoint, whatever runs behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from toolbus.bus.outbound import Answer
from toolbus.bus.values.results import ConfigurationError, ToolbusError, ToolError, ToolResult, deadline_exceeded
from toolbus.platform.backends.http.answers import (
    EVENTS,
    MOST_BYTES,
    Broken,
    Gathered,
    Nonsense,
    NotReached,
    Received,
    Request,
    Sender,
    Streamed,
    TooLong,
    Unfit,
    refusal,
    request_of,
    result_of,
    too_long,
)
from toolbus.platform.backends.http.connections import Connections
from toolbus.platform.backends.runner import Output

# Bytes of an error's body that are read.
_MOST_REFUSAL = 65_536

Pairs = Callable[[], Mapping[str, str]]
"""Returns headers, or parameters of the query; raises ConfigurationError when one has no value."""


Ended = Callable[[], Awaitable[object]]
"""Waits until a program has ended."""

TOLD_WITHIN = 0.2
"""Seconds for which an answer that ends with its connection waits for the news that its program has died."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The place where calls go, and the way they take.

    Attributes:
        base: the address, without the path.
        path: in which ``{name}`` is filled in from the arguments.
        shown: the program in the words of errors.
        streams: whether text is passed on as it comes.
        once: whether a call that was lost on its way may have had an effect that must not happen twice.
        headers, query: what is added to each request.
        tells_user: whether the program is told on whose behalf a call runs.
    """

    base: str
    method: str = "POST"
    path: str = "/"
    shown: str = "the program"
    streams: bool = False
    once: bool = False
    headers: Pairs = dict
    query: Pairs = dict
    tells_user: bool = False


class HttpCalls:
    """Calls an endpoint; close it with ``aclose``.

    Args:
        endpoint: what is called.
        sender: sends the requests, and is closed with this; to a program of this machine when left out.
        ended: waits until the program has ended; None when that can't be known.
        told_within: seconds in which ``ended`` returns after a program has died.
    """

    def __init__(
        self, endpoint: Endpoint, sender: Sender | None = None, *, ended: Ended | None = None, told_within: float = TOLD_WITHIN
    ) -> None:
        self._endpoint = endpoint
        self._sender = sender or Connections(endpoint.base)
        self._running: set[asyncio.Timeout] = set()
        self._ended = ended
        self._told_within = told_within

    async def call(self, arguments: Mapping[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call; see ``Instance.call``."""
        endpoint = self._endpoint
        try:
            query, headers = endpoint.query(), {"Accept": "*/*", **endpoint.headers()}
        except ConfigurationError as error:
            raise ToolError(str(error), type="unavailable", code="no_secret") from None
        request = request_of(endpoint.method, endpoint.path, arguments, query)
        if request.body is not None:
            headers.setdefault("Content-Type", "application/json")
        if user and endpoint.tells_user:
            headers["Toolbus-User"] = user
        try:
            async with asyncio.timeout_at(deadline or None) as scope:
                self._running.add(scope)
                try:
                    return await self._send(request, headers, output)
                finally:
                    self._running.discard(scope)
        except TimeoutError:
            if self._sender.closed:
                raise self._lost("was stopped before it had answered", "connection_lost") from None
            raise self._lost("did not answer within the time of the call", "deadline_exceeded") from None

    async def get(self, path: str, within: float) -> str:
        """Return why a GET of a path is not answered well; empty when it is."""
        answer = await self._ask(Request("GET", path, None), within)
        if isinstance(answer, str):
            return answer
        return "" if answer < 400 else f"GET {path} answered {answer}"

    async def answers(self, within: float) -> str:
        """Return why the program answers no request; empty when it does, with whatever status."""
        # No endpoint runs a call for this method.
        answer = await self._ask(Request("OPTIONS", "/", None), within)
        return answer if isinstance(answer, str) else ""

    async def _ask(self, request: Request, within: float) -> int | str:
        """Return the status of an answer, or why there is none."""
        shown = f"{request.method} {request.url}"
        try:
            async with asyncio.timeout(within):
                received = await self._sender.send(request, self._endpoint.headers())
        except TimeoutError:
            return f"{shown} was not answered within {within:g} s"
        except (Broken, Nonsense, NotReached, TooLong, Unfit, ToolbusError) as error:
            return f"{shown} was not answered: {error}"
        received.close()
        return received.status

    async def unfinished(self) -> int:
        """Return how many calls the program goes on with although their connections were closed."""
        return await self._sender.unfinished() if isinstance(self._sender, Connections) else 0

    async def aclose(self) -> None:
        """Close all connections, and end the calls that wait for answers."""
        await self._sender.aclose()
        for scope in self._running:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _send(self, request: Request, headers: Mapping[str, str], output: Output) -> ToolResult:
        shown = f"{request.method} {self._endpoint.path}"
        if self._sender.closed:
            raise ToolError(f"{self._endpoint.shown} was stopped", type="unavailable", code="not_reached", retryable=True)
        try:
            received = await self._sender.send(request, headers)
            try:
                return await self._read(shown, received, output)
            finally:
                received.close()
        except NotReached as error:
            message = f"{self._endpoint.shown} can't be reached: {error}"
            raise ToolError(message, type="unavailable", code="not_reached", retryable=True) from None
        except Unfit as error:
            raise ToolError(f"the request can't be sent: {error}", type="invalid_arguments", code="unfit") from None
        except TooLong as error:
            raise too_long(shown, str(error)) from None
        except Nonsense as error:
            raise self._lost(f"answered with nonsense: {error}", "bad_answer") from None
        except Broken as error:
            raise self._lost(f"closed the connection before its answer was complete ({error})", "connection_lost") from None

    async def _read(self, shown: str, received: Received, output: Output) -> ToolResult:
        answer = Answer(received.status, received.headers, b"")
        if not 200 <= answer.status < 300:
            raise refusal(shown, msgspec.structs.replace(answer, body=await _start(received)))
        if answer.media_type == EVENTS or (self._endpoint.streams and _is_streamed_text(answer)):
            gathered = None if self._endpoint.streams else Gathered(output)
            streamed = Streamed(shown, answer, gathered or output)
            result = await streamed.read(self._whole(received, shown))
            if streamed.is_open and received.ended_with_connection:
                raise Broken("its stream has neither an event 'result' nor 'end'")
            return result if gathered is None else msgspec.structs.replace(result, output=gathered.all)
        body = b"".join([chunk async for chunk in self._whole(received, shown)])
        return result_of(shown, Answer(answer.status, answer.headers, body))

    async def _whole(self, received: Received, shown: str) -> AsyncIterator[bytes]:
        """Yield a body as it comes; one that ends with its connection is whole only if the program lives.

        Raises:
            Broken: the program died.
            ToolError: it is too long.
        """
        async for chunk in _chunks(received, shown):
            yield chunk
        if self._ended is None or not received.ended_with_connection:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._told_within):
                await self._ended()
            raise Broken("the program ended")

    def _lost(self, reason: str, code: str) -> ToolError:
        """Return the error of a call that may have had its effect."""
        message = f"{self._endpoint.shown} {reason}"
        if self._endpoint.once:
            return ToolError(f"{message}, so it is unknown whether the call had its effect", type="outcome_unknown", code=code)
        if code == "deadline_exceeded":
            return ToolError(deadline_exceeded(message, code))
        return ToolError(message, code=code, retryable=code == "connection_lost")


def _is_streamed_text(answer: Answer) -> bool:
    return answer.is_text and "content-length" not in answer.headers


async def _chunks(received: Received, shown: str) -> AsyncIterator[bytes]:
    """Yield a body as it comes.

    Raises:
        ToolError: it is too long.
    """
    total = 0
    async for chunk in received.chunks():
        total += len(chunk)
        if total > MOST_BYTES:
            raise too_long(shown)
        yield chunk


async def _start(received: Received) -> bytes:
    """Return the start of an error's body."""
    body = bytearray()
    async for chunk in received.chunks():
        body += chunk
        if len(body) >= _MOST_REFUSAL:
            break
    return bytes(body[:_MOST_REFUSAL])
