"""The connection of a link to another node, while a cluster moves the slot."""

from __future__ import annotations

from collections.abc import Callable

from toolbus import telemetry
from toolbus.broker.transport.command import ELSEWHERE, SOON, Command, ReplyError
from toolbus.broker.transport.connection import Connector
from toolbus.broker.transport.wire import Wire, pack

_ASKING = Command(pack(("ASKING",)), None, True)
_NOT_HERE = frozenset({"ASK", *ELSEWHERE, *SOON})


class RedirectConnection(Wire):
    """A connection to the cluster node that a slot is moving to, for the commands that were answered with ASK.

    Args:
        again: takes back what it can't carry out.
        gone: called when it will carry out nothing more.
    """

    def __init__(self, connector: Connector, again: Callable[[Command], None], gone: Callable[[], object]) -> None:
        super().__init__(connector)
        self._again = again
        self._gone = gone
        self._opening = self._loop.create_task(self._open())

    def carry_out(self, command: Command) -> None:
        """Send a command with the permission to be carried out before the slot has moved."""
        self._put_in(_ASKING, command)

    def close(self) -> None:
        """Close it; what waits is given back."""
        self._closing = True
        self._opening.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._give_back([*self._unanswered, *self._unsent])
        self._unanswered.clear()
        self._unsent.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what may be repeated; the rest is told."""
        self._transport = None
        written = list(self._unanswered)
        self._unanswered.clear()
        self._answer_lost([command for command in written if not command.repeatable], "the connection was lost")
        self._give_back([*(command for command in written if command.repeatable), *self._unsent])
        self._unsent.clear()

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        if str(error).partition(" ")[0] not in _NOT_HERE:
            return False
        self._again(command)
        return True

    async def _open(self) -> None:
        try:
            connection, self.server = await self._connector.connect()
            self._take_over(connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, what waits must go back
            telemetry.log.warning("link.side_failed", server=self._connector.display, error=str(error) or type(error).__name__)
            self._give_back(self._unsent)
            self._unsent = []
        else:
            self._flush()

    def _give_back(self, commands: list[Command]) -> None:
        self._gone()
        for command in commands:
            if command is not _ASKING:
                self._again(command)
