"""A person's word before a call runs: the request that the person reads, and everything that waits for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from toolbus import telemetry
from toolbus.broker import protocols
from toolbus.client.tool import Tool
from toolbus.confirmations import MOST_NAME, ConfirmationAnswer, ConfirmationRequest, denied, digest_of, plain, shown
from toolbus.display import shortened
from toolbus.results import BrokerError, ConfigurationError, ConfirmationClosed, EnvelopeError, ErrorInfo, ToolError

# Seconds that an answer of this process waits for the server to say that it is the first one.
_TELLING = 1.0
_NOT_ASKED = frozenset({"overloaded", "unavailable"})


class Confirmation:
    """One call that waits for a person; ``str()`` is what the person reads.

    What is shown and what may run are both made of the arguments as they were when it was made; changing those changes neither.

    Attributes:
        id: what an answer names, in this process or another.
        call: the model's id of the call.
        tool, description, effect, external: the tool, as its publisher describes it.
        user, session: on whose behalf.
        timeout: seconds after which it is over.
        question: what the running handler asks; empty when the tool wants permission before it runs.
        request: the same for other processes; when the running handler asks, its own.
        shared: whether other processes are asked, too.
        reason: why it was denied here.

    Args:
        limit: most bytes of the arguments.

    Raises:
        ToolError: ``invalid_arguments``: JSON can't express the arguments, or they can't be shown to a person.
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
        self.description = tool.description
        self.effect = tool.descriptor.effect
        self.external = tool.descriptor.external
        self.user = user
        self.session = session
        self.timeout = timeout
        self.question = question
        self.shared = False
        self.reason = ""
        self._answer: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.request = self._request(tool, sent, limit)

    @property
    def digest(self) -> str:
        """Of what a permission is for; empty when a running handler asks."""
        return self.request.digest

    @property
    def arguments(self) -> dict[str, Any]:
        """What it would be called with; a new object each time, so that no reader changes what another one sees."""
        made: dict[str, Any] = msgspec.json.decode(self._document)
        return made

    @property
    def answered(self) -> bool:
        """Whether it was allowed or denied, or is over."""
        return self._answer.done()

    def allow(self) -> bool:
        """Let the call run; False when it was answered before."""
        return self._settle(None)

    def deny(self, reason: str = "") -> bool:
        """End the call as ``forbidden``; False when it was answered before."""
        if not self.answered:
            self.reason = reason
        return self._settle(denied(f"this call of {self.tool!r}", reason))

    async def answer(self) -> ErrorInfo | None:
        """Wait for the answer: None when the call may run."""
        return await self._answer

    def _request(self, tool: Tool, sent: Any, limit: int) -> ConfirmationRequest:
        service = tool.resolution.service
        digest = "" if self.question else digest_of("agent", service, self.tool, self.user, self.session, "", sent)
        behalf = f" for {shortened(self.user, MOST_NAME)}" if self.user else ""
        return ConfirmationRequest(
            self.id,
            self.call,
            self.tool,
            self.question or f"Allow {self.tool}{behalf}?",
            asker="worker" if self.question else "agent",
            service=service,
            owner=tool.owner,
            user=self.user,
            session=self.session,
            digest=digest,
            description=self.description,
            effect=self.effect,
            external=self.external,
            **({} if self.question else shown(sent, self._document, limit)),
        ).bounded()

    def __str__(self) -> str:
        return str(self.request)

    def __repr__(self) -> str:
        return f"<confirmation {self.id}: {self.tool!r}>"

    def _settle(self, answer: ErrorInfo | None) -> bool:
        if self._answer.done():
            return False
        self._answer.set_result(answer)
        return True


Confirmer = Callable[[Confirmation], "Awaitable[bool | None] | bool | None"]
"""Answers with True or False, or with None and later by ``allow()`` or ``deny()``."""


class Confirmations(Mapping[str, Confirmation]):
    """What waits for a person: a mapping of this bus's own calls by id, and methods that reach every process of the namespace.

    Args:
        store: the open bus's shared requests.
    """

    def __init__(self, store: Callable[[], protocols.Confirmations]) -> None:
        self._store = store
        self._waiting: dict[str, Confirmation] = {}

    def __getitem__(self, id: str) -> Confirmation:
        return self._waiting[id]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    # -- answering --------------------------------------------------------------------------------

    async def pending(self, *, user: str | None = None) -> list[ConfirmationRequest]:
        """The open requests of all processes, the oldest first, perhaps of one user only, without the ``whole`` of their arguments.

        Raises:
            BrokerError: the server can't be reached.
        """
        return [request for request in await self._store().pending() if user is None or request.user == user]

    async def get(self, id: str) -> ConfirmationRequest:  # type: ignore[override] # the mapping's own could only find ours
        """One open request of any process.

        Raises:
            ConfirmationClosed: it is not open.
            BrokerError: the server can't be reached.
        """
        return await self._store().get(id)

    async def allow(self, id: str, note: str = "", *, by: str = "", digest: str = "") -> None:
        """Let a call of any process go on.

        Args:
            digest: of the request that was shown to whoever allows it; left out, of the one that is open now.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
            BrokerError: the server can't be reached.
        """
        await self.answer(id, ConfirmationAnswer(True, note, by, digest))

    async def deny(self, id: str, reason: str = "", *, by: str = "") -> None:
        """End a call of any process as ``forbidden``; raises as ``allow`` does."""
        await self.answer(id, ConfirmationAnswer(False, reason, by))

    def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Each open request of all processes once, and then new ones as they come, until the bus is closed.

        Raises:
            BrokerError: the server can't be reached.
        """
        return self._store().watch()

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request of any process; raises as ``allow`` does."""
        try:
            if answer.allowed and not answer.digest:
                answer = msgspec.structs.replace(answer, digest=(await self._store().get(id)).digest)
            await self._store().answer(id, answer)
        except ConfirmationClosed as error:
            # One of our own that others are not asked about, or not yet.
            own = self._waiting.get(id)
            if error.answered or own is None or not _settles(own, answer):
                raise

    # -- asking -----------------------------------------------------------------------------------

    async def settled(self, confirmation: Confirmation, confirmer: Confirmer | None, *, shared: bool) -> ErrorInfo | None:
        """Ask, and wait for the first answer: None when the call may run, else how it ends. ``shared`` asks all processes."""
        self._waiting[confirmation.id] = confirmation
        confirmation.shared = shared
        telemetry.log.info("confirmation.asked", tool=confirmation.tool, id=confirmation.id, call=confirmation.call, user=confirmation.user)
        try:
            refused = await (self._first(confirmation, confirmer) if shared else _here(confirmation, confirmer, confirmation.timeout))
        finally:
            del self._waiting[confirmation.id]
            confirmation.deny("it is over")
        outcome = "allowed" if refused is None else refused.code
        telemetry.log.info("confirmation.settled", tool=confirmation.tool, id=confirmation.id, call=confirmation.call, outcome=outcome)
        return refused

    async def relay(self, confirmation: Confirmation, confirmer: Confirmer) -> None:
        """Let a confirmer answer what a running handler asks, unless somebody else is first."""
        with contextlib.suppress(ConfirmationClosed, BrokerError):
            # The handler's own request has what it shows, beside its question.
            confirmation.request = await self._store().get(confirmation.id)
            answer = await _here(confirmation, confirmer, confirmation.timeout)
            if answer is None or answer.type == "forbidden":
                await self._won(confirmation, answer)

    async def _first(self, confirmation: Confirmation, confirmer: Confirmer | None) -> ErrorInfo | None:
        """The first answer, of this process or of another."""
        here = asyncio.create_task(_here(confirmation, confirmer, None))
        there = asyncio.create_task(self._there(confirmation))
        try:
            await asyncio.wait((here, there), return_when=asyncio.FIRST_COMPLETED)
            if there.done():
                refused = there.result()
                if confirmer is None or refused is None or refused.type not in _NOT_ASKED:
                    return refused
                # Others can't be asked, and somebody here is.
                telemetry.log.warning("confirmation.not_shared", id=confirmation.id, tool=confirmation.tool, error=str(refused))
                async with asyncio.timeout(confirmation.timeout):
                    return await here
            own = here.result()
            if (own is None or own.type == "forbidden") and await self._won(confirmation, own):
                return own
            return await there
        except TimeoutError:
            return _unanswered(confirmation)
        finally:
            for task in (here, there):
                task.cancel()
            await asyncio.gather(here, there, return_exceptions=True)

    async def _won(self, confirmation: Confirmation, own: ErrorInfo | None) -> bool:
        """Whether our own answer is the first one; other processes are told of it."""
        answer = ConfirmationAnswer(own is None, confirmation.reason, digest=confirmation.digest)
        try:
            async with asyncio.timeout(_TELLING):
                await self._store().answer(confirmation.id, answer)
        except ConfirmationClosed as error:
            return not error.answered
        except (BrokerError, TimeoutError):
            # Whoever answered elsewhere can't be heard: what was said here holds.
            return True
        return True

    async def _there(self, confirmation: Confirmation) -> ErrorInfo | None:
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
    return ErrorInfo("deadline_exceeded", "unconfirmed", message)


async def _here(confirmation: Confirmation, confirmer: Confirmer | None, seconds: float | None) -> ErrorInfo | None:
    """The answer of this process within so many seconds: of the confirmer, or of whoever has the request."""
    answer = asyncio.ensure_future(confirmation.answer())
    asking = [] if confirmer is None else [asyncio.create_task(_ask(confirmer, confirmation))]
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait((answer, *asking), return_when=asyncio.FIRST_COMPLETED)
            for asked in asking:
                if asked.done():
                    asked.result()
            return await answer
    except TimeoutError:
        return _unanswered(confirmation)
    finally:
        for task in (answer, *asking):
            task.cancel()
        await asyncio.gather(answer, *asking, return_exceptions=True)


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
