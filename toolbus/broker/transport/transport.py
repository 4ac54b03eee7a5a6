"""The seam between the steps of the protocol and a connection to the server."""

from __future__ import annotations

from typing import Any, Protocol

from toolbus.broker.scripts import Script
from toolbus.broker.transport.command import OnReply, Reply
from toolbus.broker.transport.connection import ServerInfo


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
