"""``ApiSender``: requests to APIs that others run: authorized, and to addresses that may be reached."""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from toolbus.bus.outbound import Guard
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ToolError
from toolbus.bus.values.secrets import value_of
from toolbus.platform.backends.connections import BadAnswer, Broken, NotReached, Request, Unfit
from toolbus.platform.checks import check_auth

_MOST_TOKEN = 65_536
# Seconds before its end at which a token is replaced, and that one lasts whose end is not told.
_BEFORE, _USUAL = 30.0, 300.0
_WITHIN = 30.0


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = _USUAL


class Authorization:
    """Authorizes the requests to one API.

    Args:
        fields: of the source, as in the table above; none when it is empty.

    Raises:
        DescriptorError: a field is missing, or unknown.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields
        self._type = fields.get("type", "")
        self._token = ""
        self._until = 0.0
        self._asking = asyncio.Lock()
        check_auth(fields, "$.auth")

    @property
    def token_url(self) -> str:
        """The place of tokens; empty when none are needed."""
        return self._fields.get("token_url", "") if self._type == "oauth2" else ""

    def headers(self) -> dict[str, str]:
        """Return what is added to the headers."""
        given = self._value
        match self._type:
            case "basic":
                return _basic(given("username"), given("password"))
            case "bearer":
                return {"Authorization": f"Bearer {given('token')}"}
            case "oauth2":
                return {"Authorization": f"Bearer {self._token}"}
            case "apiKey" if self._fields["in"] == "header":
                return {self._fields["name"]: given("value")}
            case "apiKey" if self._fields["in"] == "cookie":
                return {"Cookie": f"{self._fields['name']}={given('value')}"}
            case _:
                return {}

    def query(self) -> dict[str, str]:
        """Return what is added to the query."""
        return {self._fields["name"]: self._value("value")} if self._type == "apiKey" and self._fields["in"] == "query" else {}

    async def prepare(self, session: aiohttp.ClientSession) -> None:
        """Get a token when one is needed and there is none that lasts.

        Raises:
            ToolError: there is none to be had.
        """
        if not self.token_url:
            return
        async with self._asking:
            if time.monotonic() < self._until:
                return
            token = await self._ask(session)
            self._token = token.access_token
            self._until = time.monotonic() + max(0.0, token.expires_in - _BEFORE)

    def forget(self) -> None:
        """Get another token for the next request, since this one was refused."""
        self._until = 0.0

    async def _ask(self, session: aiohttp.ClientSession) -> _Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self._fields["scope"]} if self._fields.get("scope") else {})
        headers = _basic(self._value("client_id"), self._value("client_secret"))
        try:
            async with (
                asyncio.timeout(_WITHIN),
                session.post(URL(self.token_url), data=form, headers=headers, allow_redirects=False) as response,
            ):
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MOST_TOKEN:
                        raise _refused("answered with what is no token")
                if response.status != 200:
                    raise _refused(f"answered {response.status}")
                token = msgspec.json.decode(body, type=_Token)
                if not token.access_token.isprintable() or not token.access_token.isascii():
                    raise _refused("answered with what is no token")
                return token
        except (aiohttp.ClientError, TimeoutError, OSError, *DECODE_ERRORS) as error:
            raise _refused(f"gave none ({type_name(error)})") from None

    def _value(self, name: str) -> str:
        return value_of(self._fields[name])


def _basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _refused(reason: str) -> ToolError:
    message = f"the API's place of tokens {reason}, so the call was not made; check auth in its record, and the secrets of the host"
    return ToolError(message, type="unavailable", code="no_token", retryable=True)


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

    async def send(self, request: Request, headers: Mapping[str, str]) -> ApiAnswer:
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
        return ApiAnswer(response)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.session.close()


class ApiAnswer:
    """An answer whose headers have come."""

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
        return BadAnswer(f"it is not HTTP ({(error.message.splitlines() or [''])[0][:100]})")
    if isinstance(error, aiohttp.ClientPayloadError) and ("decode" in str(error) or "encod" in str(error)):
        return BadAnswer("it is not compressed as it says")
    return Broken(type_name(error))


class Resolver(AbstractResolver):
    """Resolves names to addresses that may be reached.

    Attributes:
        has_refused: whether a name has addresses that may not be reached.
    """

    def __init__(self, allowed: Collection[str], guard: Guard) -> None:
        self._allowed = allowed
        self._guard = guard
        self._usual = aiohttp.ThreadedResolver()
        # Addresses of allowed names, which may be private.
        self._of_allowed: set[str] = set()
        self.has_refused = False

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        """Return the addresses of a host."""
        if allows(self._allowed, host, port):
            resolved = await self._usual.resolve(host, port, family)
            self._of_allowed = {*self._of_allowed, *(each["host"] for each in resolved)}
            return resolved
        try:
            found = await self._guard.addresses(host, port)
        except ToolError as error:
            if error.error.type == "forbidden":
                self.has_refused = True
                raise ToolError(not_allowed(host), type="forbidden", code="forbidden_address") from None
            raise
        return [_resolved(host, port, address) for address in found]

    def check(self, address: str, port: int) -> None:
        """Check an address just before it is connected to, also one that was never resolved.

        Raises:
            ToolError: it may not be reached.
        """
        if address not in self._of_allowed and not allows(self._allowed, address, port) and not self._guard.permits(address):
            raise ToolError(not_allowed(address), type="forbidden", code="forbidden_address")

    async def close(self) -> None:
        """Close nothing."""


def _resolved(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=flags)


def allows(allowed: Collection[str], host: str, port: int) -> bool:
    """Return whether a host may have any address."""
    return not {host.lower(), f"{host}:{port}".lower(), f"[{host}]:{port}".lower()}.isdisjoint(allowed)


def not_allowed(host: str) -> str:
    """Return the message about a host that may not be reached."""
    return f"{host!r} is not a host on the public Internet; start the host with --allow-host {host} if tools may call it"
