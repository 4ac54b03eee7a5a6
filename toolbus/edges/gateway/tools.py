"""List, find and describe tools and their groups."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from toolbus.bus.client.tools import tool as bus_tools
from toolbus.bus.client.tools.definitions import Format, description_of, output_schema
from toolbus.bus.client.tools.tool import ToolGroup, groups_of, memberships, runtime_of
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.encoding import encode_data
from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.operations import Admitted


class Tool(msgspec.Struct, frozen=True):
    """Everything that is known of a tool."""

    name: str
    description: str
    parameters: dict[str, Any]
    output_schema: dict[str, Any]
    service: str
    category: str
    groups: tuple[str, ...]
    runtime: str
    effect: Literal["", "read", "idempotent", "once"]
    timeout: float
    confirm: bool
    external: bool
    available: bool

    @classmethod
    def of(cls, tool: bus_tools.Tool, groups: Iterable[str]) -> Tool:
        """Return what there is to know about a tool in these groups."""
        about = tool.descriptor
        return cls(
            tool.name,
            description_of(tool),
            tool.parameters,
            output_schema(about) or {},
            tool.service,
            tool.category,
            tuple(groups),
            runtime_of(tool),
            about.effect,
            about.timeout,
            about.confirm,
            about.external,
            tool.available,
        )


class Tools(msgspec.Struct, frozen=True):
    """A page of tools, and the cursor of the next one."""

    tools: list[Tool]
    total: int
    next: str | None


class Group(ToolGroup, frozen=True):
    """A group of tools."""


class Groups(msgspec.Struct, frozen=True):
    """All groups."""

    groups: list[Group]


class Platform(msgspec.Struct, frozen=True):
    """All runtimes, groups and tools."""

    backend_runtimes: list[dict[str, Any]]
    groups: list[Group]
    tools: list[dict[str, Any]]


_MOST = 1_000
_USUAL = 100
_Limit = Annotated[int, msgspec.Meta(ge=1, le=_MOST)]
_ANY = msgspec.Meta(description="Any of these.")


class Search(msgspec.Struct, frozen=True):
    """The tools that a query looks for; an empty condition is none."""

    name: Annotated[frozenset[str], _ANY] = frozenset()
    q: Annotated[tuple[str, ...], msgspec.Meta(description="Words that the name, description or category has.")] = ()
    category: Annotated[frozenset[str], _ANY] = frozenset()
    group: Annotated[frozenset[str], msgspec.Meta(description="In any of these.")] = frozenset()
    runtime: Annotated[frozenset[str], _ANY] = frozenset()
    available: Annotated[bool | None, msgspec.Meta(description="Whether a live worker serves it.")] = None
    limit: Annotated[_Limit | None, msgspec.Meta(description=f"Most tools of a page; else {_USUAL}, with `format` all.")] = None
    cursor: Annotated[str, msgspec.Meta(description="`next` of the page before.")] = ""
    format: Annotated[Format | None, msgspec.Meta(description="Answer definitions of live tools for a model, in this format.")] = None
    strict: Annotated[bool | None, msgspec.Meta(description="Definitions that a provider can enforce; with `format`.")] = None
    namespaces: Annotated[bool | None, msgspec.Meta(description="Gather the tools of a group; with `format=responses`.")] = None

    def check(self) -> None:
        """Refuse what means nothing beside another parameter.

        Raises:
            Problem: 422.
        """
        if self.format is None and self.strict is not None:
            raise Problem(422, "invalid_query", "strict is of definitions; say format, too")
        if self.format != "responses" and self.namespaces is not None:
            raise Problem(422, "invalid_query", "namespaces are of format=responses alone")
        if self.format is not None and self.available is False:
            raise Problem(422, "invalid_query", "a model is told of tools that are available; leave out available=false or format")

    def found(self, tools: Mapping[str, bus_tools.Tool], of: Mapping[str, list[str]]) -> Iterator[bus_tools.Tool]:
        """Yield the tools that meet all conditions, sorted by name."""
        available = self.available if self.format is None else True
        words = [word for each in self.q for word in each.casefold().split()]
        for tool in tools.values():
            text = f"{tool.name}\n{tool.descriptor.description}\n{tool.category}".casefold() if words else ""
            if (
                available in {None, tool.available}
                and (not self.name or tool.name in self.name)
                and (not self.category or tool.category in self.category)
                and (not self.group or not self.group.isdisjoint(of.get(tool.name, ())))
                and (not self.runtime or runtime_of(tool) in self.runtime)
                and all(word in text for word in words)
            ):
                yield tool


async def everything(asked: Admitted[None]) -> Response:
    """Answer all runtimes, groups and tools."""
    return answer(await asked.gateway.supply.of(asked.principal))


async def search_tools(asked: Admitted[None]) -> Response:
    """Answer a page of the tools that the query looks for; with ``format``, their definitions for a model."""
    query: Search = asked.query
    query.check()
    view = asked.principal.sees(asked.gateway.bus)
    tools = dict(view)
    of = memberships(groups_of(asked.gateway.bus.tools.catalogue.groups, tools))
    found = list(query.found(tools, of))
    rest = [tool for tool in found if tool.name > query.cursor]
    page = rest[: query.limit or (_USUAL if query.format is None else None)]
    after = page[-1].name if len(page) < len(rest) else None
    if query.format is not None:
        return _definitions(asked.request, query, view, page, after)
    return answer(Tools([Tool.of(tool, of.get(tool.name, ())) for tool in page], len(found), after))


async def describe_tool(asked: Admitted[None]) -> Response:
    """Answer one tool."""
    tools, name = asked.principal.sees(asked.gateway.bus), asked.request.path_params["name"]
    tool = tools.get(name)
    if tool is None and name.endswith("/invoke"):
        raise Problem(405, "wrong_method", "a tool is called with POST", {"Allow": "POST"})
    if tool is None:
        raise Problem(404, "not_found", f"there is no tool {name!r}", code="unknown_tool")
    of = memberships(groups_of(asked.gateway.bus.tools.catalogue.groups, dict(tools)))
    return answer(Tool.of(tool, of.get(name, ())))


def _definitions(request: Request, query: Search, view: ToolView, tools: Sequence[bus_tools.Tool], after: str | None) -> Response:
    """Answer the definitions of these tools as a list; ``If-None-Match`` spares what has not changed, ``Link`` leads to the next page."""
    chosen = view.filter(names=[tool.name for tool in tools])
    made = chosen.definitions(query.format or "bare", strict=bool(query.strict), namespaces=query.namespaces is not False)
    document = encode_data(made)
    tag = f'"{hashlib.blake2b(document, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if after is not None:
        headers["Link"] = f'<?{request.url.include_query_params(cursor=after).query}>; rel="next"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(document, headers=headers, media_type="application/json")


_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
# Seconds until this process's own view has a change.
_SEEN = 2.0


class NewGroup(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``PUT /v1/groups/{id}``; see ``ToolGroup``."""

    name: str = ""
    description: str = ""
    category: str = ""
    tool_ids: tuple[str, ...] = ()
    usage_order: tuple[str, ...] = ()
    usage_example: str = ""


async def groups(asked: Admitted[None]) -> Response:
    """Answer the groups, sorted by id."""
    return answer({"groups": list(_groups(asked).values())})


async def group(asked: Admitted[None]) -> Response:
    """Answer one group."""
    group_id = asked.request.path_params["id"]
    found = _groups(asked).get(group_id)
    if found is None:
        raise Problem(404, "not_found", f"there is no group {group_id!r}", code="unknown_group")
    return answer(found)


async def put_group(asked: Admitted[NewGroup]) -> Response:
    """Store a group, in place of one with the same id: 201 for a new one, else 200."""
    gateway, body = asked.gateway, asked.body
    group_id = _valid(asked.request.path_params["id"])
    wrong = [name for name in body.usage_order if name not in body.tool_ids]
    if wrong:
        raise Problem(422, "invalid_body", f"usage_order has {wrong[0]!r}, which is not among tool_ids")
    await gateway.reachable()
    stored = gateway.bus.tools.catalogue.groups
    known, group = group_id in stored, ToolGroup(group_id, *msgspec.structs.astuple(body))
    await gateway.bus.put(f"group/{group_id}", msgspec.json.encode(group))
    await _seen(gateway, lambda: gateway.bus.tools.catalogue.groups.get(group_id) == group)
    return answer(_groups(asked).get(group_id) or group, 200 if known else 201)


async def delete_group(asked: Admitted[None]) -> Response:
    """Delete a group that is stored; one that tools name goes with the tools."""
    gateway = asked.gateway
    group_id = _valid(asked.request.path_params["id"])
    await gateway.reachable()
    if not await gateway.bus.delete(f"group/{group_id}"):
        raise Problem(404, "not_found", f"no group {group_id!r} is stored", code="unknown_group")
    await _seen(gateway, lambda: group_id not in gateway.bus.tools.catalogue.groups)
    return Response(status_code=204)


def _groups(asked: Admitted[Any]) -> dict[str, ToolGroup]:
    """Return the groups that a principal may see: those with a tool that it may see, and, if it sees all tools, all of them."""
    bus, principal = asked.gateway.bus, asked.principal
    found = groups_of(bus.tools.catalogue.groups, dict(principal.sees(bus)))
    if principal.sees_all:
        return found
    return {name: group for name, group in found.items() if group.tool_ids}


def _valid(id: str) -> str:
    if _ID(id) is None:
        raise Problem(422, "invalid_path", "the id of a group has 1 to 64 letters, digits, '_', '.' and '-'")
    return id


async def _seen(gateway: Gateway, condition: Callable[[], bool]) -> None:
    """Wait until this process knows of its own change, so that its next answer has it."""
    await at_most(_SEEN, gateway.bus.tools.catalogue.wait(condition))
