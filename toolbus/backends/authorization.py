"""``Authorization``: authorize requests to an API, in the ways that OpenAPI has names for.

=============  ======================================================================
``type``       further fields
=============  ======================================================================
``apiKey``     ``in`` (``header``, ``query`` or ``cookie``), ``name``, ``value``
``basic``      ``username``, ``password``
``bearer``     ``token``
``oauth2``     ``token_url``, ``client_id``, ``client_secret``, and maybe ``scope``; the flow of client credentials
=============  ======================================================================
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping

import aiohttp
import msgspec
from yarl import URL

from toolbus.platform.checks import check_auth
from toolbus.results import ToolError
from toolbus.safe_text import type_name
from toolbus.secrets import value_of

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
                body = await response.content.read(_MOST_TOKEN)
                if response.status != 200:
                    raise _refused(f"answered {response.status}")
                token = msgspec.json.decode(body, type=_Token)
                if not token.access_token.isprintable() or not token.access_token.isascii():
                    raise _refused("answered with what is no token")
                return token
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError) as error:
            raise _refused(f"gave none ({type_name(error)})") from None

    def _value(self, name: str) -> str:
        return value_of(self._fields[name])


def _basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _refused(reason: str) -> ToolError:
    message = f"the API's place of tokens {reason}, so the call was not made; check auth in its record, and the secrets of the host"
    return ToolError(message, type="unavailable", code="no_token", retryable=True)
