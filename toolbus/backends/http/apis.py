"""``ApiSender``: requests to APIs elsewhere, over TLS or not, by a client library."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
from yarl import URL

from toolbus.backends.http.requests import Request
from toolbus.backends.http.sending import Broken, Nonsense, NotReached, Unfit
from toolbus.safe_text import type_name

_CONNECT = 10.0
_KEPT = 4.0
_CHUNK = 65_536


class ApiSender:
    """Sends requests to an API.

    Args:
        base: its address.
        resolver: says which addresses a name has.
        check: raises an error for an address, with its port, that may not be connected to.

    Attributes:
        session: its connections.
    """

    def __init__(self, base: str, resolver: aiohttp.abc.AbstractResolver, check: Callable[[str, int], None]) -> None:
        self._base = base.rstrip("/")

        def checked(info: tuple[Any, ...]) -> socket.socket:
            family, kind, protocol, _, address = info
            check(address[0], address[1])
            return socket.socket(family, kind, protocol)

        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT, resolver=resolver, socket_factory=checked),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
            read_bufsize=_CHUNK,
        )

    @property
    def closed(self) -> bool:
        """Tell whether it was closed."""
        return self.session.closed

    async def send(self, request: Request, headers: Mapping[str, str]) -> _Answer:
        """Send a request, and return its answer."""
        url = URL(self._base + request.url, encoded=True)
        try:
            response = await self.session.request(request.method, url, data=request.body, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotReached(getattr(error, "strerror", "") or str(error)) from None
        except ValueError as error:
            raise Unfit(str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error) from None
        return _Answer(response)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.session.close()


class _Answer:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    @property
    def ended_with_connection(self) -> bool:
        """Tell whether nothing but the end of the connection says that the body is whole."""
        coded = self.headers.get("transfer-encoding", "").lower()
        return self._response.method != "HEAD" and "content-length" not in self.headers and "chunked" not in coded

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise _failure(error) from None

    def close(self) -> None:
        """Close the connection, unless the body was read to its end."""
        self._response.release()


def _failure(error: Exception) -> Exception:
    if isinstance(error, aiohttp.ClientResponseError):
        return Nonsense(f"it is not HTTP ({(error.message.splitlines() or [''])[0][:100]})")
    if isinstance(error, aiohttp.ClientPayloadError) and ("decode" in str(error) or "encod" in str(error)):
        return Nonsense("it is not compressed as it says")
    return Broken(type_name(error))
