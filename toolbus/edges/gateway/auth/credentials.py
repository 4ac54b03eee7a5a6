"""Describe what sources say of tokens, and tell clients which authorization server gives them (RFC 9728)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import Rate, TokenFile, TokenRecord
from toolbus.edges.gateway.bodies import answer
from toolbus.edges.gateway.operations import Admitted
from toolbus.edges.gateway.options import Principal


class Refused(Exception):
    """A token that is not accepted; the message goes to the client and says nothing of the token."""


class Credential(msgspec.Struct, frozen=True):
    """The principal that a token stands for, and how many requests it may send."""

    principal: Principal
    rate: Rate | None = None


Source = Callable[[str], Awaitable[Credential | None]]
"""Returns whom a token stands for; None when it has another form or is not known, and the next source is asked.

It raises ``Refused`` when the token is known and not accepted (any more), and a ``Problem``, 503, when it can't say now.
"""


def accepted(record: TokenRecord, token: str) -> Credential:
    """Return whom a token stands for by its record.

    Raises:
        Refused: it is another token, or has expired.
    """
    if not record.is_of(token):
        raise Refused("the token is not known")
    if record.has_expired(time.time()):
        raise Refused("the token has expired")
    principal = Principal(
        name=record.name,
        user=record.user,
        groups=None if record.groups is None else frozenset(record.groups),
        tools=None if record.tools is None else frozenset(record.tools),
        may=frozenset(record.permissions),
    )
    return Credential(principal, record.rate)


_MOST_BYTES = 16_777_216
_decoder = msgspec.json.Decoder(TokenFile)


def read(path: Path) -> dict[str, TokenRecord]:
    """Return the records of a file, by id.

    Raises:
        ConfigurationError: it can't be read; no message shows what is in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"the tokens in {path} can't be read: {error.strerror or type_name(error)}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {_MOST_BYTES:,} bytes")
    try:
        found = _decoder.decode(data)
    except DECODE_ERRORS as error:
        raise ConfigurationError(
            f"{path} is no file of tokens: {str(error)[:200]}; `toolbus secure tokens add --file` writes one"
        ) from None
    records = {record.id: record for record in found.tokens}
    if len(records) != len(found.tokens):
        raise ConfigurationError(f"{path} has two tokens of one id")
    return records


PATH = "/.well-known/oauth-protected-resource"
RESOURCES = ("", "/mcp")
"""The paths of the resources that have metadata: the gateway, and its MCP endpoint."""

SCOPES = ("toolbus:call", "toolbus:observe", "toolbus:operate")


class Resource(msgspec.Struct, frozen=True):
    """The gateway as an OAuth resource.

    Attributes:
        url: the gateway's URL as clients see it; by default what each request names.
        issuers: authorization servers whose tokens it accepts.
    """

    url: str = ""
    issuers: tuple[str, ...] = ()

    def base(self, connection: HTTPConnection) -> str:
        """Return the URL of the gateway as a client sees it, without a slash at its end."""
        found = self.url or f"{connection.url.scheme}://{connection.url.netloc}"
        # A host of a client's own making must not end the quoted string of a header.
        return found.rstrip("/").replace('"', "").replace("\\", "")

    def metadata_url(self, connection: HTTPConnection) -> str:
        """Return the URL of the metadata of the resource that a request asked for."""
        path = connection.url.path
        resource = next((each for each in RESOURCES if each and (path == each or path.startswith(f"{each}/"))), "")
        return f"{self.base(connection)}{PATH}{resource}"


async def metadata(asked: Admitted[None]) -> Response:
    """Answer the metadata of one resource, which anybody may read."""
    request = asked.request
    found = getattr(asked.gateway.authenticator, "resource", None)
    resource = found if isinstance(found, Resource) else Resource()
    document: dict[str, Any] = {
        "resource": f"{resource.base(request)}{request.url.path.removeprefix(PATH)}",
        "resource_name": "toolbus",
        "bearer_methods_supported": ["header"],
        "scopes_supported": list(SCOPES),
    }
    if resource.issuers:
        document["authorization_servers"] = list(resource.issuers)
    # A Host header that a client made up must not reach others out of a cache.
    return answer(document, headers={"Cache-Control": "public, max-age=300" if resource.url else "no-store"})
