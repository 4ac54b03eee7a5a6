"""A handler's questions to a person; while one is open the call's time stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolbus.bus.broker.protocols import Note
from toolbus.bus.values.confirmations import MOST_QUESTION, ConfirmationAnswer, ConfirmationRequest, denied, digest_of, plain, shown
from toolbus.bus.values.envelope import Confirm, new_run
from toolbus.bus.values.options import seconds
from toolbus.bus.values.results import BrokerError, CallRefused, ErrorInfo, ToolError, deadline_exceeded

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker


class AskingRun(Protocol):
    """The part of a run that its questions use."""

    delivery: Delivery

    @property
    def owner(self) -> str:
        """The owner of the tool."""

    def tell(self, confirm: Confirm) -> None:
        """Tell the caller that its call waits, or does so no longer."""

    def extend(self, deadline: float) -> None:
        """Set a later deadline, in monotonic seconds."""


class Questions:
    """The questions of one run, one at a time.

    Args:
        run: the run whose handler asks.
        broker: where a question waits for its answer.
        most: seconds that all of them together may wait.
        limit: bytes of the data of one.
        clock: returns monotonic seconds.
    """

    def __init__(self, run: AskingRun, broker: WorkerBroker, most: float, limit: int, clock: Callable[[], float]) -> None:
        self._run = run
        self._broker = broker
        self._left = most
        self._limit = limit
        self._clock = clock
        self._one = asyncio.Lock()

    async def ask(self, question: str, data: Any, timeout: float) -> ConfirmationAnswer:
        """Ask, and wait for the answer.

        Raises:
            ToolError: ``forbidden`` when it is no, ``deadline_exceeded`` when there is none, ``overloaded`` or ``unavailable`` when
                the server could not be reached.
            ToolError: ``invalid_arguments`` when question or data are too long to be shown.
            EnvelopeError: JSON can't express the data.
            ConfigurationError: ``timeout`` is no time.
        """
        timeout = seconds(timeout, "timeout")
        request = self._request(question, data)
        async with self._one:
            most = min(timeout, self._left)
            answer = await self._asked(request, most) if most > 0 else None
        if answer is None:
            raise CallRefused(deadline_exceeded(f"nobody answered within {most:g} s: {question}", "unconfirmed"))
        if not answer.allowed:
            raise CallRefused(denied(repr(question), answer.reason, answer.by))
        return answer

    async def _asked(self, request: ConfirmationRequest, most: float) -> ConfirmationAnswer | None:
        delivery, since = self._run.delivery, self._clock()
        deadline = delivery.deadline
        answer: ConfirmationAnswer | None = None
        told = False

        def opened() -> None:
            # Not before: a person may answer the request as soon as the caller shows it.
            nonlocal told
            told = True
            self._run.tell(Confirm(request.id, request.question, since + most - self._clock()))

        self._run.extend(deadline + most)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most):
                    await self._broker.extend(delivery, Note(deadline, since, since + most))
                left = since + most - self._clock()
                answer = await self._broker.ask(delivery, request, left, opened) if left > 0 else None
        except BrokerError as error:
            raise CallRefused(ErrorInfo("unavailable", "unconfirmed", f"nobody could be asked: {error}", retryable=True)) from None
        finally:
            took = min(self._clock() - since, most)
            self._left -= took
            self._run.extend(deadline + took)
            if told:
                self._run.tell(Confirm(request.id, allowed=None if answer is None else answer.allowed))
        with contextlib.suppress(BrokerError):
            # Without it the next run has a little more time than it should.
            await self._broker.extend(delivery, Note(delivery.deadline))
        return answer

    def _request(self, question: str, data: Any) -> ConfirmationRequest:
        if len(question) > MOST_QUESTION:
            # The end of it may be what matters.
            message = f"a question has at most {MOST_QUESTION:,} characters, not {len(question):,}; the rest belongs in its data"
            raise ToolError(message, type="invalid_arguments", code="unreadable")
        call = self._run.delivery.request
        value, document = plain(data, anything=True)
        return ConfirmationRequest(
            new_run(),
            call.id,
            call.tool,
            question,
            asker="worker",
            service=call.service,
            owner=self._run.owner,
            user=call.user,
            session=call.session,
            digest=digest_of("worker", call.service, call.tool, call.user, call.session, question, value),
            **({} if data is None else shown(value, document, self._limit)),
        ).bounded()
