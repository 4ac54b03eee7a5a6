"""Confirmations at the caller: the requests that wait for a person, and the permissions that come of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.client.refusing import turning
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.support.display import shortened
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.values.confirmations import MOST_NAME, ConfirmationAnswer, ConfirmationRequest, denied, digest_of, plain, shown
from toolbus.bus.values.events import Asked
from toolbus.bus.values.results import (
    BrokerError,
    ConfigurationError,
    ConfirmationClosed,
    EnvelopeError,
    ErrorInfo,
    ToolError,
    deadline_exceeded,
)
from toolbus.bus.values.rules import told

if TYPE_CHECKING:
    from toolbus.bus.broker.held.confirmations import Confirmations


class Confirmation:
    """One call that waits for a confirmation; ``str()`` is the text that is shown.

    The text and the arguments that may run are both copies from when it was made: changing the originals changes neither.

    Attributes:
        id: the id that an answer names, in this process or another.
        call: the model's id of the call.
        tool, description, effect, external: the tool, as its publisher describes it.
        user, session: on whose behalf.
        timeout: seconds after which it expires.
        question: the question of a running handler; empty when the tool needs a confirmation before it runs.
        digest: digest of what a permission is for; empty until the request of a running handler was read.
        shared: whether other processes are asked, too.
        reason: why it was denied in this process.

    Args:
        limit: most bytes of the arguments.

    Raises:
        ToolError: ``invalid_arguments``: JSON can't express the arguments, or they are too large to be shown.
    """

    def __init__(
        self,
        id: str,
        call: str,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        user: str,
        session: str,
        timeout: float,
        question: str = "",
        limit: int = 262_144,
    ) -> None:
        try:
            sent, self._document = plain(arguments)
        except EnvelopeError as error:
            raise ToolError(str(error), type="invalid_arguments") from None
        self.id = id
        self.call = call
        self.tool = tool.name
        self.effect = tool.descriptor.effect
        self.external = tool.descriptor.external
        self.user = user
        self.session = session
        self.timeout = timeout
        self.question = question
        self.shared = False
        self.reason = ""
        self._tool = tool
        self._action = (tool.resolution.service, tool.name, user, session)
        self.digest = "" if question else digest_of("agent", *self._action, "", sent)
        self._shown = {} if question else shown(sent, self._document, limit)
        self._answer: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self._asking: asyncio.Timeout | None = None

    @property
    def description(self) -> str:
        """Description of the tool."""
        return self._tool.description

    @functools.cached_property
    def request(self) -> ConfirmationRequest:
        """The request as other processes see it; the handler's own when a running handler asks."""
        behalf = f" for {shortened(self.user, MOST_NAME)}" if self.user else ""
        return ConfirmationRequest(
            self.id,
            self.call,
            self.tool,
            self.question or f"Allow {self.tool}{behalf}?",
            asker="worker" if self.question else "agent",
            service=self._tool.resolution.service,
            owner=self._tool.owner,
            user=self.user,
            session=self.session,
            digest=self.digest,
            description=self.description,
            effect=self.effect,
            external=self.external,
            **self._shown,
        ).bounded()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call; a new object each time, so that no reader changes what another one sees."""
        made: dict[str, Any] = msgspec.json.decode(self._document)
        return made

    @property
    def answered(self) -> bool:
        """True when it was allowed or denied, or has expired."""
        return self._answer.done()

    def allow(self) -> bool:
        """Let the call run; False when it was answered before."""
        return self._settle(None)

    def deny(self, reason: str = "") -> bool:
        """End the call as ``forbidden``; False when it was answered before."""
        if self.answered:
            return False
        self.reason = reason
        return self._settle(denied(f"this call of {self.tool!r}", reason))

    async def answer(self) -> ErrorInfo | None:
        """Wait for the answer: None when the call may run."""
        if not self._answer.done():
            # A wait that is cancelled leaves the answer to the others.
            await asyncio.wait((self._answer,))
        return self._answer.result()

    async def answer_of(self, confirmer: Confirmer | None, seconds: float | None) -> ErrorInfo | None:
        """Return the answer of this process, of a confirmer or of whoever holds the confirmation, within ``seconds`` if given."""
        try:
            # An answer from elsewhere ends the confirmer's work, as the end of its time does.
            async with asyncio.timeout(seconds) as self._asking:
                if confirmer is not None:
                    await _ask(confirmer, self)
                return await self.answer()
        except TimeoutError:
            return self._answer.result() if self.answered else _unanswered(self)
        finally:
            self._asking = None

    def is_for(self, tool: Tool, arguments: Mapping[str, Any], user: str, session: str) -> bool:
        """Return whether a permission is for this call.

        Raises:
            EnvelopeError: JSON can't express the arguments.
        """
        sent, document = plain(arguments)
        action = (tool.resolution.service, tool.name, user, session)
        same = document == self._document and action == self._action
        return same or digest_of("agent", *action, "", sent) == self.digest

    def __str__(self) -> str:
        return str(self.request)

    def __repr__(self) -> str:
        return f"<confirmation {self.id}: {self.tool!r}>"

    def _settle(self, answer: ErrorInfo | None) -> bool:
        if self._answer.done():
            return False
        self._answer.set_result(answer)
        if self._asking is not None and not self._asking.expired():
            self._asking.reschedule(0.0)
        return True


Confirmer = Callable[[Confirmation], "Awaitable[bool | None] | bool | None"]
"""A function that returns True or False, or None and answers later by ``allow()`` or ``deny()``."""


class Grant(msgspec.Struct, eq=False):
    """A permit to publish one call, once; without one a program calls on its own account.

    Attributes:
        tool: the revision for which the arguments were prepared and confirmed.
        prepared: the very arguments that were prepared for it, unless they may have been changed since.
        confirmation: what a person allowed, if somebody was asked.
        superseded: whether the call was not published because the tool is another one by now.
        published: whether the call was published, which uses a permission up.
        on_published: called when the call is published.
        on_asked: called when the call's handler asks a person.
    """

    tool: Tool
    prepared: Mapping[str, Any] | None = None
    confirmation: Confirmation | None = None
    superseded: bool = False
    published: bool = False
    on_published: Callable[[], None] | None = None
    on_asked: Callable[[Asked], None] | None = None

    @property
    def digest(self) -> str:
        """Digest of the call that was confirmed; empty without a confirmation."""
        return "" if self.confirmation is None else self.confirmation.digest

    def publish(self) -> None:
        """Take note that the call is published."""
        self.published = True
        if self.on_published is not None:
            self.on_published()

    def problem(self, tool: Tool, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> ErrorInfo | None:
        """Return why a call of a tool with these arguments may not be published, or None."""
        if tool is not self.tool and tool != self.tool:
            self.superseded = True
            return ErrorInfo("unavailable", "revised", f"the tool {tool.name!r} has changed since the call was prepared", retryable=True)
        if not tool.descriptor.confirm:
            return None
        if self.published:
            message = f"the permission for this call of {tool.name!r} was used when it was published; another call needs another one"
            return ErrorInfo("forbidden", "unconfirmed", message)
        if self.confirmation is None:
            return ErrorInfo("forbidden", "unconfirmed", f"{tool.name!r} needs a person's permission, and nobody was asked")
        try:
            if self.confirmation.is_for(tool, arguments, options.get("user", ""), options.get("session", "")):
                return None
        except EnvelopeError as error:
            return ErrorInfo("invalid_arguments", message=str(error))
        message = f"a person allowed another call of {tool.name!r} than the one that was to be sent"
        return ErrorInfo("forbidden", "unconfirmed", message)


# Seconds that an answer of this process waits for the server to say that it is the first one.
_TELLING = 1.0
_NOT_ASKED = frozenset({"overloaded", "unavailable"})


class PendingConfirmations(Mapping[str, Confirmation]):
    """The open confirmations: a mapping of this bus's own by id, and methods that reach every process of the namespace.

    Args:
        store: returns the requests that all processes share; raises ``ConfigurationError`` while the bus is not open.
    """

    def __init__(self, store: Callable[[], Confirmations]) -> None:
        self._store = store
        self._waiting: dict[str, Confirmation] = {}

    def __getitem__(self, id: str) -> Confirmation:
        return self._waiting[id]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    # -- answering --------------------------------------------------------------------------------

    @turning
    async def pending(self, *, user: str | None = None) -> list[ConfirmationRequest]:
        """Return the open requests of all processes, oldest first, without the ``whole`` of their arguments.

        Args:
            user: only requests of calls on behalf of this user.

        Raises:
            BrokerError: the server can't be reached.
        """
        return [request for request in await self._store().pending() if user is None or request.user == user]

    @turning
    async def get(self, id: str) -> ConfirmationRequest:  # type: ignore[override] # the mapping's own could only find ours
        """Return one open request of any process.

        Raises:
            ConfirmationClosed: it is not open.
            BrokerError: the server can't be reached.
        """
        return await self._store().get(id)

    @turning
    async def allow(self, id: str, note: str = "", *, by: str = "", digest: str = "") -> None:
        """Let a call of any process go on.

        Args:
            id: the request.
            note: a remark for the asker.
            by: who allows it.
            digest: digest of the request as it was shown; by default of the one that is open now.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
            BrokerError: the server can't be reached.
        """
        await self.answer(id, ConfirmationAnswer(True, note, by, digest))

    @turning
    async def deny(self, id: str, reason: str = "", *, by: str = "") -> None:
        """End a call of any process as ``forbidden``; raise as ``allow`` does."""
        await self.answer(id, ConfirmationAnswer(False, reason, by))

    def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Yield each open request of all processes once, and then new ones as they come, until the bus is closed.

        Raises:
            BrokerError: the server can't be reached.
        """
        return self._store().watch()

    @turning
    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request of any process; raise as ``allow`` does."""
        try:
            if answer.allowed and not answer.digest:
                answer = msgspec.structs.replace(answer, digest=(await self._store().get(id)).digest)
            await self._store().answer(id, answer)
        except ConfirmationClosed as error:
            # It may be a confirmation of this process that others are not asked about, or not yet.
            own = self._waiting.get(id)
            if error.answered or own is None or not _settles(own, answer):
                raise

    # -- asking -----------------------------------------------------------------------------------

    async def settled(self, confirmation: Confirmation, confirmer: Confirmer | None, *, shared: bool) -> ErrorInfo | None:
        """Ask, and wait for the first answer.

        Args:
            confirmation: the confirmation.
            confirmer: a function of this process that answers.
            shared: ask all processes.

        Returns:
            None when the call may run, else the error with which it ends.
        """
        self._waiting[confirmation.id] = confirmation
        confirmation.shared = shared
        telemetry.log.info("confirmation.asked", tool=confirmation.tool, id=confirmation.id, call=confirmation.call, user=confirmation.user)
        try:
            refused = await (
                self._first_answer(confirmation, confirmer) if shared else confirmation.answer_of(confirmer, confirmation.timeout)
            )
        finally:
            del self._waiting[confirmation.id]
            confirmation.deny("it is over")
        outcome = "allowed" if refused is None else refused.code
        telemetry.log.info("confirmation.settled", tool=confirmation.tool, id=confirmation.id, call=confirmation.call, outcome=outcome)
        return refused

    async def relay(self, confirmation: Confirmation, confirmer: Confirmer) -> None:
        """Let a confirmer answer what a running handler asks, unless another answer is first."""
        with contextlib.suppress(ConfirmationClosed, BrokerError):
            # The handler's own request has the data that it shows, beside its question.
            confirmation.request = await self._store().get(confirmation.id)
            confirmation.digest = confirmation.request.digest
            answer = await confirmation.answer_of(confirmer, confirmation.timeout)
            if answer is None or answer.type == "forbidden":
                await self._is_first(confirmation, answer)

    async def _first_answer(self, confirmation: Confirmation, confirmer: Confirmer | None) -> ErrorInfo | None:
        """Return the first answer, of this process or of another."""
        here = asyncio.create_task(confirmation.answer_of(confirmer, None))
        there = asyncio.create_task(self._remote_answer(confirmation))
        try:
            await asyncio.wait((here, there), return_when=asyncio.FIRST_COMPLETED)
            if there.done():
                refused = there.result()
                if confirmer is None or refused is None or refused.type not in _NOT_ASKED:
                    return refused
                # The other processes can't be asked, but this one has a confirmer.
                telemetry.log.warning("confirmation.not_shared", id=confirmation.id, tool=confirmation.tool, error=str(refused))
                async with asyncio.timeout(confirmation.timeout):
                    return await here
            own = here.result()
            if (own is None or own.type == "forbidden") and await self._is_first(confirmation, own):
                return own
            return await there
        except TimeoutError:
            return _unanswered(confirmation)
        finally:
            await cancelled(here, there)

    async def _is_first(self, confirmation: Confirmation, own: ErrorInfo | None) -> bool:
        """Send this process's answer to the others, and return whether it is the first one."""
        answer = ConfirmationAnswer(own is None, confirmation.reason, digest=confirmation.digest)
        try:
            async with asyncio.timeout(_TELLING):
                await self._store().answer(confirmation.id, answer)
        except ConfirmationClosed as error:
            return not error.answered
        except (BrokerError, TimeoutError):
            # An answer of another process could not be heard either, so this one holds.
            return True
        return True

    async def _remote_answer(self, confirmation: Confirmation) -> ErrorInfo | None:
        try:
            answer = await self._store().ask(confirmation.request, confirmation.timeout)
        except ToolError as error:
            return error.error
        except BrokerError as error:
            return ErrorInfo("unavailable", "unconfirmed", f"nobody could be asked whether {confirmation.tool!r} may run: {error}")
        if answer is None:
            return _unanswered(confirmation)
        return None if answer.allowed else denied(f"this call of {confirmation.tool!r}", answer.reason, answer.by)


def _settles(own: Confirmation, answer: ConfirmationAnswer) -> bool:
    if answer.digest:
        answer = answer.to(own.request)
    return own.allow() if answer.allowed else own.deny(answer.reason)


def _unanswered(confirmation: Confirmation) -> ErrorInfo:
    message = f"nobody answered within {confirmation.timeout:g} s whether {confirmation.tool!r} may run, so it did not"
    return deadline_exceeded(message, "unconfirmed")


async def _ask(confirmer: Confirmer, confirmation: Confirmation) -> None:
    try:
        said = confirmer(confirmation)
        if inspect.isawaitable(said):
            said = await said
    except TimeoutError:
        # The executor's timeout, or one of the confirmer's own: both mean that no answer came.
        raise
    except (ConfigurationError, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException:  # noqa: BLE001 - an error of the application's code is no permission, and SystemExit would end the event loop
        telemetry.log.exception("confirmation.failed", tool=confirmation.tool, id=confirmation.call)
        confirmation.deny("asking for it failed")
        return
    if said is True:
        confirmation.allow()
    elif said is False:
        confirmation.deny()
    elif said is not None:
        error = f"the confirmer returned {told(said)}; it returns True, False or None"
        telemetry.log.error("confirmation.failed", tool=confirmation.tool, id=confirmation.call, error=error)
        confirmation.deny("the confirmer answered neither True nor False")
