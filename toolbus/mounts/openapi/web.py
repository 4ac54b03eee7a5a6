"""``Web``: send requests to hosts that an operator has named, and to public ones, and read bounded answers."""

from __future__ import annotations

import ssl
import zlib
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import httpx

from toolbus.outbound import Answer, Guard, Transport
from toolbus.results import ToolError
from toolbus.safe_text import type_name

_CONNECT = 10.0
_MOST_TRIED = 4
_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Sent(Exception):
    """The connection was lost after the request may have arrived."""


class Web:
    """Sends requests.

    Args:
        named: hosts that an operator has named, which may have any address; every other one must be public.
        guard: decides which addresses are.
    """

    def __init__(self, named: Collection[str] = (), guard: Guard | None = None) -> None:
        self._named = {host.lower() for host in named}
        self._guard = guard or Guard()
        self._tls: ssl.SSLContext | None = None

    async def get(self, url: str, most: int) -> Answer:
        """Return what is at an address.

        Raises:
            ToolError: it can't be reached, or has more than ``most`` bytes.
        """
        try:
            return await self.send(httpx.Request("GET", url, headers={"Accept": "application/json, */*;q=0.5"}), most)
        except Sent as error:
            raise ToolError(str(error), type="unavailable", code="connection_lost", retryable=True) from None

    async def send(self, request: httpx.Request, most: int) -> Answer:
        """Send a request and return its answer; a GET follows redirects to the same host.

        Raises:
            ToolError: its host may not be reached, can't be reached, or answers with more than ``most`` bytes.
            Sent: the connection was lost meanwhile.
        """
        for _ in range(_MOST_REDIRECTS + 1):
            async with self._open(request) as response:
                target = response.headers.get("location", "")
                if response.status_code not in _REDIRECTS or not target:
                    return Answer(response.status_code, _headers(response), await _body(response, most))
            request = _redirected(request, target)
        raise ToolError(f"{request.url.host} redirects more than {_MOST_REDIRECTS} times", code="too_many_redirects")

    @asynccontextmanager
    async def _open(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        host, port = request.url.raw_host.decode("ascii"), request.url.port or (443 if request.url.scheme == "https" else 80)
        addresses = [host] if host.lower() in self._named else (await self._guard.addresses(host, port))[:_MOST_TRIED]
        async with Transport(self._verify(request.url)) as transport:
            response = await _first(transport, request, addresses)
            transport.received_headers()
            try:
                yield response
            except httpx.HTTPError as error:
                raise Sent(f"{host} broke off its answer ({type_name(error)})") from None
            finally:
                await response.aclose()

    def _verify(self, url: httpx.URL) -> ssl.SSLContext | bool:
        if url.scheme != "https":
            return False
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


async def _first(transport: httpx.AsyncHTTPTransport, request: httpx.Request, addresses: list[str]) -> httpx.Response:
    """Return the answer from the first address that can be connected to."""
    host = request.url.host
    for address in addresses:
        try:
            return await transport.handle_async_request(_to(request, address))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            continue
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise ToolError(f"the request can't be sent: {error}", type="invalid_arguments", code="unfit") from None
        except httpx.HTTPError as error:
            raise Sent(f"{host} broke off the connection ({type_name(error)})") from None
    raise ToolError(f"{host} can't be reached now", type="unavailable", code="unreachable", retryable=True)


def _to(request: httpx.Request, address: str) -> httpx.Request:
    """Return a request that is sent to an address, with the Host header and the TLS name of its host."""
    headers = httpx.Headers(request.headers)
    headers.update({"Host": request.url.netloc.decode("ascii"), "Accept-Encoding": "gzip", "Connection": "close"})
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=headers,
        content=request.content,
        extensions={
            "timeout": {"connect": _CONNECT, "read": None, "write": None, "pool": None},
            "sni_hostname": request.url.raw_host.decode("ascii"),
        },
    )


def _redirected(request: httpx.Request, target: str) -> httpx.Request:
    """Return the request that a redirect asks for.

    Raises:
        ToolError: it leads to another host, which would get what was meant for this one, or the request is no GET.
    """
    try:
        url = request.url.join(target)
        origin = (url.scheme, url.host, url.port)
    except (httpx.InvalidURL, ValueError):
        raise ToolError(f"{request.url.host} redirects to what is no address", code="bad_redirect") from None
    if request.method != "GET" or origin != (request.url.scheme, request.url.host, request.url.port) or url.userinfo:
        raise ToolError(f"{request.url.host} redirects to {url.host or 'another place'}, which is not followed", code="redirect_refused")
    return httpx.Request("GET", url, headers=request.headers)


def _headers(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


async def _body(response: httpx.Response, most: int) -> bytes:
    """Return a body of at most ``most`` bytes, as sent and decompressed."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", "", "gzip"}:
        raise ToolError(f"the answer is compressed with {coding[:30]!r}, which was not asked for", code="bad_answer")
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding == "gzip" else None
    body, sent = bytearray(), 0
    async for chunk in response.aiter_raw():
        sent += len(chunk)
        try:
            body += chunk if unzip is None else unzip.decompress(chunk, most + 1 - len(body))
        except zlib.error:
            raise ToolError("the answer says that it is compressed with gzip, and is not", code="bad_answer") from None
        if sent > most or len(body) > most:
            raise ToolError(f"the answer has more than {most:,} bytes, so it was not read; ask for less", code="too_long")
    return bytes(body)
