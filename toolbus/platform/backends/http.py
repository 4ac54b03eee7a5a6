"""``HttpCalls``: call programs and APIs over HTTP: requests from arguments, and results from answers, at once or piece by piece."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus.outbound import Answer, EventReader, SentEvent, decoded, failure
from toolbus.bus.support.display import harmless
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.media import UNKNOWN, media_type_of
from toolbus.bus.values.results import Blob, ConfigurationError, Progress, ToolbusError, ToolError, ToolResult, deadline_exceeded
from toolbus.bus.values.secrets import value_of
from toolbus.platform.backends.connections import (
    BadAnswer,
    Broken,
    Connections,
    KeptConnection,
    NotReached,
    Request,
    TooLong,
    Unfit,
    request_of,
)
from toolbus.platform.backends.runner import Output

if TYPE_CHECKING:
    from toolbus.platform.backends.api import ApiAnswer, ApiSender

    Sender = Connections | ApiSender
    Received = KeptConnection | ApiAnswer

EVENTS = "text/event-stream"

MOST_BYTES = 67_108_864
"""Most bytes of an answer."""

# Bytes of an error's body that are kept for programs.
_MOST_DETAILS = 16_384
_MOST_MESSAGE = 1_000


def result_of(request: str, answer: Answer) -> ToolResult:
    """Return the result of a complete answer: JSON as data, text as output, anything else as a blob.

    Args:
        request: the request in words, for errors.
        answer: to it.

    Raises:
        ToolError: it has an error status, or is not what it says.
    """
    if not 200 <= answer.status < 300:
        raise refusal(request, answer)
    if not answer.body:
        return ToolResult(output="")
    if answer.is_json:
        try:
            data = msgspec.json.decode(answer.body)
        except DECODE_ERRORS as error:
            raise bad_answer(request, f"it says that it is JSON, and is not ({str(error)[:100]})") from None
        return ToolResult(data=data, output=data if isinstance(data, str) else None)
    if answer.is_text:
        return ToolResult(output=answer.text)
    if not answer.media_type:
        return _guessed(answer)
    return ToolResult(output="", content=(Blob(answer.media_type, answer.body),))


def refusal(request: str, answer: Answer) -> ToolError:
    """Return the error that an error status means, with the program's own message."""
    error = failure(request, answer)
    if place := answer.headers.get("location", "") if 300 <= answer.status < 400 else "":
        message = f"{request} was redirected to {harmless(place)[:300]}, which is not followed; record that address if it is right"
        error = msgspec.structs.replace(error, message=message)
    details = decoded(answer.body) if answer.is_json and len(answer.body) <= _MOST_DETAILS else None
    return ToolError(msgspec.structs.replace(error, details=details))


def bad_answer(request: str, reason: str) -> ToolError:
    """Return the error of an answer that is none."""
    return ToolError(f"{request} was answered with nonsense: {reason}", code="bad_answer")


def too_long(request: str, amount: str = f"{MOST_BYTES:,} bytes") -> ToolError:
    """Return the error of an answer that is not read to its end."""
    return ToolError(f"the answer to {request} has more than {amount}, so it was not read; ask for less", code="too_long")


class Streamed:
    """Passes on an answer while it comes.

    Args:
        request: the request in words, for errors.
        answer: its status and headers.
        output: takes the text, and what else comes.

    Attributes:
        is_open: whether it is a stream of events, of which none said that it is the last.
    """

    def __init__(self, request: str, answer: Answer, output: Output) -> None:
        self._request = request
        self._answer = answer
        self._output = output
        self._data: Any = None
        self.is_open = answer.media_type == EVENTS

    async def read(self, chunks: AsyncIterator[bytes]) -> ToolResult:
        """Read to the end, and return the result, of which the text was passed on.

        Raises:
            ToolError: the program says that it failed, or its stream is none.
        """
        await (self._read_events(chunks) if self._answer.media_type == EVENTS else self._read_text(chunks))
        return ToolResult(data=self._data)

    async def _read_text(self, chunks: AsyncIterator[bytes]) -> None:
        decoder = codecs.getincrementaldecoder(self._answer.charset)("replace")
        async for chunk in chunks:
            if text := decoder.decode(chunk):
                await self._output(text)
        if text := decoder.decode(b"", final=True):
            await self._output(text)

    async def _read_events(self, chunks: AsyncIterator[bytes]) -> None:
        reader = EventReader(MOST_BYTES)
        try:
            async for chunk in chunks:
                for event in reader.feed(chunk):
                    if not await self._take(event):
                        self.is_open = False
                        return
            for event in reader.end():
                self.is_open = await self._take(event) and self.is_open
        except ValueError as error:
            raise bad_answer(self._request, str(error)) from None

    async def _take(self, event: SentEvent) -> bool:
        """Pass on an event; return whether others may follow."""
        value = decoded(event.data)
        fields = value if isinstance(value, dict) else {}
        match event.name:
            case "progress":
                # What is no progress is left out: it is for people only.
                with contextlib.suppress(TypeError):
                    await self._output(Progress(fields.get("done", 0), fields.get("total"), fields.get("message", "")))
            case "blob":
                await self._output(self._blob(fields))
            case "error":
                said = next((fields[name] for name in ("message", "error", "detail") if isinstance(fields.get(name), str)), event.data)
                raise ToolError(said if len(said) <= _MOST_MESSAGE else f"{said[: _MOST_MESSAGE - 1]}…", code="program")
            case "result" | "end":
                self._data = value if value is not None else event.data or None
                return False
            case "" | "message" | "text":
                if event.data.strip() == "[DONE]":
                    return False
                text = fields.get("text", value)
                await self._output(text if isinstance(text, str) else event.data)
            case _:
                # Events of other names are the program's own.
                pass
        return True

    def _blob(self, fields: dict[str, Any]) -> Blob:
        try:
            return msgspec.convert(fields, Blob)
        except (msgspec.ValidationError, TypeError):
            raise bad_answer(self._request, "its event 'blob' has no media_type with data in base64") from None


def _guessed(answer: Answer) -> ToolResult:
    """Return the result of an answer that does not say what it is."""
    kind = media_type_of(answer.body)
    if kind != UNKNOWN:
        return ToolResult(output="", content=(Blob(kind, answer.body),))
    try:
        return ToolResult(output=answer.body.decode())
    except UnicodeDecodeError:
        return ToolResult(output="", content=(Blob(UNKNOWN, answer.body),))


# Bytes of an error's body that are read.
_MOST_REFUSAL = 65_536

Pairs = Callable[[], Mapping[str, str]]
"""Returns headers, or parameters of the query; raises ConfigurationError when one has no value."""


Ended = Callable[[], Awaitable[object]]
"""Waits until a program has ended."""

TOLD_WITHIN = 0.2
"""Seconds for which an answer that ends with its connection waits for the news that its program has died."""


def pairs(given: Mapping[str, str], further: Pairs = dict) -> Pairs:
    """Return what reads the values of headers or of a query, each time: secrets change."""
    return lambda: {**{name: value_of(value) for name, value in given.items()}, **further()}


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
        self,
        endpoint: Endpoint,
        sender: Sender | None = None,
        *,
        ended: Ended | None = None,
        told_within: float = TOLD_WITHIN,
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
            query, headers = endpoint.query(), dict(endpoint.headers())
        except ConfigurationError as error:
            raise ToolError(str(error), type="unavailable", code="no_secret") from None
        request = request_of(endpoint.method, endpoint.path, arguments, query)
        named = {name.lower() for name in headers}
        if "accept" not in named:
            headers["Accept"] = "*/*"
        if request.body is not None and "content-type" not in named:
            headers["Content-Type"] = "application/json"
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
        except (Broken, BadAnswer, NotReached, TooLong, Unfit, ToolbusError) as error:
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
        except BadAnswer as error:
            raise self._lost(f"answered with nonsense: {error}", "bad_answer") from None
        except Broken as error:
            raise self._lost(f"closed the connection before its answer was complete ({error})", "connection_lost") from None

    async def _read(self, shown: str, received: Received, output: Output) -> ToolResult:
        answer = Answer(received.status, received.headers, b"")
        if not 200 <= answer.status < 300:
            raise refusal(shown, msgspec.structs.replace(answer, body=await _start(received)))
        if answer.media_type == EVENTS or (self._endpoint.streams and answer.is_text and "content-length" not in answer.headers):
            pieces: list[str] = []

            async def gather(item: str | Blob | Progress) -> None:
                await output(item) if not isinstance(item, str) else pieces.append(item)

            streamed = Streamed(shown, answer, output if self._endpoint.streams else gather)
            result = await streamed.read(self._whole(received, shown))
            if streamed.is_open and received.ended_with_connection:
                raise Broken("its stream has neither an event 'result' nor 'end'")
            return result if self._endpoint.streams else msgspec.structs.replace(result, output="".join(pieces))
        body = b"".join([chunk async for chunk in self._whole(received, shown)])
        return result_of(shown, Answer(answer.status, answer.headers, body))

    async def _whole(self, received: Received, shown: str) -> AsyncIterator[bytes]:
        """Yield a body as it comes; one that ends with its connection is whole only if the program lives.

        Raises:
            Broken: the program died.
            ToolError: it is too long.
        """
        total = 0
        async for chunk in received.chunks():
            total += len(chunk)
            if total > MOST_BYTES:
                raise too_long(shown)
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


async def _start(received: Received) -> bytes:
    """Return the start of an error's body."""
    body = bytearray()
    async for chunk in received.chunks():
        body += chunk
        if len(body) >= _MOST_REFUSAL:
            break
    return bytes(body[:_MOST_REFUSAL])
