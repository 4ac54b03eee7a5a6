"""List, find and describe tools: ``GET /tools``, ``GET /v1/tools`` and ``GET /v1/tools/{name}``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.client.tools.grouped import groups_of, memberships
from toolbus.gateway.bodies import answer
from toolbus.gateway.definitions import definitions
from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.listing import Search, described
from toolbus.gateway.problems import Problem

_MOST = 1_000
_USUAL = 100
_KNOWN = frozenset({"category", "group", "runtime", "q", "available", "limit", "cursor"})


async def everything(request: Request) -> Response:
    """Answer all runtimes, groups and tools."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    return answer(await gateway.supply.of(principal))


async def search(request: Request) -> Response:
    """Answer a page of the tools that the query looks for; with ``format``, definitions for a model."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    if (wanted_format := request.query_params.get("format")) is not None:
        return definitions(request, principal, wanted_format)
    wanted, limit, cursor = _search(request), _limit(request), request.query_params.get("cursor", "")
    tools = dict(principal.sees(gateway.bus))
    of = memberships(groups_of(gateway.bus.tools.catalogue.groups, tools))
    found = list(wanted.found(tools, of))
    rest = [tool for tool in found if tool.name > cursor] if cursor else found
    page = rest[:limit]
    return answer(
        {
            "tools": [described(tool, of.get(tool.name, ())) for tool in page],
            "total": len(found),
            "next": page[-1].name if len(rest) > limit else None,
        }
    )


async def describe(request: Request) -> Response:
    """Answer one tool."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    tools, name = principal.sees(gateway.bus), request.path_params["name"]
    tool = tools.get(name)
    if tool is None and name.endswith("/invoke"):
        raise Problem(405, "wrong_method", "a tool is called with POST", {"Allow": "POST"})
    if tool is None:
        raise Problem(404, "not_found", f"there is no tool {name!r}", code="unknown_tool")
    of = memberships(groups_of(gateway.bus.tools.catalogue.groups, dict(tools)))
    return answer(described(tool, of.get(name, ())))


def _search(request: Request) -> Search:
    query = request.query_params
    unknown = sorted(query.keys() - _KNOWN)
    if unknown:
        raise Problem(422, "invalid_query", f"there is no parameter {unknown[0]!r} (there are: {', '.join(sorted(_KNOWN))})")
    said = query.get("available")
    if said not in {None, "true", "false"}:
        raise Problem(422, "invalid_query", f"available is true or false, not {said!r}")
    return Search(
        frozenset(query.getlist("category")),
        frozenset(query.getlist("group")),
        frozenset(query.getlist("runtime")),
        tuple(word for words in query.getlist("q") for word in words.casefold().split()),
        None if said is None else said == "true",
    )


def _limit(request: Request) -> int:
    said = request.query_params.get("limit")
    if said is None:
        return _USUAL
    if not (said.isascii() and said.isdigit() and len(said) < 6 and 1 <= int(said) <= _MOST):
        raise Problem(422, "invalid_query", f"limit is a number from 1 to {_MOST}, not {said[:50]!r}")
    return int(said)


ROUTES = [
    Route("/tools", everything, methods=["GET"]),
    Route("/v1/tools", search, methods=["GET"]),
    Route("/v1/tools/{name:path}", describe, methods=["GET"]),
]
