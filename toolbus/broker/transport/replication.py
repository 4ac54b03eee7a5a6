"""Writes that wait until replicas have them, so that they outlive a failover."""

from __future__ import annotations

import asyncio

from toolbus.broker.scripts import Script
from toolbus.broker.transport.command import Reply
from toolbus.broker.transport.link import Link
from toolbus.results import BrokerError

_Written = asyncio.Future[bool]


class Replication:
    """Runs scripts and waits until so many replicas have what they wrote.

    Everything that was written within a tick is waited for at once. The link is its own, unless ``replicas``
    is 0, since the server carries out nothing more of a connection that waits.

    Args:
        replicas: how many; with 0 nothing is waited for.
        timeout: seconds that they have.
    """

    def __init__(self, link: Link, replicas: int, timeout: float) -> None:
        self._link = link
        self._replicas = replicas
        self._timeout_ms = max(1, int(timeout * 1000))
        self._loop = asyncio.get_running_loop()
        self._gathering: list[_Written] | None = None

    @property
    def shortage(self) -> str:
        """The reason for messages when replicas did not confirm."""
        return f"fewer than {self._replicas} replicas have confirmed it within {self._timeout_ms / 1000:g} s"

    async def run(self, script: Script, keys: tuple[object, ...], args: tuple[object, ...]) -> tuple[Reply, bool]:
        """Return the script's answer, and whether what it wrote is on the replicas. It is repeated after a lost connection.

        Raises:
            BrokerError: it was not answered; it may have been carried out.
        """
        if not self._replicas:
            return await self._link.execute_script(script, keys, args, repeatable=True), True
        answered: asyncio.Future[Reply] = self._loop.create_future()
        confirmed: _Written = self._loop.create_future()

        def done(reply: Reply) -> None:
            # While the answer is taken in, the connection is certainly the one that wrote: WAIT is about what its own connection wrote.
            self._await_replicas(confirmed)
            if not answered.done():
                answered.set_result(reply)

        self._link.run(script, keys, args, done, repeatable=True)
        reply = await answered
        if isinstance(reply, BrokerError):
            raise reply
        return reply, await confirmed

    def _await_replicas(self, confirmed: _Written) -> None:
        if self._gathering is not None:
            self._gathering.append(confirmed)
            return
        gathered = self._gathering = [confirmed]
        connects = self._link.statistics().connects

        def done(reply: Reply) -> None:
            same = self._link.statistics().connects == connects
            enough = same and isinstance(reply, int) and reply >= self._replicas
            for each in gathered:
                if not each.done():
                    each.set_result(enough)

        def ask() -> None:
            self._gathering = None
            self._link.send(("WAIT", self._replicas, self._timeout_ms), done)

        self._loop.call_soon(ask)
