"""Answer what the page asks: what it shows when somebody opens it, and what an operator does on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import asdict
from starlette.responses import Response

from toolbus.bus import telemetry
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.registry.pins import PinnedTool
from toolbus.bus.broker.server.access import is_forbidden
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.support.display import one_line
from toolbus.bus.values.confirmations import ConfirmationAnswer
from toolbus.bus.values.results import BrokerError, ConfigurationError, ConfirmationClosed
from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.operations import Admitted, Operation
from toolbus.edges.gateway.options import Permission, Principal
from toolbus.edges.gateway.page.board import events
from toolbus.edges.gateway.tools import Tool
from toolbus.platform.review import Review, reviewed
from toolbus.platform.store import Records

_MOST_SHOWN = 65_536
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def shown(document: Any) -> Response:
    """Return a JSON answer that no cache keeps."""
    return answer(document, headers=_HEADERS)


async def tool(asked: Admitted[None]) -> Response:
    """Answer everything that is known of a tool that the principal sees."""
    found = asked.principal.sees(asked.gateway.bus).get(asked.request.path_params["name"])
    if found is None:
        raise Problem(404, "not_found", "there is no such tool, or not for you")
    about = found.descriptor
    shown_as = {"description": about.description[:_MOST_SHOWN], "owner": found.owner, "digest": found.digest}
    return shown(asdict(Tool.of(found, about.groups)) | shown_as)


async def dead_letter(asked: Admitted[None]) -> Response:
    """Answer a dead letter with its request."""
    try:
        async with Admin(asked.gateway.settings) as admin:
            found = await admin.dead_letters.get(asked.request.path_params["queue"], asked.request.path_params["id"])
    except ConfigurationError as error:
        raise Problem(404, "not_found", str(error)) from None
    # A request that can't be read is shown as text, as far as possible.
    document: Any = found.document[:_MOST_SHOWN].decode("utf-8", "backslashreplace") if found.request is None else found.request
    about = {name: getattr(found, name) for name in ("id", "queue", "reason", "attempts", "error")}
    return shown({**about, "request": document})


async def confirmation(asked: Admitted[None]) -> Response:
    """Answer a request that waits for a person, with all of its arguments."""
    try:
        found = await asked.gateway.bus.confirmations.get(asked.request.path_params["id"])
        return shown(found.visible())
    except ConfirmationClosed as error:
        raise Problem(404, "not_found", str(error)) from None


async def graph(asked: Admitted[None]) -> Response:
    """Answer the published toolkit graph as the page draws it."""
    # Laying out a large graph takes a while, and the event loop has streams to serve.
    return shown(await asyncio.to_thread(_graph, asked.gateway.bus.tools.catalogue))


def _graph(catalogue: Catalogue) -> dict[str, Any]:
    try:
        from toolbus.toolkit.live import published  # noqa: PLC0415 - its packages come with an extra
        from toolbus.toolkit.picture import MOST, picture  # noqa: PLC0415
    except ImportError:
        return {"missing": "pip install 'toolbus[toolkit]'"}
    return picture(published(catalogue), MOST)


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


async def redrive(asked: Admitted[Letter]) -> Response:
    """Run a dead letter again as a new call."""
    letter = asked.body
    async with operating(asked, "redrive", f"{letter.queue} {letter.id}") as admin:
        limit = await admin.queue_limit(letter.queue)
        call = await admin.dead_letters.redrive(letter.queue, letter.id, limit=limit)
    return shown({"call": call})


async def drop(asked: Admitted[Letter]) -> Response:
    """Delete a dead letter."""
    letter = asked.body
    async with operating(asked, "drop", f"{letter.queue} {letter.id}") as admin:
        await admin.dead_letters.drop(letter.queue, letter.id)
    return shown({})


async def settle(asked: Admitted[Answer]) -> Response:
    """Allow or deny a call that waits for a person."""
    given = asked.body
    try:
        said = ConfirmationAnswer(given.allowed, given.reason, asked.principal.name, given.digest)
        await asked.gateway.bus.confirmations.answer(given.id, said)
    except ConfirmationClosed as error:
        raise Problem(409, "conflict", str(error)) from None
    log_action("allow" if given.allowed else "deny", asked.principal, given.id)
    return shown({})


async def pause(asked: Admitted[Service]) -> Response:
    """Make the workers of a service stop taking requests."""
    given = asked.body
    if given.service not in asked.gateway.bus.services:
        raise Problem(404, "not_found", "there is no such service")
    async with operating(asked, "pause", given.service) as admin:
        await admin.pause(given.service)
    return shown({})


async def resume(asked: Admitted[Service]) -> Response:
    """Let the workers of a paused service take requests again."""
    given = asked.body
    async with operating(asked, "resume", given.service) as admin:
        lifted = await admin.resume(given.service)
    return shown({"lifted": lifted})


@asynccontextmanager
async def operating(asked: Admitted[Any], action: str = "", on: str = "") -> AsyncIterator[Admin]:
    """Connect as an operator within the ``async with``; what was done in it is logged, if it has a name.

    Raises:
        Problem: 403, this gateway's user lacks a role; 409, what is asked for can't be done.
        BrokerError: the server can't be reached.
    """
    try:
        async with Admin(asked.gateway.settings) as admin:
            yield admin
    except ConfigurationError as error:
        raise Problem(409, "conflict", str(error)) from None
    except BrokerError as error:
        if is_forbidden(error):
            raise Problem(403, "forbidden", _NO_ROLE) from None
        raise
    if action:
        log_action(action, asked.principal, on)


def log_action(action: str, principal: Principal, what: str) -> None:
    """Log what somebody changed on the page."""
    telemetry.log.info("page.operated", action=action, by=principal.name, on=what)


_MOST_VALUE = 200


class Decision(msgspec.Struct, forbid_unknown_fields=True):
    """A decision about a tool.

    Attributes:
        digest: of the form that was shown.
        pending: whether it is about a recorded tool that waits for approval.
    """

    name: str
    digest: str = ""
    reason: str = ""
    pending: bool = False


async def pins(asked: Admitted[None]) -> Response:
    """Answer every tool with the decision about it."""
    async with operating(asked) as admin:
        records = await Records(admin).all()
        waiting = [_waiting(reviewed(tool, records.tools.get(name))) for name, tool in records.pending.items()]
        return shown([*waiting, *(asdict(each) for each in await admin.pins.all())])


async def approve(asked: Admitted[Decision]) -> Response:
    """Approve a tool in the form that was shown."""
    given = asked.body
    async with operating(asked, "approve", given.name) as admin:
        if given.pending:
            # Without a digest, it could be another form than the one that was shown.
            tool = await Records(admin).approve(given.name, digest=given.digest or "none", by=asked.principal.name, reason=given.reason)
            found = _waiting(reviewed(tool, tool)) | {"state": "approved"}
        else:
            found = asdict(await admin.pins.approve(given.name, by=asked.principal.name, reason=given.reason, digest=given.digest))
    return shown(found)


async def reject(asked: Admitted[Decision]) -> Response:
    """Withhold a tool in every form; of a recorded tool that waits, remove what waits."""
    given = asked.body
    async with operating(asked, "reject", given.name) as admin:
        if given.pending:
            await Records(admin).reject(given.name, digest=given.digest or "none")
            found: dict[str, Any] = {"name": given.name, "state": "rejected"}
        else:
            found = asdict(await admin.pins.reject(given.name, by=asked.principal.name, reason=given.reason))
    return shown(found)


def _waiting(review: Review) -> dict[str, Any]:
    """Return a recorded tool that waits for approval, in the form of the others."""
    said = [f"rights: {review.rights}", *(f"{each.field}: {one_line(_text(each.after), _MOST_VALUE)}" for each in review.changes)]
    tool = PinnedTool(review.tool_id, "unpinned", review.tool_id, review.digest, changes=tuple(said), by=review.made_by)
    return {**asdict(tool), "state": "pending"}


def _text(value: object) -> str:
    return "(gone)" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


_READERS: tuple[Permission, ...] = ("call", "observe")

OPERATIONS = (
    Operation("GET", "/ui/events", events, None, may=_READERS),
    Operation("POST", "/ui/dead/redrive", redrive, None, may=("operate",), body=Letter, own_page=True),
    Operation("POST", "/ui/dead/drop", drop, None, may=("operate",), body=Letter, own_page=True),
    Operation("POST", "/ui/confirmations/answer", settle, None, may=("operate",), body=Answer, own_page=True),
    Operation("POST", "/ui/services/pause", pause, None, may=("operate",), body=Service, own_page=True),
    Operation("POST", "/ui/services/resume", resume, None, may=("operate",), body=Service, own_page=True),
    Operation("GET", "/ui/tools/{name}", tool, None, may=_READERS),
    Operation("GET", "/ui/dead/{queue:path}/{id}", dead_letter, None, may=("observe",)),
    Operation("GET", "/ui/confirmations/{id}", confirmation, None, may=("observe",)),
    Operation("GET", "/ui/graph", graph, None, may=("observe",)),
    Operation("GET", "/ui/pins", pins, None, may=("observe",)),
    Operation("POST", "/ui/pins/approve", approve, None, may=("operate",), body=Decision, own_page=True),
    Operation("POST", "/ui/pins/reject", reject, None, may=("operate",), body=Decision, own_page=True),
)
"""The operations of the page, which no other program is told of; those that change something are for its own requests alone."""
