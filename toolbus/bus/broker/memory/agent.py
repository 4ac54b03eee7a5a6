"""The agent's side of ``memory://``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from toolbus.bus import telemetry
from toolbus.bus.broker.memory.confirmations import MemoryConfirmations
from toolbus.bus.broker.memory.conversations import MemoryConversations
from toolbus.bus.broker.memory.creations import MemoryCreations
from toolbus.bus.broker.memory.hub import (
    Hub,
    MemoryChats,
    MemoryRoutes,
    MemorySessionResults,
    MemoryTallies,
    MemoryTokens,
    QueuedEntry,
    SharedCall,
    hub_of,
)
from toolbus.bus.broker.protocols import AgentListener, Fate, ItemChange, Sender, Verdict, session_of
from toolbus.bus.broker.protocols.agent import ended_for_another, readdressed
from toolbus.bus.broker.protocols.documents import TaskFrames, TaskRecord
from toolbus.bus.broker.reading import check_document
from toolbus.bus.broker.registry.registry import item_refused
from toolbus.bus.values.envelope import Frame, Request, decode_frames, encode_request, entry_limit, new_id, share_digest, work_digest
from toolbus.bus.values.results import BrokerUnavailable
from toolbus.bus.values.settings import Settings


class MemoryTasks:
    """``Tasks`` within one event loop.

    Args:
        follow: joins a shared call as one of its readers.
    """

    def __init__(self, hub: Hub, settings: Settings, follow: Callable[[str, str], None]) -> None:
        self._hub = hub
        self._limit = entry_limit(settings.max_frame)
        self.follow = follow

    async def put(self, user: str, id: str, record: TaskRecord) -> None:
        """Keep a record, or replace it while it is kept."""
        now = time.time()
        self._hub.tasks = {key: each for key, each in self._hub.tasks.items() if each.created + each.kept > now}
        if not record.cancelled or (user, id) in self._hub.tasks:
            self._hub.tasks[user, id] = record

    async def get(self, user: str, id: str) -> TaskRecord | None:
        """Return the record of a user's task, or None."""
        record = self._hub.tasks.get((user, id))
        return record if record is not None and record.created + record.kept > time.time() else None

    async def frames(self, call: str) -> TaskFrames | None:
        """Return the frames of a shared call so far, or None."""
        self._hub.forget_old()
        shared = self._hub.shared_calls.get(call)
        if shared is None:
            return None
        frames: list[Frame] = []
        for entry in shared.frames:
            frames += decode_frames(entry, limit=self._limit)[0]
        return TaskFrames(frames, time.time())


class MemoryAgentBroker:
    """``AgentBroker`` in process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._agent = new_id()
        self.listener: AgentListener
        self._hub: Hub | None = None
        self._published = 0
        self._frames = 0
        # By call: how those that joined another one publish again, and how many attempts they had before.
        self._again: dict[str, Callable[[], None]] = {}
        self._attempts: dict[str, int] = {}

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        return self._agent

    @property
    def tallies(self) -> MemoryTallies:
        """The counts that all processes share."""
        return self._joined().tallies

    @property
    def confirmations(self) -> MemoryConfirmations:
        """The requests that wait for a confirmation."""
        return self._joined().confirmations

    @property
    def conversations(self) -> MemoryConversations:
        """The conversations that are kept."""
        return self._joined().conversations

    @property
    def creations(self) -> MemoryCreations:
        """The tasks of coding agents."""
        return self._joined().creations

    @property
    def results(self) -> MemorySessionResults:
        """The results of sessions' earlier calls."""
        return self._joined().results

    @property
    def routes(self) -> MemoryRoutes:
        """The places where recorded tools run."""
        return self._joined().routes

    @property
    def tokens(self) -> MemoryTokens:
        """The records of bearer tokens."""
        return self._joined().tokens

    @property
    def chats(self) -> MemoryChats:
        """The chats with the service agent."""
        return self._joined().chats

    @property
    def tasks(self) -> MemoryTasks:
        """The shared calls that are found by the ids of tasks."""
        return MemoryTasks(self._joined(), self._settings, self._follow)

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        return {"published": self._published, "frames": self._frames}

    async def open(self, listener: AgentListener) -> None:
        """Join the hub of this event loop, URL and namespace."""
        self.listener = listener
        self._hub = hub = hub_of(self._settings)
        hub.agents[self._agent] = self
        services = {service: record for service in hub.instances if (record := hub.record(service)) is not None}
        listener.on_registry(services, dict(hub.items))

    async def aclose(self) -> None:
        """Leave the hub."""
        if self._hub is not None:
            for worker in list(self._hub.workers):
                worker.listener.sessions.gone({self._agent})
            self._hub.agents.pop(self._agent, None)
            self._hub = None

    def publish(self, request: Request, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        """Publish at the end of this tick; raises EnvelopeError when the request can't be encoded."""
        document = encode_request(request, limit=self._settings.max_request)
        self._published += 1
        asyncio.get_running_loop().call_soon(self._publish, request, document, queue, limit, deadline, sender)

    def _publish(self, request: Request, document: bytes, queue: str, limit: int, deadline: float, sender: Sender) -> None:
        if sender.done:
            return
        if not request.shared or self._hub is None:
            sender.settle(self._verdict(request, document, queue, limit, deadline))
            return
        hub, key = self._hub, share_digest(request)
        hub.forget_old()
        shared = hub.shared.get(key)
        if shared is None:
            verdict = self._verdict(request, document, queue, limit, deadline)
            if verdict.status == "queued":
                shared = SharedCall(request, verdict.entry, deadline + self._settings.retention)
                hub.shared[key] = hub.shared_calls[shared.call] = shared
        elif shared.work != work_digest(request):
            verdict, shared = Verdict("conflict"), None
        else:
            verdict = Verdict("queued", entry=shared.entry)
        sender.settle(verdict)
        if shared is not None and not sender.done:
            if shared.call != request.id:
                self._extend(hub, shared, queue, deadline)
                self._again[request.id] = lambda: self._publish(request, document, queue, limit, deadline, sender)
            shared.callers[request.id] = self
            for frames in shared.frames:
                self.receive(frames, request.id)

    def _extend(self, hub: Hub, shared: SharedCall, queue: str, deadline: float) -> None:
        """Give a call the time of one that joined it."""
        waiting = hub.queues[queue].waiting if queue in hub.queues else ()
        for at, entry in enumerate(waiting):
            if entry.id == shared.entry and entry.deadline < deadline:
                hub.queues[queue].waiting[at] = entry._replace(deadline=deadline)
                return
        for worker in list(hub.workers):
            worker.listener.on_extended(shared.call, deadline)

    def _verdict(self, request: Request, document: bytes, queue: str, limit: int, deadline: float) -> Verdict:
        if self._hub is None:
            return Verdict("failed", message="the bus is closed")
        target = self._hub.queues.get(queue)
        if target is None:
            return Verdict("absent", message="the service has no queue")
        depth = len(target.waiting) + target.running
        if depth >= limit:
            return Verdict("full", depth=depth)
        entry = QueuedEntry(str(next(self._hub.entries)), document, time.monotonic(), deadline, 1, session_of(request), request.ordered)
        target.waiting.append(entry)
        self._hub.arrived.set()
        return Verdict("queued", entry=entry.id)

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
        """Remove a queued call, or tell the worker that runs it."""
        fate = self._leave(request, queue, why) if request.shared else self._cancel(request.id, queue, entry, why)
        if on_fate is not None:
            on_fate(fate)

    def _leave(self, request: Request, queue: str, why: str) -> Fate:
        shared = self._hub.shared.get(share_digest(request)) if self._hub is not None else None
        if self._hub is None or shared is None:
            return "gone"
        shared.callers.pop(request.id, None)
        if shared.callers:
            return "shared"
        fate = self._cancel(shared.call, queue, shared.entry, why)
        if fate == "removed" or (fate == "signalled" and request.effect != "once"):
            self._hub.shared.pop(share_digest(request), None)
        return fate

    def forget(self, request: Request) -> None:
        """Stop listening for a call that has ended."""
        self._again.pop(request.id, None)
        self._attempts.pop(request.id, None)
        if request.shared:
            self._leave_shared(request.id)

    def _follow(self, call: str, reader: str) -> None:
        shared = self._joined().shared_calls.get(call)
        if shared is not None:
            shared.callers[reader] = self
            for frames in shared.frames:
                asyncio.get_running_loop().call_soon(self.receive, frames, reader)

    def _leave_shared(self, call: str) -> None:
        for shared in self._hub.shared_calls.values() if self._hub is not None else ():
            shared.callers.pop(call, None)

    def _cancel(self, call: str, queue: str, entry: str, why: str) -> Fate:
        target = self._hub.queues.get(queue) if self._hub is not None else None
        if self._hub is None or target is None:
            return "gone"
        if not entry:
            return "removed"
        for waiting in target.waiting:
            if waiting.id == entry:
                target.waiting.remove(waiting)
                return "removed"
        # Draining workers have left the registry, and still run what they took.
        for worker in list(self._hub.workers):
            worker.listener.on_cancelled(call, why)
        return "signalled"

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over."""
        for queue in queues:
            if queue in self._joined().queues:
                self._joined().queues[queue].snapshots.pop((user, session), None)
        for worker, service in self._joined().serving(queues):
            worker.listener.sessions.closed(service, user, session)

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more."""
        for worker, service in self._joined().serving(queues):
            worker.listener.sessions.left(service, self._agent)

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document."""
        check_document(key, document)
        hub = self._joined()
        hub.claim(key, owner)
        if owner:
            hub.owners[key] = owner
        kind, _, name = key.partition("/")
        holder = hub.holder(name) if kind == "tool" else getattr(hub.record(name) if kind == "tool-service" else None, "publication", None)
        if holder is not None:
            raise item_refused(key, holder.owner, owned=False, cooldown=0.0)
        hub.items[key] = document
        for agent in list(hub.agents.values()):
            agent.listener.on_item(key, document)

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none."""
        hub = self._joined()
        if owner:
            hub.claim(key, owner)
        hub.owners.pop(key, None)
        if hub.items.pop(key, None) is None:
            return False
        for agent in list(hub.agents.values()):
            agent.listener.on_item(key, None)
        return True

    async def replace_items(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once; return the key of one that is not what was expected."""
        hub = self._joined()
        for each in changes:
            check_document(each.key, each.document or b"")
            if hub.items.get(each.key) not in {each.expected, each.document}:
                return each.key
        for each in changes:
            if each.document is None:
                await self.delete_item(each.key)
            elif hub.items.get(each.key) != each.document:
                await self.put_item(each.key, each.document)
        return ""

    def _joined(self) -> Hub:
        if self._hub is None:
            raise BrokerUnavailable("the bus is closed")
        return self._hub

    def receive(self, frames: bytes, call: str = "") -> None:
        """Take in a reply entry, as the reader of a reply stream would; ``call`` is the reader of a shared one."""
        decoded, problems = decode_frames(frames, limit=entry_limit(self._settings.max_frame))
        for problem in problems:
            telemetry.log.error("frame.malformed", agent=self._agent, error=problem)
        self._frames += len(decoded)
        if call and decoded:
            if ended_for_another(decoded[-1]) and (again := self._again.pop(call, None)) is not None:
                self._leave_shared(call)
                self._attempts[call] = self._attempts.get(call, 0) + decoded[-1].attempt
                again()
                return
            decoded = [readdressed(frame, call, self._attempts.get(call, 0)) for frame in decoded]
        self.listener.on_frames(decoded)
