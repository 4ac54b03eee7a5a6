"""Tell clients which authorization server gives tokens for this gateway (OAuth protected-resource metadata, RFC 9728)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from toolbus.edges.gateway.bodies import answer
from toolbus.edges.gateway.gateway import check_query, gateway_of

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


@runtime_checkable
class Described(Protocol):
    """An authenticator that says which tokens it accepts."""

    resource: Resource


def _route(path: str) -> Route:
    async def metadata(request: Request) -> Response:
        """Answer the metadata of one resource, which anybody may read."""
        check_query(request)
        authenticator = gateway_of(request).authenticator
        resource = authenticator.resource if isinstance(authenticator, Described) else Resource()
        document: dict[str, Any] = {
            "resource": f"{resource.base(request)}{path}",
            "resource_name": "toolbus",
            "bearer_methods_supported": ["header"],
            "scopes_supported": list(SCOPES),
        }
        if resource.issuers:
            document["authorization_servers"] = list(resource.issuers)
        # A Host header that a client made up must not reach others out of a cache.
        return answer(document, headers={"Cache-Control": "public, max-age=300" if resource.url else "no-store"})

    return Route(f"{PATH}{path}", metadata)


ROUTES: list[BaseRoute] = [_route(path) for path in RESOURCES]
