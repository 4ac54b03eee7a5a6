"""Open a broker again while its server can't be reached."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NoReturn, Self, cast

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.links import ShortLink
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError
from toolbus.bus.values.settings import Settings

_FIRST, _MOST = 0.05, 1.0
# Seconds that any attempt has: a busy machine takes so long for a server that answers.
_LEAST = 1.0


async def open_patiently(
    open: Callable[[float], Awaitable[None]], connector: Connector, patience: float | None, *, otherwise: float
) -> None:
    """Open, and again for ``patience`` seconds while the server can't be reached.

    Without a ``patience``, a server that never answered is an error at once, since it may not be there at all, or be none of ours; one that
    has answered is waited for ``otherwise`` so many seconds.

    Args:
        open: called with the seconds that its attempt may take.
        connector: knows whether the server has ever answered.
        patience, otherwise: seconds; a ``patience`` of 0 makes one attempt, for which there are ``otherwise`` so many.

    Raises:
        BrokerUnavailable: the server can't be reached, or not for so long.
        BrokerError: it refuses us, or its name does not exist.
    """
    began, pause = time.monotonic(), _FIRST
    until = began + (otherwise if patience is None else patience)
    ends = began + (patience or otherwise)
    told = ""
    while True:
        try:
            return await open(max(_LEAST, ends - time.monotonic()))
        except BrokerUnavailable as error:
            if not (connector.reached or patience) or time.monotonic() + pause >= until:
                raise
            if str(error) != told:
                told = str(error)
                left = until - time.monotonic()
                telemetry.log.warning("open.interrupted", error=told, waits="" if math.isinf(left) else f"{left:.0f} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MOST)


class NotOpen:
    """Takes the place of a broker's steps before ``open``; every use of it is an error.

    The brokers need no check before each use this way, which would cost time in every call.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise BrokerUnavailable("the broker is not open")

    def __call__(self, *_args: object, **_named: object) -> NoReturn:
        """Refuse the call.

        Raises:
            BrokerUnavailable: always.
        """
        raise BrokerUnavailable("the broker is not open")


# A worker that only beats looks alive. Its callers learn otherwise when it leaves, after so many leases and seconds without success.
_LEASES, _SECONDS = 3, 30.0


class Failing(msgspec.Struct, eq=False):
    """A step of a worker, which is given up when the server has refused it for long.

    Args:
        lease: seconds.
        failed: words for the failure, such as "no requests could be taken".
        give_up: called with the error that ends the worker.
        monotonic: the local clock, in seconds.

    Attributes:
        since: when the step began to fail; None while it succeeds. Who succeeds sets it.
    """

    lease: float
    failed: str
    give_up: Callable[[ToolbusError], None]
    monotonic: Callable[[], float] = time.monotonic
    since: float | None = None

    def refused(self, error: str, *, may_end: bool = True) -> None:
        """Take in that the server has refused the step once more; without ``may_end`` the worker is not ended yet."""
        now = self.monotonic()
        if self.since is None:
            self.since = now
        elif may_end and now - self.since >= max(_LEASES * self.lease, _SECONDS):
            self.give_up(ToolbusError(f"{self.failed} for {now - self.since:.0f} s: {error}"))


class Probe:
    """A connection that sends what it is told; use it with ``async with``.

    Attributes:
        keys: the key names of the namespace.
    """

    def __init__(self, settings: Settings) -> None:
        self.keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self._link = cast("ShortLink", NotOpen())

    async def __aenter__(self) -> Self:
        self._link = ShortLink(self._connector)
        await self._link.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._link.close()
        await self._link.wait_closed()

    async def run(self, *words: Any) -> Any:
        """Send a command and return the server's answer.

        Raises:
            BrokerError: the server refused it, or can't be reached.
        """
        return await self._link.execute(*words)

    async def script(self, script: Script, keys: tuple[Any, ...], *args: Any) -> Any:
        """Run a script of the protocol and return its answer.

        Raises:
            BrokerError: the server refused it, or can't be reached.
        """
        return await self._link.execute_script(script, keys, args)
