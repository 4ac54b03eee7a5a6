"""A command on its way to the server, and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from toolbus.broker.forms import ANYTHING, Form
from toolbus.broker.reading import shown
from toolbus.results import BrokerError

Reply = Any
"""A server's answer: bytes, int, float, None, bool, list, dict, or an error as a value."""

OnReply = Callable[[Reply], None]


class ReplyError(BrokerError):
    """An error reply of the server; its text starts with the server's error code."""


class WrongAnswerError(ReplyError):
    """The server answered with something that is no answer to the command, so it is unknown whether it was carried out."""


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


class Command(NamedTuple):
    """A packed command that waits for its answer, which has the ``form``; ``misanswered`` after one that had not."""

    packed: bytes
    on_reply: OnReply | None
    repeatable: bool
    same_server: bool = False
    form: Form = ANYTHING
    misanswered: bool = False
