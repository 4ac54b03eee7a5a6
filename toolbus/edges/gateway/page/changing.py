"""Carry out what an operator does on the page; each action needs the permission to operate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus import telemetry
from toolbus.bus.broker.access import is_forbidden
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.confirmations import ConfirmationAnswer
from toolbus.bus.values.results import BrokerError, ConfigurationError, ConfirmationClosed
from toolbus.edges.gateway.bodies import Problem, read, require_json
from toolbus.edges.gateway.gateway import Gateway, gateway_of
from toolbus.edges.gateway.options import Principal
from toolbus.edges.gateway.page.rows import shown, unreachable


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


T = TypeVar("T")

_NO_ROLE = (
    "the server does not let this gateway do that: its user needs the role approver for approvals, and operator for the rest;"
    " `toolbus secure acl gateway approver` prints the rights"
)


class Letter(msgspec.Struct, forbid_unknown_fields=True):
    """A dead letter: its queue and id."""

    queue: str
    id: str


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer to a request that waits for a person; ``digest`` is that of the request as it was shown."""

    id: str
    allowed: bool
    reason: str = ""
    digest: str = ""


class Service(msgspec.Struct, forbid_unknown_fields=True):
    """A service."""

    service: str


async def redrive(request: Request) -> Response:
    """Run a dead letter again as a new call."""
    gateway, principal, letter = await asked(request, Letter)
    async with operating(gateway) as admin:
        limit = await admin.queue_limit(letter.queue)
        call = await admin.dead_letters.redrive(letter.queue, letter.id, limit=limit)
    log_action("redrive", principal, f"{letter.queue} {letter.id}")
    return shown({"call": call})


async def drop(request: Request) -> Response:
    """Delete a dead letter."""
    gateway, principal, letter = await asked(request, Letter)
    async with operating(gateway) as admin:
        await admin.dead_letters.drop(letter.queue, letter.id)
    log_action("drop", principal, f"{letter.queue} {letter.id}")
    return shown({})


async def settle(request: Request) -> Response:
    """Allow or deny a call that waits for a person."""
    gateway, principal, given = await asked(request, Answer)
    try:
        await gateway.bus.confirmations.answer(given.id, ConfirmationAnswer(given.allowed, given.reason, principal.name, given.digest))
    except ConfirmationClosed as error:
        raise Problem(409, "conflict", str(error)) from None
    except BrokerError as error:
        raise unreachable(error) from None
    log_action("allow" if given.allowed else "deny", principal, given.id)
    return shown({})


async def pause(request: Request) -> Response:
    """Make the workers of a service stop taking requests."""
    gateway, principal, given = await asked(request, Service)
    if given.service not in gateway.bus.services:
        raise Problem(404, "not_found", "there is no such service")
    async with operating(gateway) as admin:
        await admin.pause(given.service)
    log_action("pause", principal, given.service)
    return shown({})


async def resume(request: Request) -> Response:
    """Let the workers of a paused service take requests again."""
    gateway, principal, given = await asked(request, Service)
    async with operating(gateway) as admin:
        lifted = await admin.resume(given.service)
    log_action("resume", principal, given.service)
    return shown({"lifted": lifted})


async def asked(request: Request, type: type[T]) -> tuple[Gateway, Principal, T]:
    """Return the gateway, who asks, and the body.

    Raises:
        Problem: it does not come from the page, or may not operate, or its body is wrong.
    """
    gateway = gateway_of(request)
    require_own_page(request)
    principal = await gateway.admitted(request, "operate")
    return gateway, principal, await read(request, type)


@asynccontextmanager
async def operating(gateway: Gateway) -> AsyncIterator[Admin]:
    """Connect as an operator within the ``async with``.

    Raises:
        Problem: 403, this gateway's user lacks a role; 409, what is asked for can't be done; 503, the server can't be reached.
    """
    try:
        async with Admin(gateway.settings) as admin:
            yield admin
    except ConfigurationError as error:
        raise Problem(409, "conflict", str(error)) from None
    except BrokerError as error:
        if is_forbidden(error):
            raise Problem(403, "forbidden", _NO_ROLE) from None
        raise unreachable(error) from None


def log_action(action: str, principal: Principal, what: str) -> None:
    """Log what somebody changed on the page."""
    telemetry.log.info("page.operated", action=action, by=principal.name, on=what)


ROUTES = [
    Route("/ui/dead/redrive", redrive, methods=["POST"]),
    Route("/ui/dead/drop", drop, methods=["POST"]),
    Route("/ui/confirmations/answer", settle, methods=["POST"]),
    Route("/ui/services/pause", pause, methods=["POST"]),
    Route("/ui/services/resume", resume, methods=["POST"]),
]
