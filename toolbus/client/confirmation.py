"""A person's word before a call runs: the request that the person reads, and those that still wait for an answer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from toolbus import telemetry
from toolbus.client.tool import Tool
from toolbus.results import ConfigurationError, ErrorInfo
from toolbus.schema.refusal import shorten

TIMEOUT = 300.0
"""Seconds that a call waits for a person, unless the executor says otherwise."""

_MOST_SHOWN = 4000
_EFFECTS = {"read": "only reads", "idempotent": "may be repeated without harm", "once": "takes effect each time it runs"}


class Confirmation:
    """One call that waits for a person; ``str()`` is what the person reads.

    Attributes:
        id: unique in the bus.
        call: the model's id of the call.
        tool, description, effect, external: the tool, as its publisher describes it.
        arguments: what it would be called with.
        user, session: on whose behalf.
        timeout: seconds after which it is over.
    """

    def __init__(self, id: str, call: str, tool: Tool, arguments: Mapping[str, Any], *, user: str, session: str, timeout: float) -> None:
        self.id = id
        self.call = call
        self.tool = tool.name
        self.description = tool.description
        self.effect = tool.descriptor.effect
        self.external = tool.descriptor.external
        self.arguments = arguments
        self.user = user
        self.session = session
        self.timeout = timeout
        self._answer: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    @property
    def answered(self) -> bool:
        """Whether it was allowed or denied, or is over."""
        return self._answer.done()

    def allow(self) -> bool:
        """Let the call run; False when it was answered before."""
        return self._settle(None)

    def deny(self, reason: str = "") -> bool:
        """End the call as ``forbidden``; False when it was answered before."""
        why = f": {shorten(reason, 500)}" if reason else ""
        return self._settle(ErrorInfo("forbidden", "denied", f"a person did not allow this call of {self.tool!r}{why}"))

    async def answer(self) -> ErrorInfo | None:
        """Wait for the answer: None when the call may run."""
        return await self._answer

    def __str__(self) -> str:
        arguments = json.dumps(self.arguments, ensure_ascii=False, indent=2, default=str)
        behalf = f" for {self.user}" if self.user else ""
        effect = _EFFECTS.get(self.effect, "does not say what it does to the world")
        lines = [
            f"Allow {self.tool}{behalf}?",
            f"  {shorten(' '.join(self.description.split()), 500)}",
            f"  This tool {effect}{'; it is external' if self.external else ''}.",
            f"  Arguments: {shorten(arguments, _MOST_SHOWN)}",
        ]
        return "\n".join(map(_visible, lines))

    def __repr__(self) -> str:
        return f"<confirmation {self.id}: {self.tool!r}>"

    def _settle(self, answer: ErrorInfo | None) -> bool:
        if self._answer.done():
            return False
        self._answer.set_result(answer)
        return True


def _visible(text: str) -> str:
    """The text with everything that could hide or turn around a part of it written out."""
    return "".join(character if character.isprintable() or character == "\n" else f"\\u{ord(character):04x}" for character in text)


Confirmer = Callable[[Confirmation], "Awaitable[bool | None] | bool | None"]
"""Answers with True or False, or with None and later by ``allow()`` or ``deny()``."""


class Confirmations(Mapping[str, Confirmation]):
    """The calls of a bus that wait for a person, by id, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[str, Confirmation] = {}

    def __getitem__(self, id: str) -> Confirmation:
        return self._waiting[id]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    def allow(self, id: str) -> bool:
        """Let a call run; False when it does not wait any more."""
        return id in self._waiting and self._waiting[id].allow()

    def deny(self, id: str, reason: str = "") -> bool:
        """End a call as ``forbidden``; False when it does not wait any more."""
        return id in self._waiting and self._waiting[id].deny(reason)

    async def settled(self, confirmation: Confirmation, confirmer: Confirmer | None) -> ErrorInfo | None:
        """Ask, and wait for the answer: None when the call may run, else how it ends."""
        self._waiting[confirmation.id] = confirmation
        try:
            async with asyncio.timeout(confirmation.timeout):
                if confirmer is not None:
                    await _ask(confirmer, confirmation)
                return await confirmation.answer()
        except TimeoutError:
            message = f"nobody answered within {confirmation.timeout:g} s whether {confirmation.tool!r} may run, so it did not"
            return ErrorInfo("deadline_exceeded", "unconfirmed", message)
        finally:
            del self._waiting[confirmation.id]
            confirmation.deny("it is over")


async def _ask(confirmer: Confirmer, confirmation: Confirmation) -> None:
    try:
        said = confirmer(confirmation)
        if inspect.isawaitable(said):
            said = await said
    except TimeoutError:
        # The executor's own timeout, or one of the confirmer's, which is an answer that did not come.
        raise
    except ConfigurationError:
        raise
    except Exception:  # noqa: BLE001 - whatever the application's own code raises, it is no permission
        telemetry.log.exception("confirmation.failed", tool=confirmation.tool, id=confirmation.call)
        confirmation.deny("asking for it failed")
        return
    if said is True:
        confirmation.allow()
    elif said is not None:
        confirmation.deny()
