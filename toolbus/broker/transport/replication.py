"""Writes that wait until replicas have them, so that they outlive a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
        answer: asyncio.Future[tuple[Reply, bool]] = self._loop.create_future()

        def done(reply: Reply, confirmed: bool) -> None:
            if not answer.done():
                answer.set_result((reply, confirmed))

        self.write(script, keys, args, done)
        reply, confirmed = await answer
        if isinstance(reply, BrokerError):
            raise reply
        return reply, confirmed

    def write(self, script: Script, keys: tuple[object, ...], args: tuple[object, ...], done: Callable[[Reply, bool], None]) -> None:
        """Run a script, and tell ``done`` its answer, and whether what it wrote is on the replicas. It is repeated like that of ``run``."""
        if not self._replicas:
            self._link.run(script, keys, args, lambda reply: done(reply, True), repeatable=True)
            return

        def answered(reply: Reply) -> None:
            if isinstance(reply, BrokerError):
                done(reply, False)
                return
            confirmed: _Written = self._loop.create_future()
            confirmed.add_done_callback(lambda _: done(reply, confirmed.result()))
            # While the answer is taken in, the connection is certainly the one that wrote: WAIT is about what its own connection wrote.
            self._await_replicas(confirmed)

        self._link.run(script, keys, args, answered, repeatable=True)

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
