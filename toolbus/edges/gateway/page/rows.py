"""The rows that the page shows, by section and key, and the differences between two states of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.results import BrokerError, ConfigurationError, ConfirmationClosed
from toolbus.bus.watch.views import InstanceView, SessionView, Snapshot
from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.gateway import gateway_of

Sections = dict[str, dict[str, Any]]
"""Rows by key, by section."""

_MOST_TEXT = 240
_MOST_ERROR = 2_000
_MOST_REFUSED = 100
_MOST_RUNNING = 300


class CatalogueRow(msgspec.Struct, frozen=True):
    """A tool in the list of tools; its schema is read when somebody opens it."""

    name: str
    service: str
    text: str
    category: str
    groups: tuple[str, ...]
    available: bool
    digest: str


class InstanceRow(msgspec.Struct, frozen=True):
    """A worker, without what changes while nothing happens."""

    id: str
    answered: bool
    host: str
    pid: int
    version: str
    started: float
    services: tuple[str, ...]
    slots: int
    running: int
    calls: int
    failures: int
    calls_per_s: float


class SessionRow(msgspec.Struct, frozen=True):
    """An open session, and since when none of its calls began."""

    service: str
    user: str
    session: str
    instance: str
    running: int
    since: int


class RefusedRow(msgspec.Struct, frozen=True):
    """A tool that can't be used."""

    name: str
    service: str
    reason: str


def catalogue_row(tool: Tool) -> CatalogueRow:
    """Return a tool's row."""
    text = " ".join(tool.descriptor.description[: 2 * _MOST_TEXT].split())[:_MOST_TEXT]
    return CatalogueRow(tool.name, tool.service, text, tool.category, tool.groups, tool.available, tool.digest)


def sections_of(snapshot: Snapshot, refused: Iterable[RefusedTool]) -> Sections:
    """Return the rows of a snapshot."""
    return {
        "services": {row.id: row for row in snapshot.services},
        "instances": {row.id: _instance(row) for row in snapshot.instances},
        "tools": {f"{row.service} {row.name}": msgspec.structs.replace(row, description="") for row in snapshot.tools},
        "recent": {row.entry: row for row in snapshot.recent},
        "dead": {f"{row.queue} {row.id}": msgspec.structs.replace(row, error=row.error[:_MOST_ERROR]) for row in snapshot.dead},
        "confirmations": {row.id: row.visible() for row in snapshot.confirmations},
        "sessions": {f"{row.service} {row.user} {row.session} {row.instance}": _session(row, snapshot.at) for row in snapshot.sessions},
        "running": {f"{row.instance} {row.id}": row for row in snapshot.running[:_MOST_RUNNING]},
        "refused": {f"{row.service} {row.name}": RefusedRow(*row) for row in list(refused)[:_MOST_REFUSED]},
    }


def changes(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what makes ``after`` of ``before``: by section, the rows to ``set`` and the keys to ``drop``."""
    found: dict[str, Any] = {}
    for section, rows in after.items():
        old = before.get(section, {})
        new = [row for key, row in rows.items() if old.get(key) != row]
        gone = [key for key in old if key not in rows]
        if new or gone:
            found[section] = {"set": new, "drop": gone}
    return found


def _instance(row: InstanceView) -> InstanceRow:
    return InstanceRow(**{name: getattr(row, name) for name in InstanceRow.__struct_fields__})


def _session(row: SessionView, at: float) -> SessionRow:
    return SessionRow(row.service, row.user, row.session, row.instance, row.running, round(at - row.idle))


_MOST_SHOWN = 65_536
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def shown(document: Any) -> Response:
    """Return a JSON answer that no cache keeps."""
    return answer(document, headers=_HEADERS)


def unreachable(error: BrokerError) -> Problem:
    """Return the problem of a server that can't be reached or refuses."""
    return Problem(503, "unavailable", str(error), {"Retry-After": "1"}, retryable=True)


async def tool(request: Request) -> Response:
    """Answer everything that is known of a tool that the principal sees."""
    gateway = gateway_of(request)
    principal = await gateway.admitted(request, "call", "observe")
    found = principal.sees(gateway.bus).get(request.path_params["name"])
    if found is None:
        raise Problem(404, "not_found", "there is no such tool, or not for you")
    about = found.descriptor
    return shown(
        {
            "name": found.name,
            "service": found.service,
            "description": about.description[:_MOST_SHOWN],
            "parameters": found.parameters,
            "category": about.category,
            "groups": about.groups,
            "effect": about.effect,
            "confirm": about.confirm,
            "external": about.external,
            "timeout": about.timeout,
            "owner": found.owner,
            "digest": found.digest,
            "available": found.available,
        }
    )


async def dead_letter(request: Request) -> Response:
    """Answer a dead letter with its request."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    try:
        async with Admin(gateway.settings) as admin:
            found = await admin.dead_letters.get(request.path_params["queue"], request.path_params["id"])
    except ConfigurationError as error:
        raise Problem(404, "not_found", str(error)) from None
    except BrokerError as error:
        raise unreachable(error) from None
    # A request that can't be read is shown as text, as far as possible.
    document: Any = found.document[:_MOST_SHOWN].decode("utf-8", "backslashreplace") if found.request is None else found.request
    return shown(
        {
            "id": found.id,
            "queue": found.queue,
            "reason": found.reason,
            "attempts": found.attempts,
            "error": found.error,
            "request": document,
        }
    )


async def confirmation(request: Request) -> Response:
    """Answer a request that waits for a person, with all of its arguments."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    try:
        found = await gateway.bus.confirmations.get(request.path_params["id"])
        return shown(found.visible())
    except ConfirmationClosed as error:
        raise Problem(404, "not_found", str(error)) from None
    except BrokerError as error:
        raise unreachable(error) from None


async def graph(request: Request) -> Response:
    """Answer the published toolkit graph as the page draws it."""
    gateway = gateway_of(request)
    await gateway.admitted(request, "observe")
    # Laying out a large graph takes a while, and the event loop has streams to serve.
    return shown(await asyncio.to_thread(_graph, gateway.bus.tools.catalogue))


def _graph(catalogue: Catalogue) -> dict[str, Any]:
    try:
        from toolbus.toolkit.live import published  # noqa: PLC0415 - its packages come with an extra
        from toolbus.toolkit.picture import MOST, picture  # noqa: PLC0415
    except ImportError:
        return {"missing": "pip install 'toolbus[toolkit]'"}
    return picture(published(catalogue), MOST)


ROUTES = [
    Route("/ui/tools/{name}", tool),
    Route("/ui/dead/{queue:path}/{id}", dead_letter),
    Route("/ui/confirmations/{id}", confirmation),
    Route("/ui/graph", graph),
]
