"""Tell clients which authorization server gives tokens for this gateway (OAuth protected-resource metadata, RFC 9728)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from toolbus.gateway.bodies import answer

PATH = "/.well-known/oauth-protected-resource"
RESOURCES = ("", "/mcp")
"""The paths of the resources that have metadata: the gateway, and its MCP endpoint."""

SCOPES = ("toolbus:call", "toolbus:observe", "toolbus:operate")


def metadata_url(connection: HTTPConnection, public_url: str = "") -> str:
    """Return the URL of the metadata of the resource that a request asked for."""
    path = connection.url.path
    resource = next((each for each in RESOURCES if each and (path == each or path.startswith(f"{each}/"))), "")
    return f"{base_of(connection, public_url)}{PATH}{resource}"


def base_of(connection: HTTPConnection, public_url: str = "") -> str:
    """Return the URL of the gateway as its clients see it, without a slash at its end."""
    found = public_url or f"{connection.url.scheme}://{connection.url.netloc}"
    # A host of a client's own making must not end the quoted string of a header.
    return found.rstrip("/").replace('"', "").replace("\\", "")


def routes(issuers: Sequence[str] = (), public_url: str = "") -> list[BaseRoute]:
    """Return the routes of the metadata, which anybody may read."""

    def of(resource: str) -> Any:
        async def metadata(request: Request) -> Response:
            """Answer the metadata of one resource."""
            document: dict[str, Any] = {
                "resource": f"{base_of(request, public_url)}{resource}",
                "resource_name": "toolbus",
                "bearer_methods_supported": ["header"],
                "scopes_supported": list(SCOPES),
            }
            if issuers:
                document["authorization_servers"] = list(issuers)
            return answer(document, headers={"Cache-Control": "public, max-age=300"})

        return metadata

    return [Route(f"{PATH}{resource}", of(resource)) for resource in RESOURCES]
