"""The metrics of a namespace: its services, and what is wrong with it; for gateways, and for ``toolbus operate exporter``."""

from __future__ import annotations

import asyncio
import math
import time

from toolbus.bus.broker.admin import Admin, KnownServices
from toolbus.bus.telemetry.metrics import Exposition
from toolbus.bus.telemetry.output import lines_lost
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.watch.faults import CHECKS, SERVER, SERVER_RUNBOOK, Seen, can_renew, lines_of, look, unreachable

# The metrics of services: each with its states, and the fields that count them.
_OF_SERVICES = {
    "toolbus_queue_length": (("queued", "queued"), ("running", "running")),
    "toolbus_workers": (("", "workers"),),
    "toolbus_dead_letters": (("", "dead"),),
    "toolbus_service_paused": (("", "paused"),),
    "toolbus_service_down": (("", "down"),),
}
# Those that follow from leases: while nobody can renew them, nothing is known of workers.
_OF_LEASES = {"toolbus_workers", "toolbus_service_down"}
# Seconds for which an answer is waited for, which are less than a scrape may take.
_PATIENCE = 3.0
# Seconds for which an answer counts, and the lack of one: a scrape that waited each time would be given up, and show nothing.
_KEPT, _KEPT_AWAY = 1.0, 10.0


class NamespaceMetrics:
    """The metrics of a namespace, for which its server is asked at most once a second.

    Args:
        settings: which namespace of which server.

    Attributes:
        trouble: why the server could not be asked the last time; empty when it could.
    """

    def __init__(self, settings: Settings) -> None:
        self.trouble = ""
        self._settings = settings
        self._lock = asyncio.Lock()
        self._asked = -math.inf
        self._seen: Seen | None = None
        self._known = KnownServices()
        # Of this user; empty until they are known. Each question for them is a line of the server's `ACL LOG`.
        self._roles: list[str] | tuple[()] | None = ()

    async def seen(self) -> Seen | None:
        """Return the namespace as it is now, or None when the server does not answer."""
        async with self._lock:
            if time.monotonic() - self._asked > (_KEPT_AWAY if self._seen is None else _KEPT):
                self._seen = await self._look()
                self._asked = time.monotonic()
            return self._seen

    async def _look(self) -> Seen | None:
        try:
            async with asyncio.timeout(_PATIENCE), Admin(self._settings) as admin:
                services = await self._known.read(admin)
                if self._roles == ():
                    self._roles = await admin.roles()
                seen = await look(admin, self._settings, services=services, roles=self._roles)
        except (ToolbusError, TimeoutError) as error:
            self._roles = ()
            self.trouble = unreachable(error).found
            return None
        self.trouble = ""
        return seen


def exposition(namespace: str, seen: Seen | None, *, up: bool) -> Exposition:
    """Return the metrics of a namespace as it was seen, to which others may be added.

    Args:
        namespace: the label of every sample.
        seen: None when the server does not answer.
        up: whether this process can do its work.
    """
    made = Exposition(namespace)
    made.add("toolbus_up", int(up))
    made.add("toolbus_log_lines_lost_total", lines_lost())
    made.add("toolbus_fault", int(seen is None), {"check": SERVER, "state": "fail", "runbook": SERVER_RUNBOOK})
    for name in _OF_SERVICES:
        made.declare(name)
    if seen is None:
        return made
    for check in CHECKS:
        if not check.asks:
            labels = {"check": check.name, "state": check.state, "runbook": check.runbook}
            made.add("toolbus_fault", len(lines_of(check, seen)), labels)
    made.add("toolbus_server_cut_off_total", seen.health.cut_off)
    known = _OF_SERVICES.keys() if can_renew(seen.health) else _OF_SERVICES.keys() - _OF_LEASES
    for name, parts in _OF_SERVICES.items():
        for service in seen.services if name in known else ():
            for state, field in parts:
                labels = {"messaging_destination_name": service.publication.service.id, "state": state}
                made.add(name, int(getattr(service, field)), labels)
    return made
