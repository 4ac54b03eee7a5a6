"""The in-process broker behind ``memory://``: the same tools without a server, for tests and notebooks.

Everything stays in one event loop. Documents are encoded and decoded as they would be on the
wire, so that what works here works over Redis. There are no leases: nothing can crash alone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from toolbus import telemetry
from toolbus.broker.memory_confirmations import MemoryConfirmations
from toolbus.broker.protocols import (
    AgentListener,
    Beginning,
    Delivery,
    Fate,
    Note,
    Sender,
    ServiceRecord,
    Verdict,
    WorkerListener,
    session_of,
)
from toolbus.broker.tallies import MemoryTallies
from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.descriptors import Publication
from toolbus.envelope import (
    Request,
    arguments_digest,
    decode_frames,
    decode_request,
    encode,
    encode_request,
    join_frames,
    new_id,
    new_run,
    share_digest,
)
from toolbus.results import BrokerUnavailable, EnvelopeError, RegistrationRefused
from toolbus.settings import Settings

_TAKE_WAIT = 2.0
_DEAD_LETTERS = 1_000


class _Entry(NamedTuple):
    id: str
    document: bytes
    published: float
    deadline: float
    attempt: int
    session: tuple[str, str] | None


class _Queue:
    def __init__(self) -> None:
        self.waiting: deque[_Entry] = deque()
        self.running = 0
        self.dead: deque[tuple[str, bytes]] = deque(maxlen=_DEAD_LETTERS)
        # Of a service whose sessions are sticky.
        self.owners: dict[tuple[str, str], MemoryWorkerBroker] = {}


class _Shared:
    """A call with an idempotency key: what it stands for, every frame so far, and who reads them."""

    def __init__(self, request: Request, entry: str, kept_until: float) -> None:
        self.call = request.id
        self.arguments = arguments_digest(request)
        self.entry = entry
        self.kept_until = kept_until
        self.frames: list[bytes] = []
        self.callers: dict[str, MemoryAgentBroker] = {}


class _Instance(NamedTuple):
    publication: Publication
    worker: MemoryWorkerBroker


class _Hub:
    """What the processes of one namespace would share through the server."""

    def __init__(self) -> None:
        self.queues: dict[str, _Queue] = {}
        self.instances: dict[str, list[_Instance]] = {}
        self.items: dict[str, bytes] = {}
        self.owners: dict[str, str] = {}
        self.agents: dict[str, MemoryAgentBroker] = {}
        self.workers: set[MemoryWorkerBroker] = set()
        self.started: dict[str, str] = {}
        # By share digest, and by the call that runs: a failed call frees its key and keeps its readers.
        self.shared: dict[str, _Shared] = {}
        self.shared_calls: dict[str, _Shared] = {}
        self.tallies = MemoryTallies()
        self.confirmations = MemoryConfirmations()
        self.arrived = asyncio.Event()
        self.entries = itertools.count(1)

    def claim(self, key: str, owner: str) -> None:
        """Refuse a document that is somebody else's."""
        holder = self.owners.get(key, owner)
        if holder != owner:
            raise RegistrationRefused(f"{key} belongs to {holder!r}", {key: holder})

    def is_registered(self, worker: MemoryWorkerBroker) -> bool:
        """Whether a worker takes requests: neither draining nor closed."""
        return any(instance.worker is worker for instances in self.instances.values() for instance in instances)

    def record(self, service: str) -> ServiceRecord | None:
        instances = self.instances.get(service)
        return ServiceRecord(instances[-1].publication, True) if instances else None

    def forget_old(self) -> None:
        """Drop shared answers whose retention is over."""
        now = time.monotonic()
        for held in (self.shared, self.shared_calls):
            for key in [key for key, shared in held.items() if shared.kept_until < now]:
                del held[key]

    def serving(self, queues: Collection[str]) -> list[tuple[MemoryWorkerBroker, str]]:
        """Who takes from these queues, draining workers too, each with its service."""
        return [(worker, service) for worker in self.workers for service in worker.services_of(queues)]

    def announce(self, service: str) -> None:
        for agent in list(self.agents.values()):
            agent.listener.on_service(service, self.record(service))

    def holder(self, tool: str) -> Publication | None:
        for instances in self.instances.values():
            for instance in instances:
                if any(tool == each.name for each in instance.publication.tools):
                    return instance.publication
        return None


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Hub]] = weakref.WeakKeyDictionary()


def _hub(settings: Settings) -> _Hub:
    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    return hubs.setdefault((settings.url, settings.namespace), _Hub())


class MemoryAgentBroker:
    """``AgentBroker`` in process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._agent = new_id()
        self.listener: AgentListener
        self._hub: _Hub | None = None
        self._published = 0
        self._frames = 0

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        return self._agent

    @property
    def tallies(self) -> MemoryTallies:
        """What all processes count together."""
        return self._joined().tallies

    @property
    def confirmations(self) -> MemoryConfirmations:
        """Requests that wait for a person."""
        return self._joined().confirmations

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""
        return {"published": self._published, "frames": self._frames}

    async def open(self, listener: AgentListener) -> None:
        """Join the hub of this event loop, URL and namespace."""
        self.listener = listener
        self._hub = hub = _hub(self._settings)
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
                shared = _Shared(request, verdict.entry, deadline + self._settings.retention)
                hub.shared[key] = hub.shared_calls[shared.call] = shared
        elif shared.arguments != arguments_digest(request):
            verdict, shared = Verdict("conflict"), None
        else:
            verdict = Verdict("queued", entry=shared.entry)
        sender.settle(verdict)
        if shared is not None and not sender.done:
            shared.callers[request.id] = self
            for frames in shared.frames:
                self.receive(frames, request.id)

    def _verdict(self, request: Request, document: bytes, queue: str, limit: int, deadline: float) -> Verdict:
        if self._hub is None:
            return Verdict("failed", message="the bus is closed")
        target = self._hub.queues.get(queue)
        if target is None:
            return Verdict("absent", message="the service has no queue")
        depth = len(target.waiting) + target.running
        if depth >= limit:
            return Verdict("full", depth=depth)
        entry = _Entry(str(next(self._hub.entries)), document, time.monotonic(), deadline, 1, session_of(request))
        target.waiting.append(entry)
        self._hub.arrived.set()
        return Verdict("queued", entry=entry.id)

    def cancel(
        self, request: Request, queue: str, entry: str, on_fate: Callable[[Fate], None] | None = None, *, waited: float = 0.0
    ) -> None:
        """Remove a queued call, or tell the worker that runs it."""
        fate = self._leave(request, queue) if request.shared else self._cancel(request.id, queue, entry)
        if on_fate is not None:
            on_fate(fate)

    def _leave(self, request: Request, queue: str) -> Fate:
        shared = self._hub.shared.get(share_digest(request)) if self._hub is not None else None
        if self._hub is None or shared is None:
            return "gone"
        shared.callers.pop(request.id, None)
        if shared.callers:
            return "shared"
        fate = self._cancel(shared.call, queue, shared.entry)
        if fate == "removed" or (fate == "signalled" and request.effect != "once"):
            self._hub.shared.pop(share_digest(request), None)
        return fate

    def forget(self, request: Request) -> None:
        """Stop listening for a call that has ended."""
        if request.shared and self._hub is not None:
            for shared in self._hub.shared_calls.values():
                shared.callers.pop(request.id, None)

    def _cancel(self, call: str, queue: str, entry: str) -> Fate:
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
            worker.listener.on_cancelled(call)
        return "signalled"

    async def close_session(self, user: str, session: str, queues: Collection[str]) -> None:
        """Tell the workers of these queues that a session is over."""
        for worker, service in self._joined().serving(queues):
            worker.listener.sessions.closed(service, user, session)

    async def leave_sessions(self, queues: Collection[str]) -> None:
        """Tell the workers of these queues that this agent uses no session any more."""
        for worker, service in self._joined().serving(queues):
            worker.listener.sessions.left(service, self._agent)

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document."""
        hub = self._joined()
        if owner:
            hub.claim(key, owner)
            hub.owners[key] = owner
        kind, _, name = key.partition("/")
        holder = hub.holder(name) if kind == "tool" else getattr(hub.record(name) if kind == "tool-service" else None, "publication", None)
        if holder is not None:
            raise RegistrationRefused(f"{key} is published by {holder.owner!r}", {key: holder.owner})
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

    def _joined(self) -> _Hub:
        if self._hub is None:
            raise BrokerUnavailable("the bus is closed")
        return self._hub

    def receive(self, frames: bytes, call: str = "") -> None:
        """Take in a reply entry, as the reader of a reply stream would; ``call`` is the reader of a shared one."""
        decoded, problems = decode_frames(frames, limit=4 * self._settings.max_frame + 262_144)
        for problem in problems:
            telemetry.log.error("frame.malformed", agent=self._agent, error=problem)
        self._frames += len(decoded)
        if call:
            decoded = [msgspec.structs.replace(frame, id=call) for frame in decoded]
        self.listener.on_frames(decoded)


class MemoryWorkerBroker:
    """``WorkerBroker`` in process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._instance = f"memory-{new_run()}"
        self.listener: WorkerListener
        self._hub: _Hub
        self._services: dict[str, Publication] = {}
        self._held: dict[str, tuple[Delivery, _Entry]] = {}
        self._interrupted = asyncio.Event()
        self._finished = 0

    @property
    def instance(self) -> str:
        """This worker's instance id."""
        return self._instance

    @property
    def tallies(self) -> MemoryTallies:
        """What all processes count together."""
        return self._hub.tallies

    @property
    def connected(self) -> bool:
        """Always: there is no server."""
        return True

    @property
    def congested(self) -> bool:
        """Never: frames are handed over at once."""
        return False

    async def room(self) -> None:
        """Let the callers in this loop take in what was sent."""
        await asyncio.sleep(0)

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""
        return {"calls_finished": self._finished, "held": len(self._held)}

    async def open(self, listener: WorkerListener) -> None:
        """Join the hub of this event loop, URL and namespace."""
        self.listener = listener
        self._hub = _hub(self._settings)
        self._hub.workers.add(self)

    async def register(self, publication: Publication) -> None:
        """Publish a service and its tools; raises RegistrationRefused when names belong to another owner."""
        service = publication.service.id
        refused: dict[str, str] = {}
        for instance in self._hub.instances.get(service, ()):
            if instance.publication.owner != publication.owner:
                refused[f"tool-service/{service}"] = instance.publication.owner
        for tool in publication.tools:
            holder = self._hub.holder(tool.name)
            if holder is not None and (holder.owner != publication.owner or holder.service.id != service):
                refused[f"tool/{tool.name}"] = holder.owner
            elif f"tool/{tool.name}" in self._hub.items:
                refused[f"tool/{tool.name}"] = "operator"
        if refused:
            listed = ", ".join(f"{name} belongs to {owner!r}" for name, owner in refused.items())
            raise RegistrationRefused(f"not registered as {publication.owner!r}: {listed}", refused)
        self._services[service] = publication
        self._hub.queues.setdefault(publication.service.queue, _Queue())
        self._hub.instances.setdefault(service, []).append(_Instance(publication, self))
        self._hub.announce(service)

    async def unregister(self) -> None:
        """Take every service of this worker out of the registry."""
        for service in self._services:
            left = [instance for instance in self._hub.instances.get(service, []) if instance.worker is not self]
            if left:
                self._hub.instances[service] = left
            else:
                self._hub.instances.pop(service, None)
            self._hub.announce(service)
        # What waits for this worker is anybody's now.
        self._hub.arrived.set()

    def services_of(self, queues: Collection[str]) -> list[str]:
        """The services of this worker that take from one of these queues."""
        return [service for service, publication in self._services.items() if publication.service.queue in queues]

    async def take(self, slots: int) -> list[Delivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""
        try:
            async with asyncio.timeout(_TAKE_WAIT):
                while not self._interrupted.is_set():
                    taken = self._take_nowait(slots)
                    if taken:
                        return taken
                    self._hub.arrived.clear()
                    await self._hub.arrived.wait()
        except TimeoutError:
            pass
        self._interrupted.clear()
        return []

    def _take_nowait(self, slots: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for publication in self._services.values():
            queue = self._hub.queues[publication.service.queue]
            for entry in self._takeable(queue, slots - len(taken), sticky=publication.service.sticky_sessions):
                try:
                    request = decode_request(entry.document, limit=self._settings.max_request + 1024)
                except EnvelopeError as error:
                    telemetry.log.error("request.malformed", service=publication.service.id, error=str(error))
                    queue.dead.append((str(error), entry.document))
                    continue
                age = (time.monotonic() - entry.published) * 1000
                delivery = Delivery(
                    request, request.agent, queue, entry.id.encode(), None, 0, entry.attempt, entry.deadline, age, new_run()
                )
                self._held[entry.id] = delivery, entry
                queue.running += 1
                taken.append(delivery)
        return taken

    def _takeable(self, queue: _Queue, most: int, *, sticky: bool) -> list[_Entry]:
        """Take entries off a queue; those of sessions that other live workers have stay for them."""
        if not sticky:
            return [queue.waiting.popleft() for _ in range(min(most, len(queue.waiting)))]
        taken: list[_Entry] = []
        for entry in list(queue.waiting):
            if len(taken) < most and (entry.session is None or self._owns(queue, entry.session)):
                queue.waiting.remove(entry)
                taken.append(entry)
        return taken

    def _owns(self, queue: _Queue, session: tuple[str, str]) -> bool:
        owner = queue.owners.get(session)
        if owner is None or not self._hub.is_registered(owner):
            owner = queue.owners[session] = self
        return owner is self

    def release_session(self, service: str, user: str, session: str) -> None:
        """Give up a session that has ended here."""
        publication = self._services.get(service)
        queue = self._hub.queues.get(publication.service.queue) if publication is not None else None
        if queue is not None and queue.owners.get((user, session)) is self:
            del queue.owners[user, session]
            self._hub.arrived.set()

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now."""
        self._interrupted.set()
        self._hub.arrived.set()

    async def recover(self) -> None:
        """Nothing: no worker dies alone."""

    async def retry(self, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a delivery whose run has failed."""
        held = self._held.get(delivery.entry.decode())
        if held is None or held[0] is not delivery:
            return None
        again = delivery.again(delivery.attempt + 1, new_run())
        self._held[delivery.entry.decode()] = again, held[1]._replace(attempt=again.attempt)
        return again

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Put deliveries that have not been answered back at the head of their queue."""
        for delivery in deliveries:
            held = self._held.pop(delivery.entry.decode(), None)
            if held is not None:
                delivery.queue.running -= 1
                delivery.queue.waiting.appendleft(held[1])
        self._hub.arrived.set()

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask a person on a handler's behalf."""
        return await self._hub.confirmations.ask(request, seconds, opened)

    async def extend(self, delivery: Delivery, note: Note) -> None:
        """Note the later deadline of a delivery."""
        held = self._held.get(delivery.entry.decode())
        if held is not None:
            self._held[delivery.entry.decode()] = held[0], held[1]._replace(deadline=note.deadline + note.until - note.since)

    async def begin(self, delivery: Delivery) -> Beginning:
        """Mark that a ``once`` handler begins."""
        return "started" if self._hub.started.setdefault(delivery.request.id, delivery.run) == delivery.run else "began"

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""
        self._send(delivery, frame)

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` at the end of this tick."""
        asyncio.get_running_loop().call_soon(pack)

    def finish(self, delivery: Delivery, frame: bytes, *, failed: bool = False) -> None:
        """Send the last frame and forget the request."""
        request = delivery.request
        if failed and request.shared and request.effect != "once":
            self._hub.shared.pop(share_digest(request), None)
        if self._held.pop(delivery.entry.decode(), None) is not None:
            delivery.queue.running -= 1
            self._hub.started.pop(delivery.request.id, None)
            self._finished += 1
            self._send(delivery, frame)

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame."""
        delivery.queue.dead.append((f"{reason}: {error}", encode(delivery.request)))
        self.finish(delivery, frame, failed=True)

    def _send(self, delivery: Delivery, frame: bytes) -> None:
        if delivery.request.shared:
            shared = self._hub.shared_calls.get(delivery.request.id)
            if shared is not None:
                shared.frames.append(join_frames([frame]))
                for call, caller in list(shared.callers.items()):
                    asyncio.get_running_loop().call_soon(caller.receive, shared.frames[-1], call)
            return
        agent = self._hub.agents.get(delivery.replies)
        if agent is not None:
            asyncio.get_running_loop().call_soon(agent.receive, join_frames([frame]))

    async def aclose(self) -> None:
        """Give back what is still held, as a crash of a worker process would."""
        for delivery, entry in self._held.values():
            delivery.queue.running -= 1
            delivery.queue.waiting.appendleft(entry._replace(attempt=entry.attempt + 1))
        self._held.clear()
        self._hub.workers.discard(self)
        self._hub.arrived.set()
        for name in [publication.service.queue for publication in self._services.values()]:
            queue = self._hub.queues.get(name)
            if queue is not None and not queue.waiting and not queue.running and not self._served(name):
                del self._hub.queues[name]
        self._services.clear()

    def _served(self, queue: str) -> bool:
        return any(i.publication.service.queue == queue for instances in self._hub.instances.values() for i in instances)
