"""``Probe``: single commands and scripts of the protocol, for tests of programs in other languages."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, cast

from toolbus.broker.keys import Keys
from toolbus.broker.not_open import NotOpen
from toolbus.broker.scripts import Script
from toolbus.broker.transport.connection import Connector
from toolbus.broker.transport.short_link import ShortLink
from toolbus.settings import Settings


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
