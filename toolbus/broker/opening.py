"""Open a broker again while its server can't be reached."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

from toolbus import telemetry
from toolbus.broker.transport.connection import Connector
from toolbus.results import BrokerUnavailable

_FIRST, _MOST = 0.05, 1.0


async def open_patiently(open: Callable[[], Awaitable[None]], connector: Connector, patience: float | None, *, otherwise: float) -> None:
    """Open, and again for ``patience`` seconds while the server can't be reached.

    Without a ``patience``, a server that never answered is an error at once, since it may not be there at all, or be none of ours; one that
    has answered is waited for ``otherwise`` so many seconds.

    Raises:
        BrokerUnavailable: the server can't be reached, or not for so long.
        BrokerError: it refuses us, or its name does not exist.
    """
    until, pause = time.monotonic() + (otherwise if patience is None else patience), _FIRST
    told = ""
    while True:
        try:
            return await open()
        except BrokerUnavailable as error:
            if not (connector.reached or patience) or time.monotonic() + pause >= until:
                raise
            if str(error) != told:
                told = str(error)
                left = until - time.monotonic()
                telemetry.log.warning("open.interrupted", error=told, waits="" if math.isinf(left) else f"{left:.0f} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MOST)
