"""A command on its way to the server, and what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from toolbus.bus import telemetry
from toolbus.bus.broker.server.reading import shown
from toolbus.bus.broker.server.scripts import ANYTHING, Form, with_source
from toolbus.bus.broker.transport.discovery import Node
from toolbus.bus.values.results import BrokerError, BrokerUnavailable

Reply = Any
"""A server's answer: bytes, int, float, None, bool, list, dict, or an error as a value."""

OnReply = Callable[[Reply], None]


class ReplyError(BrokerError):
    """An error reply of the server; its text starts with the server's error code.

    Attributes:
        repeated: the command had been written before, and that answer was lost: it may have been carried out then.
    """

    repeated = False

    @property
    def code(self) -> str:
        """The server's error code, such as ``WRONGTYPE``."""
        return str(self).partition(" ")[0]


class WrongAnswerError(ReplyError):
    """The server answered with something that is no answer to the command, so it is unknown whether it was carried out."""


class UnwrittenError(BrokerUnavailable):
    """The command was not written, so it was certainly not carried out."""


class WrongTypeError(ReplyError):
    """A key is not of the type that it should be; the text names it, or the keys of the script that met it."""

    @classmethod
    def naming(cls, keys: Sequence[object]) -> Self:
        """Return the error for an operator, who can look at the keys."""
        named = ", ".join(shown(key) for key in keys)
        which = "the key" if len(keys) == 1 else "one of the keys"
        return cls(f"WRONGTYPE {which} {named} holds a value of a wrong type; nothing of toolbus writes this; delete it")


# Error replies to commands that were certainly not carried out.
ELSEWHERE = frozenset({"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "UNBLOCKED"})
"""The server is not the one that serves us any more, or not yet."""

SOON = frozenset({"TRYAGAIN", "NOREPLICAS", "BUSY"})
"""It is, and carries the command out in a moment."""


REFUSES_ALL = frozenset({"MISCONF", "OOM"})
"""It refuses the writes of every process, until an operator has looked after it."""


class Command(NamedTuple):
    """A packed command that waits for its answer, which has the ``form``.

    Attributes:
        misanswered: an answer came that had another form.
        lost: an earlier answer was lost with its connection.
        renew: packs it anew, with what is left of the times in it; None when its words stay as they are.
    """

    packed: bytes
    on_reply: OnReply
    repeatable: bool
    same_server: bool = False
    form: Form = ANYTHING
    misanswered: bool = False
    lost: bool = False
    renew: Callable[[], bytes] | None = None

    def renewed(self) -> Self:
        """Return what is to be written after a wait, or once more."""
        if self.renew is None:
            return self
        packed = self.renew()
        # One that the server did not know goes on with its source.
        source = with_source(packed) if b"\r\nEVAL\r\n" in self.packed[:16] else None
        return self._replace(packed=source or packed)


T = TypeVar("T")


def info_fields(reply: Reply) -> dict[str, str]:
    """Return the fields of an ``INFO`` section by name."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def fields_of(flat: Sequence[T]) -> dict[T, T]:
    """Fields and values that follow each other, as a stream entry has them."""
    return dict(zip(flat[::2], flat[1::2], strict=False))


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

    Attributes:
        refusal: what the server said last; empty when it refuses nothing.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self.refusal = ""
        self._since: float | None = None
        self._warned = False

    def holds(self, server: str, error: ReplyError) -> bool:
        """Take in a refusal, and say once if they go on; False when the refusal is to be the command's answer."""
        now, self.refusal = self._monotonic(), str(error)
        if self._since is None:
            self._since = now
            self._warned = False
        seconds = now - self._since
        if seconds >= _WARN_AFTER and not self._warned:
            self._warned = True
            telemetry.log.warning("link.held_up", server=server, seconds=round(seconds), error=str(error))
        return seconds < _PATIENCE or error.code in _FOR_ALL

    def end(self) -> None:
        """Begin anew: everything that was refused has its answer."""
        self._since, self.refusal = None, ""


def node_in(rest: str) -> Node | None:
    """Return the address in what follows the code of a redirection, ``<slot> <host>:<port>``; None when there is none."""
    try:
        node = Node.parse(rest.partition(" ")[2])
    except ValueError:
        return None
    return node if 0 < node.port < 65_536 else None
