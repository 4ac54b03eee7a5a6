"""Answer who watches a gateway: whether it lives, whether it can do its work, and its metrics in the text format of Prometheus."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from toolbus.bus.telemetry.metrics import MEDIA_TYPE
from toolbus.bus.watch.exporter import exposition
from toolbus.bus.worker.process.health import Probed
from toolbus.edges.gateway.bodies import Problem, answer
from toolbus.edges.gateway.gateway import BUCKETS, Gateway
from toolbus.edges.gateway.operations import Admitted


async def health(_: Admitted[None]) -> Response:
    """Answer that the process lives."""
    return answer({"status": "ok"})


async def ready(asked: Admitted[None]) -> Response:
    """Answer that requests can be served, or 503: the server is away or refuses calls, or the gateway stops."""
    gateway = asked.gateway
    if gateway.stopping.is_set():
        raise Problem(503, "unavailable", "the gateway is stopping", {"Retry-After": "1"}, code="stopping", retryable=True)
    if reason := await gateway.unready():
        raise Problem(503, "unavailable", reason, {"Retry-After": "1"}, code="no_server", retryable=True)
    return answer({"status": "ready"})


async def metrics(asked: Admitted[None]) -> Response:
    """Answer the metrics of this gateway, and the queues of the namespace."""
    return Response(await metrics_of(asked.gateway), media_type=MEDIA_TYPE)


async def metrics_of(gateway: Gateway) -> str:
    """Return the metrics of a gateway, and the queues of the namespace."""
    measures, seen, up = gateway.measures, await gateway.namespace.seen(), not await gateway.unready()
    available = sum(tool.available for tool in gateway.bus.tools.values())
    calls = sorted(measures.calls.items())

    def exposed() -> str:
        made = exposition(gateway.settings.namespace, seen, up=up)
        made.declare("toolbus_calls_total")
        made.declare("gen_ai_execute_tool_duration_seconds")
        for (tool, error), found in calls:
            labels = {"gen_ai_tool_name": tool, "error_type": error}
            made.add("toolbus_calls_total", sum(found.buckets), labels)
            made.add_histogram("gen_ai_execute_tool_duration_seconds", BUCKETS, found.buckets, found.seconds, labels)
        made.add("toolbus_gateway_in_flight", measures.in_flight)
        made.add("toolbus_gateway_streams", measures.streams)
        made.add("toolbus_gateway_tools", available)
        return made.text()

    # It takes long where there are many tools, and a call goes on meanwhile.
    return await asyncio.to_thread(exposed)


class ProbedGateway(Probed):
    """Answers probes for a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.settings)
        self._gateway = gateway

    async def unready(self) -> str:
        """Return why no requests can be served; empty when they can."""
        gateway = self._gateway
        if not self.started:
            return "the gateway does not serve yet"
        return "the gateway is stopping" if gateway.draining.is_set() else await gateway.unready()

    async def report(self) -> dict[str, bool | int | str]:
        """Return a few counts."""
        measures, reason = self._gateway.measures, await self.unready()
        return {"healthy": not reason, "reason": reason, "in_flight": measures.in_flight, "streams": measures.streams}

    async def metrics(self) -> str:
        """Return the gateway's metrics, and the queues of the namespace."""
        return await metrics_of(self._gateway)
