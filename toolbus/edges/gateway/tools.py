"""List, find and describe tools: ``GET /tools``, ``GET /v1/tools`` and ``GET /v1/tools/{name}``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus.client.tools.definitions import FORMATS, Format, description_of
from toolbus.bus.client.tools.groups import groups_of, memberships, runtime_of
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.values.encoding import encode_data
from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.gateway import gateway_of


def described(tool: Tool, groups: Iterable[str]) -> dict[str, Any]:
    """Return what there is to know about a tool, for ``/v1/tools``."""
    about = tool.descriptor
    output = about.extensions.get("output_schema")
    return {
        "name": tool.name,
        "description": description_of(tool),
        "parameters": tool.parameters,
        "output_schema": output if isinstance(output, dict) else {},
        "service": tool.service,
        "category": tool.category,
        "groups": list(groups),
        "runtime": runtime_of(tool),
        "effect": about.effect,
        "timeout": about.timeout,
        "confirm": about.confirm,
        "external": about.external,
        "available": tool.available,
    }


class Search(msgspec.Struct, frozen=True):
    """The tools that are looked for; an empty condition is none.

    Attributes:
        names: any of these.
        categories: any of these.
        groups: in any of these.
        runtimes: any of these.
        words: all of them, in name, description or category, in upper or lower case.
        available: whether a live worker serves it; None for both.
    """

    names: frozenset[str] = frozenset()
    categories: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    runtimes: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    available: bool | None = None

    def found(self, tools: Mapping[str, Tool], of: Mapping[str, list[str]]) -> Iterator[Tool]:
        """Yield the tools that meet all conditions, sorted by name."""
        for tool in tools.values():
            if self.available is not None and tool.available != self.available:
                continue
            if self.names and tool.name not in self.names:
                continue
            if self.categories and tool.category not in self.categories:
                continue
            if self.groups and self.groups.isdisjoint(of.get(tool.name, ())):
                continue
            if self.runtimes and runtime_of(tool) not in self.runtimes:
                continue
            if self.words and not self._has_words(tool):
                continue
            yield tool

    def _has_words(self, tool: Tool) -> bool:
        text = f"{tool.name}\n{tool.descriptor.description}\n{tool.category}".casefold()
        return all(word in text for word in self.words)


_MOST = 1_000
_USUAL = 100
_REPEATED = frozenset({"name", "category", "group", "runtime", "q"})
_KNOWN = _REPEATED | {"available", "limit", "cursor", "format", "strict", "namespaces"}


async def everything(request: Request) -> Response:
    """Answer all runtimes, groups and tools."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    return answer(await gateway.supply.of(principal))


async def search(request: Request) -> Response:
    """Answer a page of the tools that the query looks for; with ``format``, their definitions for a model."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request, query=_KNOWN)
    query = request.query_params
    twice = sorted(name for name in query.keys() - _REPEATED if len(query.getlist(name)) > 1)
    if twice:
        raise Problem(422, "invalid_query", f"{twice[0]} is given more than once")
    wanted_format, limit, cursor = _format(query), _limit(query), query.get("cursor", "")
    wanted = _search(query, wanted_format)
    view = principal.sees(gateway.bus)
    tools = dict(view)
    of = memberships(groups_of(gateway.bus.tools.catalogue.groups, tools))
    found = list(wanted.found(tools, of))
    rest = [tool for tool in found if tool.name > cursor] if cursor else found
    page = rest[:limit]
    after = page[-1].name if len(page) < len(rest) else None
    if wanted_format is not None:
        return _definitions(request, wanted_format, view, page, after)
    return answer({"tools": [described(tool, of.get(tool.name, ())) for tool in page], "total": len(found), "next": after})


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


def _definitions(request: Request, format: Format, view: ToolView, tools: Sequence[Tool], after: str | None) -> Response:
    """Answer the definitions of these tools as a list; ``If-None-Match`` spares what has not changed, ``Link`` leads to the next page."""
    query = request.query_params
    namespaces = _flag(query, "namespaces")
    chosen = view.filter(names=[tool.name for tool in tools])
    document = encode_data(chosen.definitions(format, strict=bool(_flag(query, "strict")), namespaces=namespaces is not False))
    tag = f'"{hashlib.blake2b(document, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if after is not None:
        headers["Link"] = f'<?{request.url.include_query_params(cursor=after).query}>; rel="next"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(document, headers=headers, media_type="application/json")


def _format(query: QueryParams) -> Format | None:
    """Return the format of the definitions that a query asks for, or None.

    Raises:
        Problem: 422, there is no such format.
    """
    said = query.get("format")
    if said is None or said in FORMATS:
        return said
    raise Problem(422, "invalid_query", f"there is no format {said[:50]!r} (there are: {', '.join(FORMATS)})")


def _search(query: QueryParams, format: Format | None) -> Search:
    """Return the search that a query asks for; with a format, one of live tools.

    Raises:
        Problem: 422, a value is wrong, or means nothing beside another.
    """
    available = _flag(query, "available")
    if format is None and _flag(query, "strict") is not None:
        raise Problem(422, "invalid_query", "strict is of definitions; say format, too")
    if format != "responses" and _flag(query, "namespaces") is not None:
        raise Problem(422, "invalid_query", "namespaces are of format=responses alone")
    if format is not None and available is False:
        raise Problem(422, "invalid_query", "a model is told of tools that are available; leave out available=false or format")
    return Search(
        frozenset(query.getlist("name")),
        frozenset(query.getlist("category")),
        frozenset(query.getlist("group")),
        frozenset(query.getlist("runtime")),
        tuple(word for words in query.getlist("q") for word in words.casefold().split()),
        available if format is None else True,
    )


def _limit(query: QueryParams) -> int | None:
    """Return the most tools of a page; None for all, which a model is told of unless the query says otherwise."""
    said = query.get("limit")
    if said is None:
        return None if "format" in query else _USUAL
    if not (said.isascii() and said.isdigit() and len(said) < 6 and 1 <= int(said) <= _MOST):
        raise Problem(422, "invalid_query", f"limit is a number from 1 to {_MOST}, not {said[:50]!r}")
    return int(said)


def _flag(query: QueryParams, name: str) -> bool | None:
    said = query.get(name)
    if said not in {None, "true", "false"}:
        raise Problem(422, "invalid_query", f"{name} is true or false, not {said[:50]!r}")
    return None if said is None else said == "true"


ROUTES = [
    Route("/tools", everything, methods=["GET"]),
    Route("/v1/tools", search, methods=["GET"]),
    Route("/v1/tools/{name:path}", describe, methods=["GET"]),
]
