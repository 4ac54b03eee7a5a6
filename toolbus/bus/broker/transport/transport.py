"""The seam between the steps of the protocol and a connection to the server."""

from __future__ import annotations

from typing import Any, Protocol

from toolbus.bus import telemetry
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.reading import integer
from toolbus.bus.broker.scripts import Script
from toolbus.bus.broker.transport.command import OnReply, Reply, ReplyError, info_fields
from toolbus.bus.broker.transport.connection import ServerInfo


class Transport(Protocol):
    """A connection that carries commands to the server; ``Link`` is one, and tests bring their own.

    ``send`` and ``run`` never wait: their answers come through ``on_reply``, errors as values. ``repeatable`` commands are sent again after
    a lost connection, with ``same_server`` only to the process that they were sent to before.
    """

    @property
    def connected(self) -> bool:
        """True when commands go out now rather than after a reconnect."""

    @property
    def server(self) -> ServerInfo | None:
        """The server of the newest connection; None before the first."""

    def send(self, args: tuple[Any, ...], on_reply: OnReply | None = None, *, repeatable: bool = False, same_server: bool = False) -> None:
        """Queue a command for the end of this tick."""

    def run(
        self,
        script: Script,
        keys: tuple[Any, ...],
        args: tuple[Any, ...],
        on_reply: OnReply | None = None,
        *,
        repeatable: bool = False,
        same_server: bool = False,
    ) -> None:
        """Queue a script for the end of this tick."""

    def flush(self) -> None:
        """Write what is queued now."""

    def subscribe(self, channel: str) -> None:
        """Receive a channel's messages from now on."""

    def unsubscribe(self, channel: str) -> None:
        """Receive a channel's messages no more."""

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer.

        Raises:
            ReplyError: the server answered with an error.
            BrokerUnavailable: the connection was lost before it answered.
        """

    async def execute_script(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, repeatable: bool = False) -> Reply:
        """Run a script and wait for its answer; raises as ``execute`` does."""


async def tell_time(link: Transport, clock: ServerClock) -> None:
    """Let a clock observe the server's time.

    Raises:
        BrokerError: the server could not be asked.
    """
    asked = clock.monotonic()
    seconds, micros = await link.execute("TIME", repeatable=True)
    clock.observe(integer(seconds) * 1000 + integer(micros) / 1000, asked, clock.monotonic())


async def is_replica(link: Transport) -> bool:
    """Return whether the server says that it is no master; False when we may not ask.

    Raises:
        BrokerUnavailable: the connection was lost.
    """
    try:
        role = await link.execute("ROLE", repeatable=True)
    except ReplyError:
        return False
    return replica_by(role)


def replica_by(role: Any) -> bool:
    """Return whether an answer to ``ROLE`` is that of a replica."""
    return isinstance(role, (list, tuple)) and bool(role) and role[0] in {b"slave", "slave"}


async def warn_of_eviction(link: Transport, server: str) -> None:
    """Log when the server may evict keys."""
    try:
        info = info_fields(await link.execute("INFO", "memory", repeatable=True))
    except ReplyError:
        # Not permitted to look: `toolbus doctor`, run by an operator, is.
        return
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        advice = "an evicted key is a lost call; set maxmemory-policy noeviction"
        telemetry.log.warning("server.evicts", server=server, policy=policy, advice=advice)


def accepted_here(link: Transport, accepted_by: bytes) -> bool:
    """Return whether this server accepted a request, or it makes no difference.

    ``accepted_by`` is the run id of the server that did; empty when it makes no difference.
    """
    return not accepted_by or link.server is None or accepted_by == link.server.run_id.encode()


async def may_have_forgotten(link: Transport) -> bool:
    """Return whether this server may lack a mark that another one had.

    Raises:
        BrokerError: the server could not be asked.
    """
    # A restart with an append-only file keeps every mark; a restored snapshot or a promoted replica may not.
    persistence = info_fields(await link.execute("INFO", "persistence", repeatable=True))
    replication = info_fields(await link.execute("INFO", "replication", repeatable=True))
    return (
        persistence.get("aof_enabled") != "1"
        or replication.get("master_replid2", "").strip("0") != ""
        or "master_replid2" not in replication
    )
