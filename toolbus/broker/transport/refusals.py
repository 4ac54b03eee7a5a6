"""Commands that the server refused for a reason that passes, with the time for which it may do so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from toolbus import telemetry
from toolbus.broker.transport.command import SOON, Command, ReplyError
from toolbus.broker.transport.discovery import Node

# A slot is moved in seconds. One of many large keys takes longer, and what gives up meanwhile is done twice.
_PATIENCE = 60.0
_WARN_AFTER = 5.0
# These end when an operator has looked after the server, and until then nothing is carried out for anybody.
_FOR_ALL = SOON - {"TRYAGAIN"}


class Refused(NamedTuple):
    """A command that was not carried out and is to be sent again: after a moment if ``soon``, or to ``node`` while the slot moves."""

    command: Command
    soon: bool = False
    node: Node | None = None


class Patience:
    """The time for which one server has refused commands, each until ``end`` is called.

    Args:
        monotonic: the local clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since: float | None = None
        self._warned = False

    def holds(self, server: str, error: ReplyError) -> bool:
        """Take in a refusal, and say once if they go on; False when the refusal is to be the command's answer."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
            self._warned = False
        seconds = now - self._since
        if seconds >= _WARN_AFTER and not self._warned:
            self._warned = True
            telemetry.log.warning("link.held_up", server=server, seconds=round(seconds), error=str(error))
        return seconds < _PATIENCE or str(error).partition(" ")[0] in _FOR_ALL

    def end(self) -> None:
        """Begin anew: everything that was refused has its answer."""
        self._since = None


def node_in(rest: str) -> Node | None:
    """Return the address in what follows the code of a redirection, ``<slot> <host>:<port>``; None when there is none."""
    try:
        node = Node.parse(rest.partition(" ")[2])
    except ValueError:
        return None
    return node if 0 < node.port < 65_536 else None
