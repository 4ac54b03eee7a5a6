"""Keep groups of tools: ``/v1/groups``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus.client.tools.groups import ToolGroup, groups_of
from toolbus.edges.gateway.bodies import Problem, answer, read, require_json
from toolbus.edges.gateway.gateway import Gateway, gateway_of
from toolbus.edges.gateway.options import Principal

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


async def every(request: Request) -> Response:
    """Answer the groups, sorted by id."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    return answer({"groups": list(_groups(gateway, principal).values())})


async def group(request: Request) -> Response:
    """Answer, store or delete one group; one route for all methods, so that a wrong one is told of all of them."""
    return await {"PUT": put, "DELETE": delete}.get(request.method, one)(request)


async def one(request: Request) -> Response:
    """Answer one group."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request)
    group_id = request.path_params["id"]
    found = _groups(gateway, principal).get(group_id)
    if found is None:
        raise Problem(404, "not_found", f"there is no group {group_id!r}", code="unknown_group")
    return answer(found)


async def put(request: Request) -> Response:
    """Store a group, in place of one with the same id: 201 for a new one, else 200."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request, "operate")
    require_json(request)
    group_id = _valid(request.path_params["id"])
    body = await read(request, NewGroup)
    wrong = [name for name in body.usage_order if name not in body.tool_ids]
    if wrong:
        raise Problem(422, "invalid_body", f"usage_order has {wrong[0]!r}, which is not among tool_ids")
    await gateway.reachable()
    stored = gateway.bus.tools.catalogue.groups
    known, group = group_id in stored, ToolGroup(group_id, *msgspec.structs.astuple(body))
    await gateway.bus.put(f"group/{group_id}", msgspec.json.encode(group))
    await _seen(gateway, lambda: gateway.bus.tools.catalogue.groups.get(group_id) == group)
    return answer(_groups(gateway, principal).get(group_id) or group, 200 if known else 201)


async def delete(request: Request) -> Response:
    """Delete a group that is stored; one that tools name goes with the tools."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "operate")
    group_id = _valid(request.path_params["id"])
    await gateway.reachable()
    if not await gateway.bus.delete(f"group/{group_id}"):
        raise Problem(404, "not_found", f"no group {group_id!r} is stored", code="unknown_group")
    await _seen(gateway, lambda: group_id not in gateway.bus.tools.catalogue.groups)
    return Response(status_code=204)


def _groups(gateway: Gateway, principal: Principal) -> dict[str, ToolGroup]:
    """Return the groups that a principal may see: those with a tool that it may see, and, if it sees all tools, all of them."""
    found = groups_of(gateway.bus.tools.catalogue.groups, dict(principal.sees(gateway.bus)))
    if principal.groups is None and principal.tools is None:
        return found
    return {name: group for name, group in found.items() if group.tool_ids}


def _valid(id: str) -> str:
    if _ID(id) is None:
        raise Problem(422, "invalid_path", "the id of a group has 1 to 64 letters, digits, '_', '.' and '-'")
    return id


async def _seen(gateway: Gateway, condition: Callable[[], bool]) -> None:
    """Wait until this process knows of its own change, so that its next answer has it."""
    try:
        async with asyncio.timeout(_SEEN):
            await gateway.bus.tools.catalogue.wait(condition)
    except TimeoutError:
        return


ROUTES = [
    Route("/v1/groups", every, methods=["GET"]),
    Route("/v1/groups/{id:path}", group, methods=["GET", "PUT", "DELETE"]),
]
