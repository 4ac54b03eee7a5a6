"""``PendingConfirmations``: the confirmations that wait for an answer, here and in other processes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import msgspec

from toolbus import telemetry
from toolbus.broker import protocols
from toolbus.client.confirmations.confirmation import Confirmation, Confirmer
from toolbus.client.refusing import turning
from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest, denied
from toolbus.results import BrokerError, ConfigurationError, ConfirmationClosed, ErrorInfo, ToolError, deadline_exceeded
from toolbus.rules import told

# Seconds that an answer of this process waits for the server to say that it is the first one.
_TELLING = 1.0
_NOT_ASKED = frozenset({"overloaded", "unavailable"})


class PendingConfirmations(Mapping[str, Confirmation]):
    """The open confirmations: a mapping of this bus's own by id, and methods that reach every process of the namespace.

    Args:
        store: returns the requests that all processes share; raises ``ConfigurationError`` while the bus is not open.
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
                self._first_answer(confirmation, confirmer) if shared else _local_answer(confirmation, confirmer, confirmation.timeout)
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
            answer = await _local_answer(confirmation, confirmer, confirmation.timeout)
            if answer is None or answer.type == "forbidden":
                await self._is_first(confirmation, answer)

    async def _first_answer(self, confirmation: Confirmation, confirmer: Confirmer | None) -> ErrorInfo | None:
        """Return the first answer, of this process or of another."""
        here = asyncio.create_task(_local_answer(confirmation, confirmer, None))
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
            for task in (here, there):
                task.cancel()
            await asyncio.gather(here, there, return_exceptions=True)

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


async def _local_answer(confirmation: Confirmation, confirmer: Confirmer | None, seconds: float | None) -> ErrorInfo | None:
    """Return the answer of this process, of its confirmer or of whoever holds the request, within ``seconds`` if given."""
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
