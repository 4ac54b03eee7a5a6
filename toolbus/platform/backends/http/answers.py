"""Turn what a program answers into a result: at once, or piece by piece."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from toolbus.bus.outbound import Answer, EventReader, SentEvent, decoded, failure
from toolbus.bus.support.display import harmless
from toolbus.bus.values.encoding import encode_json
from toolbus.bus.values.media import UNKNOWN, media_type_of
from toolbus.bus.values.results import Blob, Progress, ToolError, ToolResult
from toolbus.platform.backends.runner import Output

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
        data = _json(answer.body, request)
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
        output: hears the text; what is left out of it when it is None is in the result.

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
                await self._output.text(text)
        if text := decoder.decode(b"", final=True):
            await self._output.text(text)

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
        value = _value(event.data)
        fields = value if isinstance(value, dict) else {}
        match event.name:
            case "progress":
                await _tell_progress(self._output, fields)
            case "blob":
                await self._tell_blob(fields)
            case "error":
                raise ToolError(_message(fields, event.data), code="program")
            case "result" | "end":
                self._data = value if value is not None else event.data or None
                return False
            case "" | "message" | "text":
                if event.data.strip() == "[DONE]":
                    return False
                text = fields.get("text", value)
                await self._output.text(text if isinstance(text, str) else event.data)
            case _:
                # Events of other names are the program's own.
                pass
        return True

    async def _tell_blob(self, fields: dict[str, Any]) -> None:
        try:
            blob = msgspec.convert(fields, Blob)
        except (msgspec.ValidationError, TypeError):
            raise bad_answer(self._request, "its event 'blob' has no media_type with data in base64") from None
        await self._output.blob(blob.media_type, blob.data)


class Gathered:
    """An ``Output`` that keeps the text for the result."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pieces: list[str] = []

    @property
    def all(self) -> str:
        """The whole text."""
        return "".join(self._pieces)

    async def text(self, piece: str) -> None:
        """Keep a piece."""
        self._pieces.append(piece)

    async def blob(self, media_type: str, data: bytes) -> None:
        """Pass on a file."""
        await self._output.blob(media_type, data)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Pass on how far it is."""
        await self._output.progress(done, total, message)


async def _tell_progress(output: Output, fields: dict[str, Any]) -> None:
    try:
        told = Progress(fields.get("done", 0), fields.get("total"), fields.get("message", ""))
    except TypeError:
        # What is no progress is left out: it is for people only.
        return
    await output.progress(told.done, told.total, told.message)


def _message(fields: dict[str, Any], data: str) -> str:
    found = next((fields[name] for name in ("message", "error", "detail") if isinstance(fields.get(name), str)), data)
    return found if len(found) <= _MOST_MESSAGE else f"{found[: _MOST_MESSAGE - 1]}…"


def _json(body: bytes, request: str) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_answer(request, f"it says that it is JSON, and is not ({str(error)[:100]})") from None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _guessed(answer: Answer) -> ToolResult:
    """Return the result of an answer that does not say what it is."""
    kind = media_type_of(answer.body)
    if kind != UNKNOWN:
        return ToolResult(output="", content=(Blob(kind, answer.body),))
    try:
        return ToolResult(output=answer.body.decode())
    except UnicodeDecodeError:
        return ToolResult(output="", content=(Blob(UNKNOWN, answer.body),))


_IN_PATH = re.compile(r"\{([^{}]+)\}")
_MOST_URL = 16_384
_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})


class Request(msgspec.Struct, frozen=True):
    """One request; ``url`` is everything after the address, quoted."""

    method: str
    url: str
    body: bytes | None


def request_of(method: str, path: str, arguments: Mapping[str, Any], query: Mapping[str, str]) -> Request:
    """Return the request of a call.

    Args:
        method: of HTTP.
        path: of the endpoint, with ``{name}`` where an argument belongs.
        arguments: of the call; those that are not in the path are the JSON body, or the query where there is no body.
        query: what is added to the query.

    Raises:
        ToolError: an argument can't be sent where it must go.
    """
    left = dict(arguments)

    def filled(found: re.Match[str]) -> str:
        name = found[1]
        if name not in arguments:
            raise _unfit(name, "is needed in the path")
        left.pop(name, None)
        return _in_path(name, arguments[name])

    url = _IN_PATH.sub(filled, path)
    pairs = [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items()]
    body = None
    if method in _WITHOUT_BODY:
        pairs += [pair for name, value in left.items() for pair in _in_query(name, value)]
    else:
        body = _encoded(left)
    if pairs:
        url += ("&" if "?" in url else "?") + "&".join(pairs)
    if len(url) > _MOST_URL:
        raise _unfit("the address", f"would have more than {_MOST_URL:,} characters")
    return Request(method, url, body)


def _in_path(name: str, value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _unfit(name, "is a list or an object, which a path can't hold")
    text = quote(_plain(value), safe="")
    # Dots would name another path, and so does nothing at all.
    if text in {"", ".", ".."}:
        raise _unfit(name, "can't be empty or dots in a path")
    return text


def _in_query(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [f"{quote(name, safe='')}={quote(_field(each), safe='')}" for each in values if each is not None]


def _field(value: Any) -> str:
    return _encoded(value).decode() if isinstance(value, (dict, list)) else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _encoded(value: Any) -> bytes:
    try:
        return encode_json(value)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _unfit("the arguments", f"can't be sent as JSON: {error}") from None


def _unfit(argument: str, reason: str) -> ToolError:
    return ToolError(f"{argument}: {reason}", type="invalid_arguments", code="unfit")


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
