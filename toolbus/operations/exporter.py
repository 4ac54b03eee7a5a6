"""``toolbus operate exporter``: answer Prometheus for a pool without a gateway."""

from __future__ import annotations

import asyncio

from toolbus.bus import telemetry
from toolbus.bus.values.settings import Settings
from toolbus.bus.values.urls import redact
from toolbus.bus.watch.exporter import NamespaceMetrics, exposition
from toolbus.bus.watch.faults import Seen
from toolbus.bus.worker.process.health import Probed, probes
from toolbus.bus.worker.process.lifeline import ended_by


class ProbedNamespace(Probed):
    """Answers probes for a process that only watches a namespace."""

    def __init__(self, settings: Settings) -> None:
        self._namespace = settings.namespace
        self._metrics = NamespaceMetrics(settings)
        self._server = redact(settings.url)
        # The event that was logged last of an outage that lasts.
        self._outage = ""

    async def unready(self) -> str:
        """Return why the namespace can't be watched; empty when it can."""
        if not self.started:
            return "the exporter does not serve yet"
        await self._seen()
        return self._metrics.trouble

    async def report(self) -> dict[str, bool | str]:
        """Return whether the server answers."""
        reason = await self.unready()
        return {"healthy": not reason, "reason": reason}

    async def metrics(self) -> str:
        """Return the metrics of the namespace."""
        seen, up = await self._seen(), not await self.unready()
        return await asyncio.to_thread(lambda: exposition(self._namespace, seen, up=up).text())

    async def _seen(self) -> Seen | None:
        """Return the namespace as it is now; the beginning and the end of an outage are logged."""
        seen = await self._metrics.seen()
        trouble = self._metrics.trouble if seen is None else seen.health.refusal
        outage = "" if not trouble else "lost" if seen is None else "refused"
        if outage != self._outage:
            self._outage = outage
            if outage == "lost":
                telemetry.log.warning("link.lost", server=self._server, error=trouble)
            elif outage:
                telemetry.log.warning("link.held_up", server=self._server, error=trouble)
            else:
                telemetry.log.info("link.restored", server=self._server)
        return seen


async def export(settings: Settings, host: str, port: int) -> None:
    """Answer probes and metrics until a signal.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    probed, stopping = ProbedNamespace(settings), asyncio.Event()
    with ended_by(stopping.set, stopping.set):
        async with probes(probed, host, port) as taken:
            probed.started = True
            telemetry.log.info("health.listening", host=host, port=taken)
            await stopping.wait()
