"""Answer which forms of tools were approved, and take an operator's decisions about them."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.broker.pins.pins import PinnedTool
from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.page.changing import asked, log_action, operating
from toolbus.gateway.page.reading import shown


class Decision(msgspec.Struct, forbid_unknown_fields=True):
    """A decision about a tool; ``digest`` is that of the form that was shown."""

    name: str
    digest: str = ""
    reason: str = ""


async def pins(request: Request) -> Response:
    """Answer every tool with the decision about it."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    async with operating(gateway) as admin:
        return shown([_document(each) for each in await admin.pins.all()])


async def approve(request: Request) -> Response:
    """Approve a tool in the form that was shown."""
    gateway, principal, given = await asked(request, Decision)
    async with operating(gateway) as admin:
        found = await admin.pins.approve(given.name, by=principal.name, reason=given.reason, digest=given.digest)
    log_action("approve", principal, given.name)
    return shown(_document(found))


async def reject(request: Request) -> Response:
    """Withhold a tool in every form."""
    gateway, principal, given = await asked(request, Decision)
    async with operating(gateway) as admin:
        found = await admin.pins.reject(given.name, by=principal.name, reason=given.reason)
    log_action("reject", principal, given.name)
    return shown(_document(found))


def _document(tool: PinnedTool) -> dict[str, Any]:
    return msgspec.structs.asdict(tool)


ROUTES = [
    Route("/ui/pins", pins),
    Route("/ui/pins/approve", approve, methods=["POST"]),
    Route("/ui/pins/reject", reject, methods=["POST"]),
]
