"""The caller's side of a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from toolbus.broker.protocols.chats import Chats
from toolbus.broker.protocols.confirmations import Confirmations
from toolbus.broker.protocols.conversations import Conversations
from toolbus.broker.protocols.creations import Creations
from toolbus.broker.protocols.publish import Fate, Sender
from toolbus.broker.protocols.registry import ItemChange, RefusedTool, ServiceRecord
from toolbus.broker.protocols.results import SessionResults
from toolbus.broker.protocols.routes import Routes
from toolbus.broker.protocols.tallies import Tallies
from toolbus.broker.protocols.tasks import Tasks
from toolbus.broker.protocols.tokens import Tokens
from toolbus.envelope import Frame, Request
from toolbus.results import ToolbusError


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
