"""Answer which forms of tools were approved, and take an operator's decisions about them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus.broker.pins import PinnedTool
from toolbus.bus.support.display import one_line
from toolbus.edges.gateway.gateway import gateway_of
from toolbus.edges.gateway.page.changing import asked, log_action, operating
from toolbus.edges.gateway.page.rows import shown
from toolbus.platform.review import Review, reviewed
from toolbus.platform.store import Records

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


async def pins(request: Request) -> Response:
    """Answer every tool with the decision about it."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    async with operating(gateway) as admin:
        records = await Records(admin).all()
        waiting = [_waiting(reviewed(tool, records.tools.get(name))) for name, tool in records.pending.items()]
        return shown([*waiting, *(_document(each) for each in await admin.pins.all())])


async def approve(request: Request) -> Response:
    """Approve a tool in the form that was shown."""
    gateway, principal, given = await asked(request, Decision)
    async with operating(gateway) as admin:
        if given.pending:
            # Without a digest, it could be another form than the one that was shown.
            tool = await Records(admin).approve(given.name, digest=given.digest or "none", by=principal.name, reason=given.reason)
            found = _waiting(reviewed(tool, tool)) | {"state": "approved"}
        else:
            found = _document(await admin.pins.approve(given.name, by=principal.name, reason=given.reason, digest=given.digest))
    log_action("approve", principal, given.name)
    return shown(found)


async def reject(request: Request) -> Response:
    """Withhold a tool in every form; of a recorded tool that waits, remove what waits."""
    gateway, principal, given = await asked(request, Decision)
    async with operating(gateway) as admin:
        if given.pending:
            await Records(admin).reject(given.name, digest=given.digest or "none")
            found: dict[str, Any] = {"name": given.name, "state": "rejected"}
        else:
            found = _document(await admin.pins.reject(given.name, by=principal.name, reason=given.reason))
    log_action("reject", principal, given.name)
    return shown(found)


def _waiting(review: Review) -> dict[str, Any]:
    """Return a recorded tool that waits for approval, in the form of the others."""
    said = [f"rights: {review.rights}", *(f"{each.field}: {one_line(_text(each.after), _MOST_VALUE)}" for each in review.changes)]
    tool = PinnedTool(review.tool_id, "unpinned", review.tool_id, review.digest, changes=tuple(said), by=review.made_by)
    return {**_document(tool), "state": "pending"}


def _text(value: object) -> str:
    return "(gone)" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _document(tool: PinnedTool) -> dict[str, Any]:
    return msgspec.structs.asdict(tool)


ROUTES = [
    Route("/ui/pins", pins),
    Route("/ui/pins/approve", approve, methods=["POST"]),
    Route("/ui/pins/reject", reject, methods=["POST"]),
]
