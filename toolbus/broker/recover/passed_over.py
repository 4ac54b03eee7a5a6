"""Requests that their group passed over."""

from __future__ import annotations

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.take.requests import RequestStream
from toolbus.broker.transport.transport import Transport


class PassedOver:
    """Lets requests run that wait although their group has come further: the server would never deliver them."""

    def __init__(self, link: Transport) -> None:
        self._link = link
        # The id behind which to look next.
        self._behind: dict[RequestStream, bytes] = {}

    def forget(self, stream: RequestStream) -> None:
        """Forget how far a stream was looked through."""
        self._behind.pop(stream, None)

    async def rescue(self, stream: RequestStream) -> None:
        """Look at a stretch of a stream, and at those behind it while requests are found.

        Raises:
            BrokerError: the server could not be asked.
        """
        rescued, found = 0, 1
        while found:
            args = (self._behind.pop(stream, b""), stream.lease_ms, stream.wake, stream.service)
            found, behind = await self._link.execute_script(scripts.RESCUE, (stream.key,), args, repeatable=True)
            rescued += found
            if behind:
                self._behind[stream] = behind
        if rescued:
            telemetry.log.error("requests.passed_over", service=stream.service, calls=rescued)
