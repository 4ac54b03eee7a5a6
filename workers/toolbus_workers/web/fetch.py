"""``FetchService``: fetch pages from the public Web within limits, from servers that may be hostile."""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import httpx
import msgspec

from toolbus import ToolError
from toolbus.bus.outbound import Guard, Transport
from toolbus_workers.charset import decode

MAX_BYTES = 5_000_000
MAX_SECONDS = 30.0
MAX_REDIRECTS = 5
MAX_URL = 4_096
MAX_PARALLEL = 32
CONNECT_SECONDS = 10.0
# Most addresses of a host that are tried.
MAX_TRIED = 4

USER_AGENT = "Mozilla/5.0 (compatible; toolbus-fetch/1.0)"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEXTUAL = re.compile(r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml|toml)")
# Most pieces of a body: a server that sends each byte as a piece of its own keeps the reader busy.
_MAX_PIECES = 20_000
# Most gzip members; more would only keep the reader busy.
_MAX_MEMBERS = 64


class Page(msgspec.Struct, frozen=True):
    """A fetched page.

    Attributes:
        url: address of the page, after redirects.
        media_type: media type in lower case, without parameters.
        charset: charset from the headers, which may be wrong.
        body: decompressed body.
    """

    url: str
    media_type: str
    charset: str | None
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return decode(self.body, self.charset)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one fetch.

    Attributes:
        bytes: most bytes of the body, both as sent and decompressed.
        seconds: most seconds from the first look-up to the last byte.
        redirects: most redirects that are followed.
        hosts: the only hosts that are allowed, with their subdomains; all public hosts when empty.
    """

    bytes: int = MAX_BYTES
    seconds: float = MAX_SECONDS
    redirects: int = MAX_REDIRECTS
    hosts: tuple[str, ...] = ()


class FetchService:
    """Fetches pages. Its guard checks every address that it connects to, again after each redirect.

    It uses no proxy, no cookies and no credentials, and ignores the environment, because a proxy would resolve names itself.

    Args:
        guard: decides which addresses may be connected to.
        limits: limits of every fetch; a call's own limits can only be narrower.
        tls: verifies servers; the usual authorities when left out.
        parallel: fetches at the same time; waiting counts towards the time limit of the others.
    """

    def __init__(
        self, guard: Guard | None = None, *, limits: Limits | None = None, tls: ssl.SSLContext | None = None, parallel: int = MAX_PARALLEL
    ) -> None:
        self._guard = guard or Guard()
        self._limits = limits or Limits()
        self._tls = tls
        self._turns = asyncio.Semaphore(parallel)

    async def fetch(self, url: str, limits: Limits | None = None) -> Page:
        """Return a page of text: HTML, XML, JSON, plain text.

        Raises:
            ToolError: the page can't be fetched within the limits; the message says why, and what to do next.
        """
        narrowed = self._narrowed(limits or self._limits)
        try:
            async with asyncio.timeout(narrowed.seconds), self._turns:
                return await self._follow(parse_url(url), narrowed)
        except TimeoutError:
            message = f"{_shown(url)} did not answer completely within {narrowed.seconds:g} s; try again later, or try another page"
            raise ToolError(message, type="unavailable", code="too_slow", retryable=True) from None

    async def fetch_batch(self, urls: Sequence[str], limits: Limits | None = None) -> list[Page | ToolError]:
        """Return several pages in the order of their addresses; a failed page is represented by its error."""

        async def one(url: str) -> Page | ToolError:
            try:
                return await self.fetch(url, limits)
            except ToolError as error:
                return error

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(url)) for url in urls]
        return [task.result() for task in tasks]

    def _narrowed(self, limits: Limits) -> Limits:
        own = self._limits
        return Limits(
            bytes=min(limits.bytes, own.bytes),
            seconds=min(limits.seconds, own.seconds),
            redirects=min(limits.redirects, own.redirects),
            hosts=limits.hosts,
        )

    async def _follow(self, url: httpx.URL, limits: Limits) -> Page:
        for _ in range(limits.redirects + 1):
            for hosts in (self._limits.hosts, limits.hosts):
                _check_host(url, hosts)
            async with self._answer(url, limits) as response:
                if response.status_code not in _REDIRECTS or "location" not in response.headers:
                    return await _page(url, response, limits)
                url = _redirected(url, response.headers["location"])
        message = f"more than {limits.redirects} redirects, the last one to {_shown(url)}; try another page"
        raise ToolError(message, code="too_many_redirects")

    @asynccontextmanager
    async def _answer(self, url: httpx.URL, limits: Limits) -> AsyncIterator[httpx.Response]:
        """Provide an answer with its headers read, from the first checked address that can be reached."""
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._guard.addresses(url.raw_host.decode("ascii"), port)
        # A transport instead of a client, because clients add cookies, credentials and redirects. And one for each request, because
        # pooled connections are looked up by address, so one host could answer for another.
        async with Transport(self._verify(url)) as transport:
            with _translated_errors(url):
                response = await _first(transport, url, addresses[:MAX_TRIED], limits)
            transport.received_headers()
            try:
                with _translated_errors(url):
                    yield response
            finally:
                await response.aclose()

    def _verify(self, url: httpx.URL) -> ssl.SSLContext | bool:
        """Return how to verify the server; without TLS nothing is verified, which saves the time to load the authorities."""
        if url.scheme != "https":
            return False
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


async def _first(transport: httpx.AsyncHTTPTransport, url: httpx.URL, addresses: Sequence[str], limits: Limits) -> httpx.Response:
    for address in addresses[:-1]:
        try:
            return await transport.handle_async_request(_request(url, address, limits))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            continue
    return await transport.handle_async_request(_request(url, addresses[-1], limits))


def _request(url: httpx.URL, address: str, limits: Limits) -> httpx.Request:
    """Return a request that is sent to ``address``, with the Host header and the TLS name of the host of ``url``."""
    waits = dict.fromkeys(("connect", "read", "write", "pool"), limits.seconds) | {"connect": min(CONNECT_SECONDS, limits.seconds)}
    return httpx.Request(
        "GET",
        url.copy_with(host=address),
        headers={
            "Host": url.netloc.decode("ascii"),
            "User-Agent": USER_AGENT,
            "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,text/*;q=0.8,application/json;q=0.8,*/*;q=0.1",
            "Accept-Language": "en,*;q=0.5",
            "Accept-Encoding": "gzip, deflate",
            "Connection": "close",
        },
        extensions={"timeout": waits, "sni_hostname": url.raw_host.decode("ascii")},
    )


def parse_url(text: str) -> httpx.URL:
    """Return an address that can be fetched.

    Raises:
        ToolError: it can't be fetched, whatever host it names.
    """
    if len(text) > MAX_URL:
        raise _bad_url(text, f"it has {len(text)} characters; at most {MAX_URL} are allowed")
    try:
        url = httpx.URL(text.strip())
        host, port = url.host, url.port
    except (httpx.InvalidURL, ValueError):
        raise _bad_url(text, "it is not a web address") from None
    if url.scheme not in {"http", "https"} or not host:
        raise _bad_url(text, "it must begin with http:// or https:// and name a host")
    if url.userinfo:
        raise _bad_url(text, "addresses with a user name or password in them are not fetched")
    # Other ports below 1024 belong to services that are no web servers and might be abused through a request.
    if port is not None and (port > 65_535 or (port < 1_024 and port not in {80, 443})):
        raise _bad_url(text, f"web pages are not served on port {port}")
    return url


def _redirected(url: httpx.URL, location: str) -> httpx.URL:
    try:
        return parse_url(str(url.join(location)))
    except (httpx.InvalidURL, ValueError):
        pass
    except ToolError as error:
        message = f"{_shown(url)} redirects to an address that is not fetched: {error.error.message}"
        raise ToolError(message, type="forbidden", code="bad_redirect") from None
    raise ToolError(f"{_shown(url)} redirects to an invalid address; try another page", code="bad_redirect")


def _check_host(url: httpx.URL, hosts: Sequence[str]) -> None:
    host = url.host.lower().rstrip(".")
    if hosts and not any(host == known or host.endswith(f".{known}") for known in (name.lower().strip(". ") for name in hosts)):
        message = f"this tool only fetches pages of {', '.join(hosts[:20])}, and {_shown(url)} is not one of them"
        raise ToolError(f"{message}; use another tool for it", type="forbidden", code="forbidden_host")


async def _page(url: httpx.URL, response: httpx.Response, limits: Limits) -> Page:
    _check_status(url, response)
    media_type, charset = _content_type(response.headers.get("content-type", ""))
    if media_type and not _TEXTUAL.fullmatch(media_type):
        raise _not_text(url, f"is {media_type[:100]}, not text")
    body = await _body(url, response, limits.bytes)
    wide = (charset or "").lower().startswith(("utf-16", "utf-32")) or body[:2] in {b"\xff\xfe", b"\xfe\xff"}
    if b"\0" in body[:8_192] and not wide:
        raise _not_text(url, f"says it is {media_type or 'text'}, but is not text")
    return Page(str(url), media_type or "text/html", charset, body)


def _check_status(url: httpx.URL, response: httpx.Response) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    code = f"http_{status}"
    if status in {404, 410}:
        raise ToolError(f"there is no page {_shown(url)} (status {status}); try another address", type="not_found", code=code)
    if status in {401, 403, 407, 451}:
        message = f"the server does not show {_shown(url)} to this tool (status {status}); try another page"
        raise ToolError(message, type="forbidden", code=code)
    if status == 429:
        message = f"the server of {_shown(url)} wants fewer requests (status 429); wait before trying again, or try another page"
        raise ToolError(message, type="rate_limited", code=code, retryable=True, retry_after=_retry_after(response))
    if status >= 500:
        message = f"the server of {_shown(url)} failed (status {status}); try again later, or try another page"
        raise ToolError(message, type="unavailable", code=code, retryable=True, retry_after=_retry_after(response))
    raise ToolError(f"the server answered {_shown(url)} with status {status} and no page; try another address", code=code)


def _retry_after(response: httpx.Response) -> float | None:
    given = response.headers.get("retry-after", "")
    return float(min(int(given), 3_600)) if given.isascii() and given.isdigit() and len(given) < 10 else None


def _content_type(header: str) -> tuple[str, str | None]:
    media_type, *parameters = header[:500].split(";")
    charset = None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'")
            break
    return media_type.strip().lower(), charset


async def _body(url: httpx.URL, response: httpx.Response, limit: int) -> bytes:
    announced = response.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(url, limit)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        raise _not_text(url, f"is encoded as {encoding[:50]!r}, which was not asked for")
    unpack = _Unpacker(limit) if encoding not in {"", "identity"} else None
    body = bytearray()
    received = pieces = 0
    async for chunk in response.aiter_raw():
        received += len(chunk)
        pieces += 1
        if pieces > _MAX_PIECES:
            raise ToolError(f"{_shown(url)} comes in too many pieces; try another page", code="too_many_pieces")
        try:
            body += chunk if unpack is None else unpack.feed(chunk)
        except zlib.error:
            raise _not_text(url, "is damaged: it can't be decompressed") from None
        if max(received, len(body)) > limit:
            raise _too_large(url, limit)
    if unpack is not None and received and not unpack.complete:
        message = f"{_shown(url)} was cut off before its compressed text ended; try again"
        raise ToolError(message, type="unavailable", code="cut_off", retryable=True)
    return bytes(body)


class _Unpacker:
    """Decompresses gzip, zlib and raw deflate data, and never produces more than one byte over the limit."""

    def __init__(self, limit: int) -> None:
        self._room = limit + 1
        self._members = 1
        self._head = b""
        self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)

    @property
    def complete(self) -> bool:
        """True when the data ended where its format says."""
        return self._member.eof

    def feed(self, data: bytes) -> bytes:
        """Return the decompressed next piece.

        Raises:
            zlib.error: the data is damaged.
        """
        if len(self._head) < 2:
            self._head, data = self._head + data, b""
            if len(self._head) < 2:
                return b""
            data = self._head
            # HTTP means zlib by "deflate" (RFC 9110, 8.4.1.2), and some servers leave out its header.
            if data[:2] != b"\x1f\x8b" and (data[0] & 15 != zlib.DEFLATED or (data[0] << 8 | data[1]) % 31):
                self._member = zlib.decompressobj(-zlib.MAX_WBITS)
        out = bytearray()
        while data and self._room:
            if self._member.eof:
                if self._members == _MAX_MEMBERS:
                    raise zlib.error("too many members")
                self._members += 1
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 32)
            piece = self._member.decompress(data, self._room)
            self._room -= len(piece)
            out += piece
            data = self._member.unused_data
        return bytes(out)


@contextmanager
def _translated_errors(url: httpx.URL) -> Iterator[None]:
    """Turn errors of the network into errors of the tool."""
    try:
        yield
    except httpx.TimeoutException:
        message = f"{_shown(url)} did not answer in time; try again later, or try another page"
        raise ToolError(message, type="unavailable", code="too_slow", retryable=True) from None
    except httpx.ConnectError as error:
        if "certificate" in str(error).lower():
            message = f"the identity of {url.host!r} can't be verified (bad certificate); try another page"
            raise ToolError(message, type="unavailable", code="bad_certificate") from None
        message = f"{url.host!r} can't be reached: it is down, or this worker has no network; try again later, or try another page"
        raise ToolError(message, type="unavailable", code="unreachable", retryable=True) from None
    except (httpx.TransportError, ssl.SSLError, OSError):
        message = f"the connection to {url.host!r} broke, or what answers there is no web server; try again later, or try another page"
        raise ToolError(message, type="unavailable", code="bad_response", retryable=True) from None


def _bad_url(text: str, why: str) -> ToolError:
    return ToolError(f"{_shown(text)} can't be fetched: {why}; correct the address", type="invalid_arguments", code="bad_url")


def _too_large(url: httpx.URL, limit: int) -> ToolError:
    return ToolError(f"{_shown(url)} has more than {limit:,} bytes, which is too much; try a smaller page", code="too_large")


def _not_text(url: httpx.URL, why: str) -> ToolError:
    return ToolError(f"{_shown(url)} {why}; only pages of text can be read, so try another one", code="unsupported_content")


def _shown(url: httpx.URL | str) -> str:
    text = str(url)
    return text if len(text) <= 200 else f"{text[:199]}…"
