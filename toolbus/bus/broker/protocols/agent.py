"""The caller's side of a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from toolbus.bus.broker.protocols.documents import (
    Chats,
    Conversations,
    Creations,
    ItemChange,
    RefusedTool,
    Routes,
    ServiceRecord,
    SessionResults,
    Tasks,
    Tokens,
)
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.envelope import BEGAN_LATE, NOT_BEGUN, NOT_FINISHED, NOT_TAKEN, Frame, Request
from toolbus.bus.values.results import ToolbusError


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of publishing one request.

    Attributes:
        status: ``queued`` (or joined, when another call with the same key runs already); ``full``; ``absent`` (no such queue);
            ``conflict`` (the idempotency key stands for a call with other arguments); ``unknown`` (the answer was lost, it may have
            been queued); ``failed`` (certainly not queued).
        entry: where it is queued, for cancelling it.
        depth: how many requests the full queue holds, queued and running.
        message: why it failed.
    """

    status: Literal["queued", "full", "absent", "conflict", "unknown", "failed"]
    entry: str = ""
    depth: int = 0
    message: str = ""


class Sender(Protocol):
    """A call that is being published."""

    @property
    def done(self) -> bool:
        """True when no caller waits for it any more; then it is not published."""

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""


Fate = Literal["removed", "signalled", "shared", "gone", "unknown"]
"""The outcome of a cancellation: ``removed`` (the call never ran and never will), ``signalled`` (a worker has it), ``shared`` (other
callers wait for it), ``gone`` (it has been answered, or the server forgot it), ``unknown`` (the server did not say)."""


class Usage(msgspec.Struct, frozen=True):
    """The cost of one user's calls of one tool; a tool that was called as a service has the service's id."""

    user: str
    tool: str
    calls: int = 0
    errors: int = 0
    ms: int = 0
    bytes: int = 0


class Tallies(Protocol):
    """The counts that all processes of a namespace share."""

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate of ``limit`` per ``period`` seconds; returns 0, or the seconds until there is room.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota, which starts anew in each period of the server's clock; returns and raises as ``spend``."""

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage. Returns at once."""

    async def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days (UTC, today is the first), by user and tool.

        Raises:
            BrokerError: the server could not be asked.
        """


class Confirmations(Protocol):
    """The requests that wait for a confirmation, which any process of a namespace can give."""

    async def ask(self, request: ConfirmationRequest, seconds: float) -> ConfirmationAnswer | None:
        """Open a request and wait for its answer; None when there is no answer within ``seconds``. Cancelling it withdraws the request.

        A permission that names another digest than the request's is a refusal.

        Raises:
            ToolError: ``overloaded``, because too many requests wait.
            BrokerError: the server refuses.
        """

    async def pending(self) -> list[ConfirmationRequest]:
        """Return the open requests, the oldest first, without the ``whole`` of their arguments.

        Raises:
            BrokerError: the server could not be asked.
        """

    async def get(self, id: str) -> ConfirmationRequest:
        """Return one open request.

        Raises:
            ConfirmationClosed: it is not open.
        """

    async def answer(self, id: str, answer: ConfirmationAnswer) -> None:
        """Answer a request; of several answers exactly one wins.

        Raises:
            ConfirmationClosed: it is not open, or another answer won.
        """

    def watch(self) -> AsyncIterator[ConfirmationRequest]:
        """Yield each request once: those that are open, and then new ones as they come."""


class AgentListener(Protocol):
    """Hears what arrives for an agent. Methods are called in the event loop and must not block."""

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take in frames of this agent's calls, in the order they were written."""

    def on_registry(self, services: Mapping[str, ServiceRecord | RefusedTool], items: Mapping[str, bytes | RefusedTool]) -> None:
        """Take in a fresh snapshot, which replaces everything known before; with the reason in place of what can't be read."""

    def on_service(self, service: str, record: ServiceRecord | RefusedTool | None) -> None:
        """Take in that a service changed, can't be read (with the reason), or is gone (None)."""

    def on_item(self, key: str, document: bytes | None) -> None:
        """Take in that a static descriptor changed, or was deleted (None)."""

    def on_replies_lost(self) -> None:
        """Take in that the reply stream had to be made anew: frames of running calls may be missing."""

    def on_failed(self, error: ToolbusError) -> None:
        """Take in that the broker can't go on: nothing arrives any more."""


class AgentBroker(Protocol):
    """The caller's side of a broker."""

    @property
    def tallies(self) -> Tallies:
        """The counts that all processes share."""

    @property
    def confirmations(self) -> Confirmations:
        """The requests that wait for a confirmation."""

    @property
    def conversations(self) -> Conversations:
        """The conversations that are kept."""

    @property
    def creations(self) -> Creations:
        """The tasks of coding agents."""

    @property
    def results(self) -> SessionResults:
        """The results of sessions' earlier calls."""

    @property
    def routes(self) -> Routes:
        """The places where recorded tools run."""

    @property
    def tokens(self) -> Tokens:
        """The records of bearer tokens."""

    @property
    def chats(self) -> Chats:
        """The chats with the service agent."""

    @property
    def tasks(self) -> Tasks:
        """The shared calls that are found by the ids of tasks."""

    @property
    def agent(self) -> str:
        """This process's agent id, fresh at each start."""

    async def open(self, listener: AgentListener) -> None:
        """Connect, load the registry's snapshot, and start to listen.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

    async def aclose(self) -> None:
        """Stop listening and remove this agent's keys."""

    def publish(self, request: Request, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        """Publish at the end of this tick, together with everything else published in it.

        While the server can't be reached it waits here, until ``deadline`` (local monotonic seconds).

        Raises:
            EnvelopeError: the request can't be encoded, or is too large.
        """

    def cancel(
        self,
        request: Request,
        queue: str,
        entry: str,
        on_fate: Callable[[Fate], None] | None = None,
        *,
        waited: float = 0.0,
        why: str = "cancelled",
    ) -> None:
        """Remove a queued call, or tell the worker that runs it. Returns at once; ``on_fate`` hears what was found.

        ``waited`` are the seconds by which its deadline is later than its timeout says, ``why`` is the type of the error with which it
        ended for its caller.
        """

    def forget(self, request: Request) -> None:
        """Stop listening for a call that has ended."""

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over, after everything that was published or cancelled before.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more.

        Raises:
            BrokerError: the server can't be reached.
        """

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document under ``tool/<name>``, ``tool-service/<id>`` or ``toolkit/<name>``; with an ``owner``, who alone may change it.

        Raises:
            RegistrationRefused: the name is published by a service, or belongs to another owner.
        """

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none. Without an ``owner`` an operator deletes it, whoever owns it.

        Raises:
            RegistrationRefused: it belongs to another owner.
        """

    async def replace_items(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed.

        None of the keys may be a name that services can hold.
        """

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""


_ENDS_OF_ANOTHER = frozenset({("cancelled", NOT_BEGUN), *(("deadline_exceeded", code) for code in (NOT_TAKEN, BEGAN_LATE, NOT_FINISHED))})


def ended_for_another(frame: Frame) -> bool:
    """Return whether a shared call ended before it began, since no caller waited for it, or because its first caller's time was up."""
    error = frame.error
    return error is not None and frame.end_of_stream and (error.type, error.code) in _ENDS_OF_ANOTHER


def readdressed(frame: Frame, call: str, attempts: int) -> Frame:
    """Return a shared call's frame for one of its callers, which had ``attempts`` attempts before."""
    if frame.id == call and not attempts:
        return frame
    return msgspec.structs.replace(frame, id=call, attempt=frame.attempt + attempts)
