"""``Operation``: one row of the table of what the gateway answers, from which its routes and its OpenAPI document come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toolbus.edges.gateway.bodies import Problem, read, require_json
from toolbus.edges.gateway.gateway import Gateway, check_query, gateway_of
from toolbus.edges.gateway.options import Permission, Principal

B = TypeVar("B")
Q = TypeVar("Q", bound=msgspec.Struct)

_ANYBODY = Principal("", may=frozenset())


class Admitted(msgspec.Struct, Generic[B], frozen=True):
    """A request that was admitted and read.

    Attributes:
        principal: who sent it; for what is open to everybody, one without a permission.
        body: of the type that the operation reads.
        query: the parameters, of the type that the operation reads.
    """

    request: Request
    gateway: Gateway
    principal: Principal
    body: B
    query: Any


class Operation(msgspec.Struct, frozen=True):
    """One method of a path.

    Attributes:
        method, path: as in a route of Starlette.
        handler: answers; its name is the operation's id.
        summary: for the OpenAPI document; None for what it leaves out.
        may: the permissions of which the sender needs one; empty for what is open to everybody.
        body: the type of the JSON body; None when none is read.
        query: the type whose fields are the parameters; those that are collections may be repeated.
        own_page: whether a page of another site is refused, see ``require_own_page``.
        answers: the type of the answer; None for none.
        media_type: of the answer.
        statuses: of the answer.
        problems: statuses of failures, beside those that follow from the rest.
        headers: of the answer, each with its description.
        calls: whether it makes a call, so that it takes the headers of calls, and answers events to those who ask for them.
    """

    method: str
    path: str
    handler: Callable[[Admitted[Any]], Awaitable[Response]]
    summary: str | None
    may: tuple[Permission, ...] = ("call",)
    body: Any = None
    query: type[msgspec.Struct] | None = None
    own_page: bool = False
    answers: Any = None
    media_type: str = "application/json"
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    headers: Mapping[str, str] = {}
    calls: bool = False

    async def answer(self, request: Request) -> Response:
        """Return the answer to a request.

        Raises:
            Problem: the sender may not ask for it, or the request is wrong, or the handler refuses it.
        """
        gateway = gateway_of(request)
        if self.own_page:
            require_own_page(request)
        known = () if self.query is None else self.query.__struct_fields__
        principal = _ANYBODY
        if self.may:
            principal = await gateway.admitted(request, *self.may, query=known)
        else:
            check_query(request, known)
        query = None if self.query is None else parameters_of(request, self.query)
        body: Any = None
        if self.body is not None:
            require_json(request)
            body = await read(request, self.body)
        return await self.handler(Admitted(request, gateway, principal, body, query))


def parameters_of(request: Request, type: type[Q]) -> Q:
    """Return the parameters of a query.

    Raises:
        Problem: 422, a value is wrong, or there are several of what is there once.
    """
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(type):
        found = request.query_params.getlist(field.name)
        if isinstance(field.default, (frozenset, tuple)):
            values[field.name] = found
        elif len(found) > 1:
            raise Problem(422, "invalid_query", f"{field.name} is given more than once")
        elif found:
            values[field.name] = found[0]
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_query", str(error)) from None


def require_own_page(request: Request) -> None:
    """Check who made a request that changes something.

    Browsers say which site's page made a request. A gateway that is open on loopback has no token that another site would lack.

    Raises:
        Problem: 403, a page of another site; 415, the body is not said to be JSON.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        raise Problem(403, "forbidden", f"a page of another site ({site}) may not ask for this")
    require_json(request)


class _Endpoint:
    """Answers the requests for a path. It is no function, which would cost calls, of which there are thousands a second, twice as much."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response = await self._operations["GET" if scope["method"] == "HEAD" else scope["method"]].answer(request)
        await response(scope, receive, send)


def routes_of(operations: Sequence[Operation]) -> list[Route]:
    """Return the routes: one for each path, so that a wrong method is told of all that there are."""
    paths: dict[str, dict[str, Operation]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method] = each
    return [Route(path, _Endpoint(found), methods=[*found]) for path, found in paths.items()]
