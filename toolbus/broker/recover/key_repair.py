"""Repair keys that make commands fail: keys of a wrong type, and groups that stand beyond their stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.transport.transport import Transport
from toolbus.results import BrokerError

_PAUSE = 1.0


class KeyRepair:
    """Deletes keys of a wrong type, which their owner makes anew, and sets groups back that stand beyond their stream's newest entry.

    Args:
        types: the keys that this process uses, and the type of each as ``TYPE`` names it, in parts: a user may write all of one or none.
        on_mended: called after keys were deleted.
    """

    def __init__(self, link: Transport, types: Callable[[], Sequence[Mapping[str, str]]], on_mended: Callable[[], None]) -> None:
        self._link = link
        self._types = types
        self._on_mended = on_mended
        self._wanted = asyncio.Event()

    def request(self) -> None:
        """Look at the keys soon."""
        self._wanted.set()

    async def run(self) -> None:
        """Look whenever ``request`` was called, once a second at most, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for part in self._types():
                try:
                    if await self.mend(part):
                        self._on_mended()
                except BrokerError as error:
                    telemetry.log.warning("upkeep.failed", error=str(error))
            await asyncio.sleep(_PAUSE)

    async def mend(self, types: Mapping[str, str]) -> bool:
        """Look at these keys now; return whether any was deleted.

        Raises:
            BrokerError: the server could not be asked.
        """
        wrong = await self._link.execute_script(scripts.MEND, tuple(types), tuple(types.values()), repeatable=True)
        keys, deleted = list(types), False
        for index, found in zip(wrong[::2], wrong[1::2], strict=True):
            key = keys[index - 1]
            if found == b"group":
                telemetry.log.error("key.group_moved", key=key)
            else:
                deleted = True
                telemetry.log.error("key.wrong_type", key=key, found=found.decode(), wanted=types[key])
        return deleted
