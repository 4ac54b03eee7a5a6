"""A connection for a short while, which does not reconnect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from toolbus.broker.forms import Form
from toolbus.broker.scripts import Script
from toolbus.broker.transport.command import ELSEWHERE, Command, OnReply, Reply, ReplyError, WrongTypeError
from toolbus.broker.transport.link import Link

# Seconds for an answer: somebody waits at a terminal.
_ANSWER = 10.0


class ShortLink(Link):
    """A link for a short while that does not reconnect: when the connection is lost or an answer late, every command ends with an error.

    It has no mender either, so the error for a key of a wrong type, a ``WrongTypeError``, names the key for people.
    """

    _refusal: ReplyError | None = None

    def send(
        self,
        args: tuple[Any, ...],
        on_reply: OnReply | None = None,
        *,
        repeatable: bool = False,
        same_server: bool = False,
        form: Form | None = None,
    ) -> None:
        """Queue a command, whose answer must come in time."""
        late = self._loop.call_later(_ANSWER, self._give_up_late)

        def answered(reply: Reply) -> None:
            late.cancel()
            if on_reply is not None:
                on_reply(reply)

        super().send(args, answered, repeatable=repeatable, same_server=same_server, form=form)

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer; its first argument is its key, if it has any."""
        with _naming(args[1:2]):
            return await super().execute(*args, repeatable=repeatable)

    async def execute_script(self, script: Script, keys: tuple[Any, ...], args: tuple[Any, ...], *, repeatable: bool = False) -> Reply:
        """Run a script and wait for its answer."""
        with _naming(keys):
            return await super().execute_script(script, keys, args, repeatable=repeatable)

    def connection_lost(self, exc: Exception | None) -> None:
        """End it; what may be repeated is told, too."""
        super().connection_lost(exc)
        self._end("the connection was lost")

    def _give_up_late(self) -> None:
        why = "" if self._refusal is None else f", but refused what it was asked: {self._refusal}"
        self._end(f"the server did not answer within {_ANSWER:g} s{why}")

    def _put_off(self, command: Command, error: ReplyError) -> bool:
        self._refusal = error
        # There will be no other connection, to carry it out elsewhere.
        return str(error).partition(" ")[0] not in ELSEWHERE and super()._put_off(command, error)


@contextlib.contextmanager
def _naming(keys: Sequence[object]) -> Iterator[None]:
    try:
        yield
    except ReplyError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        raise WrongTypeError.naming(keys) from None
