"""Open a broker again while its server can't be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from toolbus import telemetry
from toolbus.broker.transport.connection import Connector
from toolbus.results import BrokerUnavailable

_FIRST, _MOST = 0.05, 1.0


async def open_patiently(open: Callable[[], Awaitable[None]], connector: Connector, patience: float, *, unseen: bool = False) -> None:
    """Open, and again for ``patience`` seconds while the server can't be reached.

    One that never answered may not be there at all, or be none of ours, so that is said at once, unless ``unseen`` servers are waited for.

    Raises:
        BrokerUnavailable: the server can't be reached, or not for so long.
        BrokerError: it refuses us.
    """
    until, pause = time.monotonic() + patience, _FIRST
    while True:
        try:
            return await open()
        except BrokerUnavailable as error:
            if not (connector.reached or unseen) or time.monotonic() + pause >= until:
                raise
            telemetry.log.warning("open.interrupted", error=str(error), retry_in=pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MOST)
