"""Requests to APIs that others run: authorized, and to addresses that may be reached."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlencode, urlsplit

import msgspec

from toolbus.bus.outbound import Guard, Resolve, resolve_name
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ToolError
from toolbus.bus.values.secrets import value_of
from toolbus.platform.backends.connections import Connections, Request, Unanswered
from toolbus.platform.backends.http import start_of
from toolbus.platform.checks import check_auth

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

    async def prepare(self, resolve: Resolve) -> None:
        """Get a token when one is needed and there is none that lasts.

        Args:
            resolve: returns the addresses that may be asked.

        Raises:
            ToolError: there is none to be had.
        """
        if not self.token_url:
            return
        async with self._asking:
            if time.monotonic() < self._until:
                return
            token = await self._ask(resolve)
            self._token = token.access_token
            self._until = time.monotonic() + max(0.0, token.expires_in - _BEFORE)

    def forget(self) -> None:
        """Get another token for the next request, since this one was refused."""
        self._until = 0.0

    async def _ask(self, resolve: Resolve) -> _Token:
        form = {"grant_type": "client_credentials"} | ({"scope": self._fields["scope"]} if self._fields.get("scope") else {})
        headers = {"Content-Type": "application/x-www-form-urlencoded", **_basic(self._value("client_id"), self._value("client_secret"))}
        place = urlsplit(self.token_url)
        sender = Connections(f"{place.scheme}://{place.netloc}", resolve)
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await sender.send(Request("POST", place.path or "/", urlencode(form).encode()), headers)
                if answer.status != 200:
                    raise _refused(f"answered {answer.status}")
                token = msgspec.json.decode(await start_of(answer), type=_Token)
        except (Unanswered, TimeoutError, *DECODE_ERRORS) as error:
            raise _refused(f"gave none ({type_name(error)})") from None
        finally:
            await sender.aclose()
        if not token.access_token.isprintable() or not token.access_token.isascii():
            raise _refused("answered with what is no token")
        return token

    def _value(self, name: str) -> str:
        return value_of(self._fields[name])


def _basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _refused(reason: str) -> ToolError:
    message = f"the API's place of tokens {reason}, so the call was not made; check auth in its record, and the secrets of the host"
    return ToolError(message, type="unavailable", code="no_token", retryable=True)


class Reach:
    """Resolves names to addresses that may be reached.

    Args:
        allowed: hosts that may have any address.
        guard: decides which other addresses may be reached.

    Attributes:
        has_refused: whether a name has addresses that may not be reached.
    """

    def __init__(self, allowed: Collection[str], guard: Guard) -> None:
        self._allowed = allowed
        self._guard = guard
        self.has_refused = False

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, which may be one itself.

        Raises:
            ToolError: there are none, or one may not be reached.
            OSError: there are none of a host that may have any.
        """
        if allows(self._allowed, host, port):
            return await resolve_name(host, port)
        try:
            return await self._guard.addresses(host, port)
        except ToolError as error:
            if error.error.type == "forbidden":
                self.has_refused = True
                raise ToolError(not_allowed(host), type="forbidden", code="forbidden_address") from None
            raise


def allows(allowed: Collection[str], host: str, port: int) -> bool:
    """Return whether a host may have any address."""
    return not {host.lower(), f"{host}:{port}".lower(), f"[{host}]:{port}".lower()}.isdisjoint(allowed)


def not_allowed(host: str) -> str:
    """Return the message about a host that may not be reached."""
    return f"{host!r} is not a host on the public Internet; start the host with --allow-host {host} if tools may call it"
