"""``ProbedGateway``: the gateway of this process, for probes at a port of their own."""

from __future__ import annotations

from toolbus.gateway.gateway import Gateway
from toolbus.gateway.metrics import metrics_of


class ProbedGateway:
    """Answers probes for a gateway.

    Attributes:
        started: set once requests are answered.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.started = False

    async def ready(self) -> bool:
        """Return whether requests can be served: the server is connected, and nothing stops the gateway."""
        gateway = self._gateway
        return self.started and gateway.connected and not gateway.draining.is_set() and await gateway.answers()

    async def report(self) -> dict[str, bool | int]:
        """Return a few counts."""
        measures = self._gateway.measures
        return {"healthy": await self.ready(), "in_flight": measures.in_flight, "streams": measures.streams}

    async def metrics(self) -> str:
        """Return the gateway's metrics, and the queues of the namespace."""
        return await metrics_of(self._gateway)
