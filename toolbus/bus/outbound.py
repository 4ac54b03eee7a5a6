"""HTTP with hosts that may be hostile: which addresses may be reached, and how answers are read."""

from __future__ import annotations

import asyncio
import codecs
import ipaddress
import math
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpcore
import httpx
import msgspec

from toolbus.bus.support.display import harmless
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ErrorInfo, ToolError

_MOST_MESSAGE = 1_000
_PASSING = frozenset({429, 503})
_LONGEST_WAIT = 86_400.0


class Answer(msgspec.Struct, frozen=True):
    """A complete answer.

    Attributes:
        status: of HTTP.
        headers: by name in lower case.
        body: decompressed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """Its media type in lower case, without parameters; empty when it has none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()[:200]

    @property
    def charset(self) -> str:
        """Its character set; UTF-8 when it names none that is known."""
        named = self.headers.get("content-type", "").lower().partition("charset=")[2].strip(" \"'").partition(";")[0]
        try:
            return codecs.lookup(named).name if named else "utf-8"
        except (LookupError, ValueError):
            return "utf-8"

    @property
    def is_json(self) -> bool:
        """Tell whether it says that it is JSON."""
        return self.media_type == "application/json" or self.media_type.endswith("+json")

    @property
    def is_text(self) -> bool:
        """Tell whether it is text for people."""
        kind = self.media_type
        return kind.startswith("text/") or kind.endswith(("xml", "yaml", "javascript", "ndjson", "jsonl"))

    @property
    def text(self) -> str:
        """Its body as text."""
        try:
            return self.body.decode(self.charset, "replace")
        except (LookupError, ValueError):
            return self.body.decode("utf-8", "replace")


def failure(request: str, answer: Answer) -> ErrorInfo:
    """Return the error of an answer with an error status.

    Args:
        request: the request in words.
        answer: to it.
    """
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    text = harmless(answer.text).strip() if answer.is_json or answer.media_type.startswith("text/") else ""
    message = f"{request} answered {answer.status}{phrase}{': ' if text else ''}{text}"
    passing = answer.status in _PASSING
    return ErrorInfo(
        "tool_error",
        code=f"http_{answer.status}",
        message=message if len(message) <= _MOST_MESSAGE else f"{message[: _MOST_MESSAGE - 1]}…",
        retryable=passing,
        retry_after=retry_after(answer.headers.get("retry-after", "")) if passing else None,
    )


def decoded(body: bytes | str) -> Any:
    """Return the value that JSON text stands for; None when it can't be read."""
    try:
        return msgspec.json.decode(body)
    except DECODE_ERRORS:
        return None


def retry_after(text: str) -> float | None:
    """Return the seconds that a Retry-After header asks for, by a number or a date, and at most a day; None when it asks for none."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name as text; raises OSError (``socket.gaierror``) when there are none."""

# A name with more addresses is suspicious, and no fetch needs so many attempts.
MAX_ADDRESSES = 32

# Listed in full, because the standard library's definition of "global" differs between Python versions.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        "168.63.129.16/32",  # public by number, but the metadata service of a cloud
        "2001::/23",  # Teredo, ORCHID, benchmarks: nothing that serves pages
        "2001:db8::/32",
        "2002::/16",  # 6to4 leads to the IPv4 address inside
        "3fff::/20",
    )
)  # fmt: skip
# The rest of IPv6 is unspecified, loopback, link-local, unique local, multicast or reserved.
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
# With DNS64 every IPv4 host has an address in this network.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Guard:
    """Resolves names and permits only public addresses.

    Args:
        allow: networks that may be reached although they are not public, such as ``10.20.0.0/16``. Only code that builds the
            service can set them; no argument and no config value of a tool does.
        resolve: turns a name into addresses; the system's resolver when left out.
    """

    def __init__(self, *, allow: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = tuple(ipaddress.ip_network(network) for network in allow)
        self._resolve = resolve or resolve_name

    def permits(self, address: str) -> bool:
        """Return whether an address may be connected to."""
        try:
            parsed: Address = ipaddress.ip_address(address)
        except ValueError:
            return False
        reached = _reached(parsed)
        if any(reached in network for network in self._allowed):
            return True
        if reached.version == 6 and reached not in _PUBLIC_V6:
            return False
        return reached.is_global and not any(reached in network for network in _NOT_PUBLIC)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the checked addresses of a host. Connect to these, never to the name, which may resolve differently then.

        Raises:
            ToolError: the host is unknown, or one of its addresses is not public.
        """
        try:
            found = list(dict.fromkeys(await self._resolve(host, port)))
        except socket.gaierror as error:
            raise _unresolved(host, error) from None
        except (OSError, UnicodeError):
            raise _unresolved(host, None) from None
        if not found:
            raise _unresolved(host, None)
        # A forbidden address among public ones is an attack or a mistake, so none of them is used.
        if len(found) > MAX_ADDRESSES or not all(self.permits(address) for address in found):
            raise ToolError(
                f"{host!r} is not a host on the public Internet, so it is not fetched; use the address of a public page",
                type="forbidden",
                code="forbidden_address",
            )
        return found


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the system's addresses for a name. It also reads numbers such as ``127.1``, which are checked like any other."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _reached(address: Address) -> Address:
    """Return the address that packets really go to."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _unresolved(host: str, error: socket.gaierror | None) -> ToolError:
    if error is not None and error.errno == socket.EAI_AGAIN:
        message = f"the name {host!r} can't be looked up now: this worker has no network, or its name server does not answer"
        return ToolError(f"{message}; try again later, or do without this page", type="unavailable", code="no_network", retryable=True)
    message = f"no host is known by the name {host!r}, or this worker has no network; check the spelling, or try another page"
    return ToolError(message, type="not_found", code="unknown_host")


_LINE_END = re.compile(rb"\r\n|\n|\r")
_MOST = 4_194_304


class SentEvent(msgspec.Struct, frozen=True):
    """One event; its name is empty when it has none."""

    name: str
    data: str


class EventReader:
    """Takes the bytes of a stream in chunks of any size and returns complete events.

    Args:
        limit: most bytes of one event.
    """

    def __init__(self, limit: int = _MOST) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._data: list[str] = []
        self._size = 0
        self._first = True
        self._name = ""

    def feed(self, chunk: bytes) -> list[SentEvent]:
        """Return the events that end in this chunk.

        Raises:
            ValueError: an event is too long.
        """
        self._size += len(chunk)
        self._pieces.append(chunk)
        found: list[SentEvent] = []
        if b"\n" in chunk or b"\r" in chunk:
            found = self._split(b"".join(self._pieces))
        if self._size > self._limit:
            raise ValueError(f"an event of more than {self._limit} bytes")
        return found

    def end(self) -> list[SentEvent]:
        """Return an event that ends with the stream, since some endpoints leave out the last empty line."""
        return self.feed(b"\n\n")

    def _split(self, text: bytes) -> list[SentEvent]:
        # A CR at the very end may be half of a CRLF, so it is kept for the next chunk.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text[: len(text) - len(held)])
        self._pieces = [rest + held]
        found: list[SentEvent] = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                found.append(event)
        self._size = len(rest) + sum(map(len, self._data))
        return found

    def _line(self, line: bytes) -> SentEvent | None:
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            name, data, self._name, self._data = self._name, self._data, "", []
            return SentEvent(name, "\n".join(data)) if data else None
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif field == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        return None


# Bytes that are parsed before other tasks have a turn: of the smallest pieces, a server can put hundreds into each KB.
_AT_ONCE = 4_096
# Bytes of the headers, with all interim answers before them.
MOST_HEADERS = 262_144


class Transport(httpx.AsyncHTTPTransport):
    """Sends one request. ``received_headers`` says that its headers have come, and that a body may follow."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        super().__init__(verify=verify, trust_env=False)
        self._counted = _Counted()
        # Httpx has no parameter for it. Without TLS no context is needed, which takes long to make.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=verify if isinstance(verify, ssl.SSLContext) else None, network_backend=_Network(self._counted)
        )

    def received_headers(self) -> None:
        """Stop counting."""
        self._counted.left = None


class _Counted:
    """Bytes that may still come; None when they are not counted."""

    def __init__(self) -> None:
        self.left: int | None = MOST_HEADERS


class _Network(httpcore.AsyncNetworkBackend):
    def __init__(self, counted: _Counted) -> None:
        self._backend = httpcore.AnyIOBackend()
        self._counted = counted

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._backend.connect_tcp(*args, **options), self._counted)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, counted: _Counted) -> None:
        self._stream = stream
        self._counted = counted

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # What has arrived is read without waiting, so others must be given their turn.
        await asyncio.sleep(0)
        data = await self._stream.read(min(max_bytes, _AT_ONCE), timeout)
        counted = self._counted
        if counted.left is not None:
            counted.left -= len(data)
            if counted.left < 0:
                raise httpcore.RemoteProtocolError("too many bytes before the body")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._counted)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
