"""``Connections``: requests to a program of this machine over connections that are kept.

With a client library a host runs a third fewer calls: docs/adr/0040 has the measurement.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, cast
from urllib.parse import quote, urlsplit

import httptools
import msgspec

from toolbus.bus.values.encoding import encode_json
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.marks import tcp_sockets

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
        for name, value in left.items():
            values = value if isinstance(value, list) else [value]
            pairs += [f"{quote(name, safe='')}={quote(_field(each), safe='')}" for each in values if each is not None]
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
    text = quote(_field(value), safe="")
    # Dots would name another path, and so does nothing at all.
    if text in {"", ".", ".."}:
        raise _unfit(name, "can't be empty or dots in a path")
    return text


def _field(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _encoded(value).decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _encoded(value: Any) -> bytes:
    try:
        return encode_json(value)
    except (TypeError, ValueError) as error:
        raise _unfit("the arguments", f"can't be sent as JSON: {error}") from None


def _unfit(argument: str, reason: str) -> ToolError:
    return ToolError(f"{argument}: {reason}", type="invalid_arguments", code="unfit")


class NotReached(Exception):
    """There is no connection, so that nothing was sent."""


class Broken(Exception):
    """The connection was lost after the request may have arrived."""


class BadAnswer(Exception):
    """An answer is none, or is not what it says."""


class TooLong(Exception):
    """An answer has more bytes than are read; the message is how many."""


class Unfit(Exception):
    """The request can't be sent."""


# The kernel's number of CLOSE_WAIT. A program that answers nevertheless is refused, and its connection leaves this state.
_HELD = "08"


def half_closed(port: int, others: frozenset[int]) -> frozenset[int]:
    """Return those of the other sides' ports to which a program at ``port`` holds on; none where the system does not say."""
    try:
        return others & {each.other_port for each in tcp_sockets(port) if each.state == _HELD}
    except OSError:
        return frozenset()


_CONNECT = 10.0
# Seconds that an idle connection is kept; common servers close theirs after five.
_KEPT = 4.0
_MOST_HEADERS = 65_536
# Bytes of a body that wait to be read before the program has to wait.
_MOST_WAITING = 1_048_576
# Bytes of an answer as they are sent: those of the longest body, with its headers.
_MOST_RECEIVED = 67_108_864 + _MOST_HEADERS
_MOST_UNZIPPED = 262_144
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NOT_IN_VALUES = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NO_BODY = frozenset({204, 304})


class Connections:
    """Sends requests to a program.

    Args:
        base: its address, ``http://host:port``.
    """

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._netloc = parts.netloc
        self._idle: deque[KeptConnection] = deque()
        self._all: set[KeptConnection] = set()
        # Local ports of connections that were closed before their answers were complete.
        self._given_up: set[int] = set()
        self.closed = False

    async def send(self, request: Request, headers: Mapping[str, str]) -> KeptConnection:
        """Send a request, and return its answer."""
        data = _written(request, headers, self._netloc)
        connection = self._kept() or await self._connected()
        try:
            await connection.send(data, is_head=request.method == "HEAD")
        except BaseException:
            connection.close()
            raise
        return connection

    async def aclose(self) -> None:
        """Close all connections."""
        self.closed = True
        for connection in list(self._all):
            connection.abort()

    async def unfinished(self) -> int:
        """Return to how many requests that were given up the program holds on; 0 where the system does not say."""
        if not (asked := frozenset(self._given_up)):
            return 0
        held = await asyncio.to_thread(half_closed, self._port, asked)
        self._given_up -= asked - held
        return len(held)

    def give_up(self, port: int) -> None:
        """Take note that a connection is closed before its answer is complete."""
        self._given_up.add(port)

    def free(self, connection: KeptConnection) -> None:
        """Keep a connection for the next request."""
        if self.closed:
            connection.abort()
            return
        oldest = connection.usable_since - _KEPT
        while self._idle and self._idle[0].usable_since <= oldest:
            self._idle.popleft().abort()
        self._idle.append(connection)

    def forget(self, connection: KeptConnection) -> None:
        """Leave out a connection that was closed."""
        self._all.discard(connection)

    def _kept(self) -> KeptConnection | None:
        oldest = asyncio.get_running_loop().time() - _KEPT
        while self._idle:
            # The last one is the least likely to be closed by the program.
            connection = self._idle.pop()
            if connection.usable_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connected(self) -> KeptConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT):
                _, connection = await loop.create_connection(lambda: KeptConnection(self, loop), self._host, self._port)
        except TimeoutError:
            raise NotReached("it did not take the connection in time") from None
        except OSError as error:
            raise NotReached(error.strerror or str(error)) from None
        self._all.add(connection)
        if self.closed:
            connection.abort()
            raise NotReached("it was stopped")
        return connection


class KeptConnection(asyncio.Protocol):
    """One connection, with the answer to its last request."""

    _is_head = _has_headers = _is_complete = _can_stay = _is_paused = False

    def __init__(self, owner: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.usable_since = float("-inf")
        self._begin(is_head=False)

    # The answer.

    async def send(self, data: bytes, *, is_head: bool) -> None:
        """Send a request, and wait for the headers of its answer."""
        self._begin(is_head=is_head)
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None or self._transport.is_closing():
            raise Broken("the connection was closed")
        self._transport.write(data)
        while not self._has_headers:
            await self._more()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        unzip = None
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding in {"gzip", "deflate"}:
            unzip = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif coding not in {"", "identity"}:
            raise BadAnswer(f"it is compressed with {coding[:30]!r}, which was not asked for")
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._waiting -= len(piece)
                if self._is_paused and self._waiting < _MOST_WAITING // 2 and self._transport is not None:
                    self._is_paused = False
                    self._transport.resume_reading()
                if unzip is None:
                    yield piece
                    continue
                for text in _unzipped(unzip, piece):
                    yield text
            if self._is_complete:
                if unzip is not None and not unzip.eof:
                    raise BadAnswer("it is not compressed as it says")
                return
            await self._more()

    def close(self) -> None:
        """Close it, unless the body was read to its end and it can be used again."""
        parser = self._parser
        if self._is_complete and not self._pieces and self._error is None and parser is not None and self._can_stay:
            self._parser = None
            self.usable_since = self._loop.time()
            self._owner.free(self)
            return
        self.abort()

    def abort(self) -> None:
        """Close it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._parser is not None and not self._is_complete and self._error is None:
            self._owner.give_up(transport.get_extra_info("sockname")[1])
        transport.abort()

    def _begin(self, *, is_head: bool) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._pieces: deque[bytes] = deque()
        # Bytes of the body that wait to be read.
        self._waiting = 0
        # Bytes of the answer, and of those since the last byte of its body: headers, chunk heads, their extensions, and trailers.
        self._received = self._around = 0
        self._is_head, self.ended_with_connection = is_head, False
        self._has_headers = self._is_complete = self._can_stay = self._is_paused = False

    async def _more(self) -> None:
        """Wait until something has come.

        Raises:
            Broken: the connection was lost.
            BadAnswer: it was no HTTP.
        """
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    # Of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        error = self._flaw_with(data)
        if error is not None:
            self._fail(error)
            self.abort()
            return
        if self._waiting > _MOST_WAITING and not self._is_paused and self._transport is not None and not self._is_complete:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _flaw_with(self, data: bytes) -> Exception | None:
        """Parse bytes; return why they end the connection, if they do."""
        if self._parser is None or self._is_complete:
            return BadAnswer("more was sent than was asked for")
        self._received += len(data)
        self._around += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return BadAnswer("another protocol was offered")
        except httptools.HttpParserError as error:
            return BadAnswer(f"it is not HTTP ({str(error)[:100]})")
        if self._is_complete:
            return None
        if self._around > _MOST_HEADERS:
            if not self._has_headers:
                return BadAnswer(f"its headers have more than {_MOST_HEADERS:,} bytes, or are not HTTP")
            return TooLong(f"{_MOST_HEADERS:,} bytes around its body")
        return TooLong(f"{_MOST_RECEIVED:,} bytes") if self._received > _MOST_RECEIVED else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Take in that the connection is closed."""
        self._owner.forget(self)
        self.usable_since = float("-inf")
        bounded = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        if self._has_headers and not self._is_complete and exc is None and self._error is None and not bounded:
            self._is_complete = self.ended_with_connection = True
            self._wake()
            return
        self._fail(Broken("the connection was closed"))

    # Of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; of several with one name the last one counts."""
        if not self._has_headers:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take in the status."""
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        self._has_headers = True
        if self._is_head or status in _NO_BODY:
            self._is_complete = True
            self._can_stay = not self._is_head and self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Take in a piece of the body."""
        if not self._is_complete:
            self._pieces.append(body)
            self._waiting += len(body)
            self._around = 0

    def on_message_complete(self) -> None:
        """Take in that the body has ended."""
        if self._has_headers and self._parser is not None and not self._is_complete:
            self._is_complete = True
            self._can_stay = self._parser.should_keep_alive()


def _unzipped(unzip: zlib._Decompress, piece: bytes) -> Iterator[bytes]:
    """Yield the text of a piece, a part at a time.

    Raises:
        BadAnswer: it is not compressed, or comes after the end.
    """
    while piece:
        # What follows the end would be gathered, and copied with each piece.
        if unzip.eof:
            raise BadAnswer("more follows what it compressed")
        try:
            text = unzip.decompress(piece, _MOST_UNZIPPED)
        except zlib.error:
            raise BadAnswer("it is not compressed as it says") from None
        piece = unzip.unconsumed_tail or unzip.unused_data
        if text:
            yield text


def _written(request: Request, headers: Mapping[str, str], netloc: str) -> bytes:
    """Return a request as it is sent.

    Raises:
        Unfit: a header can't be sent.
    """
    if not request.url.isascii() or not request.url.isprintable() or " " in request.url or not _NAME.fullmatch(request.method):
        raise Unfit(f"its path {request.url[:60]!r} can't be sent")
    lines = [f"{request.method} {request.url} HTTP/1.1"]
    if not any(name.lower() == "host" for name in headers):
        lines.append(f"Host: {netloc}")
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _NOT_IN_VALUES.search(value):
            raise Unfit(f"the header {name[:60]!r} can't be sent")
        lines.append(f"{name}: {value}")
    if request.body is not None:
        lines.append(f"Content-Length: {len(request.body)}")
    return "\r\n".join([*lines, "\r\n"]).encode("utf-8") + (request.body or b"")
