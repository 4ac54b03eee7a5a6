"""The worker's side of ``memory://``. There are no leases: nothing can crash alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from toolbus.bus import telemetry
from toolbus.bus.broker.memory.hub import Hub, Instance, MemoryRoutes, MemoryTallies, Queue, QueuedEntry, hub_of
from toolbus.bus.broker.protocols import NO_SNAPSHOT, Beginning, Delivery, Ending, Note, Snapshot, WorkerId, WorkerListener, session_of
from toolbus.bus.broker.registry.registry import registration_refused
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import decode_request, encode, join_frames, new_run, share_digest
from toolbus.bus.values.results import EnvelopeError
from toolbus.bus.values.settings import Settings

_TAKE_WAIT = 2.0
# Seconds between two looks at what is left of the calls of an old revision.
_LOOK_AGAIN = 0.02
_MOST_KEPT = 100_000


class MemoryDelivery(Delivery, eq=False, kw_only=True):
    """A delivery of a queue in process."""

    queue: Queue


class MemoryWorkerBroker:
    """``WorkerBroker`` in process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._instance = WorkerId(f"memory-{new_run()}")
        self.listener: WorkerListener
        self._hub: Hub
        self._services: dict[str, Publication] = {}
        self._held: dict[str, tuple[MemoryDelivery, QueuedEntry]] = {}
        self._interrupted = asyncio.Event()
        self._finished = 0
        self._withdrawn: set[str] = set()
        # Which service had the last turn.
        self._last = ""

    @property
    def instance(self) -> WorkerId:
        """This worker's instance id."""
        return self._instance

    @property
    def tallies(self) -> MemoryTallies:
        """The counts that all processes share."""
        return self._hub.tallies

    @property
    def routes(self) -> MemoryRoutes:
        """The places where recorded tools run."""
        return self._hub.routes

    @property
    def connected(self) -> bool:
        """True: there is no server to lose."""
        return True

    @property
    def congested(self) -> bool:
        """False: frames are handed over at once."""
        return False

    async def room(self) -> None:
        """Let the callers in this loop take in what was sent."""
        await asyncio.sleep(0)

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        return {"calls_finished": self._finished, "held": len(self._held)}

    async def open(self, listener: WorkerListener) -> None:
        """Join the hub of this event loop, URL and namespace."""
        self.listener = listener
        self._hub = hub_of(self._settings)
        self._hub.workers.add(self)

    async def register(self, publication: Publication, origin: str = "") -> None:
        """Publish a service and its tools; raises RegistrationRefused when a name is another owner's or the queue another service's."""
        service = publication.service.id
        refused: dict[str, str] = {}
        for instance in self._hub.instances.get(service, ()):
            if instance.worker is not self and instance.publication.owner != publication.owner:
                refused[f"tool-service/{service}"] = instance.publication.owner
        queue = publication.service.queue
        for other, instances in self._hub.instances.items():
            if other != service and instances[-1].publication.service.queue == queue:
                refused[f"queue/{queue}"] = f"{instances[-1].publication.owner} (service {other})"
        for tool in publication.tools:
            holder = self._hub.holder(tool.name)
            if holder is not None and holder.owner != publication.owner:
                refused[f"tool/{tool.name}"] = holder.owner
            elif holder is not None and holder.service.id != service:
                refused[f"tool/{tool.name}"] = f"{holder.owner} (service {holder.service.id})"
            elif f"tool/{tool.name}" in self._hub.items:
                refused[f"tool/{tool.name}"] = "operator"
        if refused:
            raise registration_refused(publication.owner, refused, {}, 0.0)
        self._services[service] = publication
        self._hub.queues.setdefault(queue, Queue())
        others = [instance for instance in self._hub.instances.get(service, []) if instance.worker is not self]
        self._hub.instances[service] = [*others, Instance(publication, self)]
        self._hub.announce(service)

    async def outlive(self, seconds: float) -> None:
        """Let callers turn to other revisions of the services, and wait until their older calls were taken."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for service, publication in list(self._services.items()):
                    others = [each for each in self._hub.instances.get(service, []) if each.worker is not self]
                    if others and all(each.publication.digest != publication.digest for each in others):
                        self._hub.instances[service] = [Instance(publication, self), *others]
                        self._hub.announce(service)
                        await self._taken(self._hub.queues[publication.service.queue])

    async def _taken(self, queue: Queue) -> None:
        newest = max((int(entry.id) for entry in queue.waiting), default=-1)
        while True:
            await asyncio.sleep(_LOOK_AGAIN)
            if not any(entry.worker is self or int(entry.id) <= newest for entry in queue.waiting):
                return

    async def unregister(self) -> None:
        """Take every service of this worker out of the registry."""
        for service in self._services:
            self._leave(service)
        # Any worker may take now what waits for this one.
        self._hub.arrived.set()

    async def withdraw(self, service: str) -> None:
        """Take one service out of the registry and take no more of its requests."""
        self._leave(service)
        self._withdrawn.add(service)
        self._hub.arrived.set()

    def held(self, service: str) -> int:
        """Return how many requests of a service were taken and are not answered."""
        return sum(delivery.request.service == service for delivery, _ in self._held.values())

    async def retire(self, service: str) -> None:
        """Forget a service that was withdrawn."""
        publication = self._services.pop(service)
        self._withdrawn.discard(service)
        self._forget_queue(publication.service.queue)

    def _leave(self, service: str) -> None:
        left = [instance for instance in self._hub.instances.get(service, []) if instance.worker is not self]
        if left:
            self._hub.instances[service] = left
        else:
            self._hub.instances.pop(service, None)
        self._hub.announce(service)

    def services_of(self, queues: Collection[str]) -> list[str]:
        """Return the services of this worker that take from one of these queues."""
        return [service for service, publication in self._services.items() if publication.service.queue in queues]

    async def take(self, slots: int) -> list[MemoryDelivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""
        try:
            async with asyncio.timeout(_TAKE_WAIT):
                while not self._interrupted.is_set():
                    # Something else may have been given some of the slots meanwhile.
                    taken = self._take_nowait(min(slots, self.listener.free_slots()))
                    if taken:
                        return taken
                    self._hub.arrived.clear()
                    await self._hub.arrived.wait()
        except TimeoutError:
            pass
        self._interrupted.clear()
        return []

    def _take_nowait(self, slots: int) -> list[MemoryDelivery]:
        """Take what waits, the services by turns."""
        taken: list[MemoryDelivery] = []
        waiting = deque(service for service in self._services if service not in self._withdrawn)
        if self._last in waiting:
            waiting.rotate(-1 - waiting.index(self._last))
        while waiting and len(taken) < slots:
            share = max(1, (slots - len(taken)) // len(waiting))
            for _ in range(len(waiting)):
                service, most = waiting.popleft(), min(share, slots - len(taken))
                entries = self._takeable(self._services[service], most)
                taken += self._deliveries(service, entries)
                if entries:
                    self._last = service
                    waiting.append(service)
                if len(taken) >= slots:
                    break
        return taken

    def _deliveries(self, service: str, entries: list[QueuedEntry]) -> Iterator[MemoryDelivery]:
        queue = self._hub.queues[self._services[service].service.queue]
        for entry in entries:
            try:
                request = decode_request(entry.document, limit=self._settings.max_request + 1024)
            except EnvelopeError as error:
                telemetry.log.error("request.malformed", service=service, error=str(error))
                queue.dead.append((str(error), entry.document))
                continue
            age = (time.monotonic() - entry.published) * 1000
            place = request.agent, entry.id.encode(), 0, entry.attempt, entry.deadline, age, new_run()
            delivery = MemoryDelivery(request, *place, handed_back=entry.handed_back, queue=queue)
            self._held[entry.id] = delivery, entry
            queue.running += 1
            yield delivery

    def _takeable(self, publication: Publication, most: int) -> list[QueuedEntry]:
        """Take entries off a service's queue; those that wait for other live workers, or of sessions that these have, stay for them."""
        queue, sticky = self._hub.queues[publication.service.queue], publication.service.sticky_sessions
        taken: list[QueuedEntry] = []
        for entry in list(queue.waiting):
            if len(taken) == most:
                break
            if entry.worker is not None and entry.worker is not self and self._hub.is_registered(entry.worker):
                continue
            if not sticky or entry.session is None or self._owns(publication.service.id, queue, entry.session):
                queue.waiting.remove(entry)
                taken.append(entry)
        return taken

    def _owns(self, service: str, queue: Queue, session: tuple[str, str]) -> bool:
        owner = queue.owners.get(session)
        if owner is None or not self._hub.is_registered(owner):
            if session in queue.owners:
                self.listener.sessions.inherited(service, *session, (next(self._hub.entries),))
            owner = queue.owners[session] = self
        return owner is self

    def release_session(self, service: str, user: str, session: str, *, lost: bool = False) -> None:
        """Give up a session that has ended here."""
        publication = self._services.get(service)
        queue = self._hub.queues.get(publication.service.queue) if publication is not None else None
        if queue is not None and queue.owners.get((user, session)) is self:
            del queue.owners[user, session]
            if lost:
                queue.owners[user, session] = None
                if len(queue.owners) > _MOST_KEPT:
                    del queue.owners[next(pair for pair, owner in queue.owners.items() if owner is None)]
            else:
                queue.snapshots.pop((user, session), None)
            self._hub.arrived.set()

    async def holds_session(self, delivery: MemoryDelivery) -> bool:
        """Return True: in process no lease lapses."""
        return True

    async def save_session(self, delivery: MemoryDelivery, snapshot: Snapshot) -> bool:
        """Keep the snapshot of a delivery's session."""
        snapshots, pair = delivery.queue.snapshots, session_of(delivery.request)
        if pair is None or not self._may_keep(delivery, pair):
            return False
        snapshots.pop(pair, None)
        snapshots[pair] = snapshot
        if len(snapshots) > _MOST_KEPT:
            del snapshots[next(iter(snapshots))]
        return True

    def forget_session(self, delivery: MemoryDelivery) -> None:
        """Forget the snapshot of a delivery's session."""
        pair = session_of(delivery.request)
        if pair is not None and self._may_keep(delivery, pair):
            delivery.queue.snapshots[pair] = NO_SNAPSHOT

    def _may_keep(self, delivery: MemoryDelivery, pair: tuple[str, str]) -> bool:
        """Return whether a call may change what is kept of its session, see ``_keeper.lua``."""
        held = self._held.get(delivery.entry.decode())
        mine = held is not None and held[0] is delivery
        return mine and (delivery.request.ordered or delivery.queue.owners.get(pair) is self)

    async def load_session(self, delivery: MemoryDelivery) -> Snapshot | None:
        """Return the snapshot of a delivery's session."""
        pair = session_of(delivery.request)
        return None if pair is None else delivery.queue.snapshots.get(pair)

    async def is_elsewhere(self, delivery: MemoryDelivery) -> bool:
        """Return whether another worker runs a call in the order of a delivery's session."""
        others = self._hub.workers - {self}
        return any(entry.ordered for other in others for entry in other.held_of(delivery.queue, session_of(delivery.request)))

    def follows(self, delivery: MemoryDelivery) -> bytes:
        """Return the entry before a delivery in its session, if one has not ended."""
        return max(self._before(delivery), key=int, default=b"")

    async def before(self, deliveries: Sequence[MemoryDelivery]) -> list[list[bytes]]:
        """Return for each delivery the entries that came before it in its session and have not ended."""
        return [self._before(delivery) for delivery in deliveries]

    def _before(self, delivery: MemoryDelivery) -> list[bytes]:
        mine, session = int(delivery.entry), session_of(delivery.request)
        entries = [entry for entry in delivery.queue.waiting if entry.session == session]
        for worker in self._hub.workers:
            entries += worker.held_of(delivery.queue, session)
        return [entry.id.encode() for entry in entries if int(entry.id) < mine and entry.ordered]

    def held_of(self, queue: Queue, session: tuple[str, str] | None) -> list[QueuedEntry]:
        """Return the entries of a session that were taken here and have not ended."""
        return [entry for delivery, entry in self._held.values() if delivery.queue is queue and entry.session == session]

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now."""
        self._interrupted.set()
        self._hub.arrived.set()

    async def recover(self) -> None:
        """Do nothing: in process no worker dies alone."""

    async def retry(self, delivery: MemoryDelivery) -> MemoryDelivery | None:
        """Count a further attempt of a delivery whose run has failed."""
        held = self._held.get(delivery.entry.decode())
        if held is None or held[0] is not delivery:
            return None
        again = delivery.again(delivery.attempt + 1, new_run())
        self._held[delivery.entry.decode()] = again, held[1]._replace(attempt=again.attempt)
        return again

    async def hand_over(self, delivery: MemoryDelivery) -> bool:
        """Give a delivery that has not begun to a worker that serves the revision which it was made for."""
        request, held = delivery.request, self._held.get(delivery.entry.decode())
        for instance in self._hub.instances.get(request.service, []):
            if held is not None and instance.publication.digest == request.digest and instance.worker is not self:
                del self._held[delivery.entry.decode()]
                delivery.queue.running -= 1
                _put_back(delivery.queue, held[1]._replace(worker=instance.worker))
                self._hub.arrived.set()
                return True
        return held is None

    async def hand_back(self, deliveries: Sequence[MemoryDelivery]) -> None:
        """Put deliveries that have not been answered back at the head of their queue."""
        for delivery in deliveries:
            held = self._held.pop(delivery.entry.decode(), None)
            if held is not None:
                delivery.queue.running -= 1
                entry = held[1]
                if delivery.begun:
                    entry = entry._replace(attempt=delivery.attempt + 1, handed_back=delivery.handed_back + 1)
                _put_back(delivery.queue, entry)
        self._hub.arrived.set()

    async def ask(
        self, delivery: MemoryDelivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask for a confirmation on a handler's behalf."""
        return await self._hub.confirmations.ask(request, seconds, opened)

    async def extend(self, delivery: MemoryDelivery, note: Note) -> None:
        """Note the later deadline of a delivery."""
        held = self._held.get(delivery.entry.decode())
        if held is not None:
            self._held[delivery.entry.decode()] = held[0], held[1]._replace(deadline=note.deadline + note.until - note.since)

    async def begin(self, delivery: MemoryDelivery) -> Beginning:
        """Mark that a ``once`` handler begins."""
        return "started" if self._hub.started.setdefault(delivery.request.id, delivery.run) == delivery.run else "began"

    def send(self, delivery: MemoryDelivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""
        self._send(delivery, frame)

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` at the end of this tick."""
        asyncio.get_running_loop().call_soon(pack)

    def finish(self, delivery: MemoryDelivery, frame: bytes, *, frees: bool = False) -> None:
        """Send the last frame and forget the request."""
        request = delivery.request
        if frees and request.shared:
            self._free(delivery)
        if self._held.pop(delivery.entry.decode(), None) is not None:
            delivery.queue.running -= 1
            self._hub.started.pop(delivery.request.id, None)
            self._finished += 1
            self._send(delivery, frame)

    def bury(self, delivery: MemoryDelivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame."""
        delivery.queue.dead.append((f"{reason}: {error}", encode(delivery.request)))
        self.finish(delivery, frame, frees=True)

    def note(self, delivery: MemoryDelivery, ending: Ending) -> None:
        """Do nothing: no operator sees what is in this process only."""

    def _free(self, delivery: MemoryDelivery) -> None:
        """Free the idempotency key, if it stands for this call and no earlier attempt began ``once`` work."""
        request, key = delivery.request, share_digest(delivery.request)
        shared = self._hub.shared.get(key)
        if shared is not None and shared.call == request.id and self._hub.started.get(request.id, delivery.run) == delivery.run:
            del self._hub.shared[key]

    def _send(self, delivery: MemoryDelivery, frame: bytes) -> None:
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
            _put_back(delivery.queue, entry._replace(attempt=entry.attempt + 1))
        self._held.clear()
        self._hub.workers.discard(self)
        self._hub.arrived.set()
        for name in [publication.service.queue for publication in self._services.values()]:
            self._forget_queue(name)
        self._services.clear()

    def _forget_queue(self, name: str) -> None:
        queue = self._hub.queues.get(name)
        if queue is not None and not queue.waiting and not queue.running and not self._served(name):
            del self._hub.queues[name]

    def _served(self, queue: str) -> bool:
        return any(i.publication.service.queue == queue for instances in self._hub.instances.values() for i in instances)


def _put_back(queue: Queue, entry: QueuedEntry) -> None:
    """Put an entry where it was, before those that came later."""
    at = next((at for at, other in enumerate(queue.waiting) if int(other.id) > int(entry.id)), len(queue.waiting))
    queue.waiting.insert(at, entry)
