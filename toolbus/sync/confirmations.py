"""Confirmations for synchronous callers: those that wait for an answer, and confirmers that run in threads."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from toolbus.bus.client import confirmations as aio
from toolbus.bus.client import confirmations as pending
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.results import ConfigurationError, ErrorInfo
from toolbus.sync.loop import FindLoop

if TYPE_CHECKING:
    from toolbus.bus.broker.confirmations import Confirmations


class Confirmation:
    """One call that waits for a confirmation; see ``toolbus.Confirmation``. ``str()`` is the text that is shown."""

    def __init__(self, loop: FindLoop, confirmation: aio.Confirmation) -> None:
        self._loop = loop
        self._confirmation = confirmation
        self.id = confirmation.id
        self.call = confirmation.call
        self.tool = confirmation.tool
        self.description = confirmation.description
        self.effect = confirmation.effect
        self.external = confirmation.external
        self.user = confirmation.user
        self.session = confirmation.session
        self.timeout = confirmation.timeout
        self.question = confirmation.question

    @property
    def request(self) -> ConfirmationRequest:
        """The request as other processes see it."""
        return self._confirmation.request

    @property
    def shared(self) -> bool:
        """True when other processes are asked, too."""
        return self._confirmation.shared

    @property
    def reason(self) -> str:
        """The reason for which it was denied in this process."""
        return self._confirmation.reason

    @property
    def digest(self) -> str:
        """Digest of what a permission is for; empty when a running handler asks."""
        return self._confirmation.digest

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call; a new object each time."""
        return self._confirmation.arguments

    @property
    def answered(self) -> bool:
        """True when it was allowed or denied, or has expired."""
        return self._confirmation.answered

    def allow(self) -> bool:
        """Let the call run; False when it was answered before."""
        return self._loop().run(self._confirmation.allow)

    def deny(self, reason: str = "") -> bool:
        """End the call as ``forbidden``; False when it was answered before."""
        return self._loop().run(lambda: self._confirmation.deny(reason))

    def answer(self) -> ErrorInfo | None:
        """Wait for the answer: None when the call may run."""
        return self._loop().run(self._confirmation.answer)

    def __str__(self) -> str:
        return str(self._confirmation)

    def __repr__(self) -> str:
        return repr(self._confirmation)


Confirmer = Callable[[Confirmation], bool | None]
"""A plain function, run in a thread: it returns True or False, or None and answers later by ``allow()`` or ``deny()``."""


def in_threads(confirmer: Confirmer | None, loop: FindLoop) -> aio.Confirmer | None:
    """Return a confirmer for the event loop that asks this one in a thread.

    Raises:
        ConfigurationError: it is a coroutine function.
    """
    if confirmer is None or not callable(confirmer):
        return confirmer
    if inspect.iscoroutinefunction(confirmer):
        raise ConfigurationError("the confirmer of a synchronous bus is a plain function, which runs in a thread of its own")
    function = confirmer
    # People take their time: each question has a thread.
    limiter = anyio.CapacityLimiter(math.inf)

    async def ask(confirmation: aio.Confirmation) -> bool | None:
        asked = Confirmation(loop, confirmation)
        return await anyio.to_thread.run_sync(function, asked, abandon_on_cancel=True, limiter=limiter)

    return ask


class SharedConfirmations:
    """The open requests of all processes of the namespace."""

    def __init__(self, loop: FindLoop, store: Callable[[], Confirmations]) -> None:
        self._loop = loop
        self._store = store

    def ask(self, request: ConfirmationRequest, seconds: float) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when there is no answer within ``seconds``."""
        return self._loop().run(lambda: self._store().ask(request, seconds))

    def pending(self) -> list[ConfirmationRequest]:
        """Return the open requests, the oldest first."""
        return self._loop().run(lambda: self._store().pending())

    def get(self, id: str) -> ConfirmationRequest:
        """Return one open request."""
        return self._loop().run(lambda: self._store().get(id))

    def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins."""
        self._loop().run(lambda: self._store().answer(id, answer))

    def watch(self) -> Iterator[ConfirmationRequest]:
        """Yield each request once: those that are open, and then new ones as they come, until the bus is closed."""
        loop = self._loop()
        yield from loop.each(loop.run(lambda: self._store().watch()), lasting=True)


class PendingConfirmations(Mapping[str, Confirmation]):
    """The open confirmations: this bus's own by id, and methods to answer those of every process."""

    def __init__(self, loop: FindLoop, confirmations: pending.PendingConfirmations) -> None:
        self._loop = loop
        self._confirmations = confirmations

    def __getitem__(self, id: str) -> Confirmation:
        return Confirmation(self._loop, self._confirmations[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._loop().run(lambda: [*self._confirmations]))

    def __len__(self) -> int:
        return len(self._confirmations)

    def pending(self, *, user: str | None = None) -> list[ConfirmationRequest]:
        """Return the open requests of all processes, oldest first; see ``toolbus.ToolBus.confirmations``."""
        return self._loop().run(lambda: self._confirmations.pending(user=user))

    def get(self, id: str) -> ConfirmationRequest:  # type: ignore[override] # the mapping's own could only find ours
        """Return one open request of any process."""
        return self._loop().run(lambda: self._confirmations.get(id))

    def allow(self, id: str, note: str = "", *, by: str = "", digest: str = "") -> None:
        """Let a call of any process go on."""
        self._loop().run(lambda: self._confirmations.allow(id, note, by=by, digest=digest))

    def deny(self, id: str, reason: str = "", *, by: str = "") -> None:
        """End a call of any process as ``forbidden``."""
        self._loop().run(lambda: self._confirmations.deny(id, reason, by=by))

    def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request of any process."""
        self._loop().run(lambda: self._confirmations.answer(id, answer))

    def watch(self) -> Iterator[ConfirmationRequest]:
        """Yield each open request of all processes once, and then new ones as they come, until the bus is closed."""
        loop = self._loop()
        yield from loop.each(loop.run(self._confirmations.watch), lasting=True)
