"""The state that the processes of a namespace would share through the server, for one event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
import weakref
from collections import deque
from collections.abc import Collection
from typing import NamedTuple, Protocol

from toolbus.broker.memory.chats import MemoryChats
from toolbus.broker.memory.confirmations import MemoryConfirmations
from toolbus.broker.memory.conversations import MemoryConversations
from toolbus.broker.memory.creations import MemoryCreations
from toolbus.broker.memory.results import MemorySessionResults
from toolbus.broker.memory.routes import MemoryRoutes
from toolbus.broker.memory.tallies import MemoryTallies
from toolbus.broker.memory.tokens import MemoryTokens
from toolbus.broker.protocols import AgentListener, ServiceRecord, Snapshot, TaskRecord, WorkerListener
from toolbus.broker.registry.refusals import item_refused
from toolbus.descriptors import Publication
from toolbus.envelope import Request, work_digest
from toolbus.settings import Settings

_DEAD_LETTERS = 1_000


class HubAgent(Protocol):
    """An agent's broker, as the others of its hub see it."""

    @property
    def listener(self) -> AgentListener:
        """Hears what arrives for the agent."""

    def receive(self, frames: bytes, call: str = "") -> None:
        """Take in a reply entry; ``call`` is the shared call that it belongs to."""


class HubWorker(Protocol):
    """A worker's broker, as the others of its hub see it."""

    @property
    def listener(self) -> WorkerListener:
        """Runs what is taken, and hears what happens to it."""

    def held_of(self, queue: Queue, session: tuple[str, str] | None) -> list[QueuedEntry]:
        """Return the entries of a session that were taken here and have not ended."""

    def services_of(self, queues: Collection[str]) -> list[str]:
        """Return the services that take from these queues here."""


class QueuedEntry(NamedTuple):
    """A request that waits or runs; times are local monotonic seconds, ``session`` its user and session.

    ``ordered`` when it runs after those of its session that came before it; ``worker`` is the one that it waits for while that serves.
    """

    id: str
    document: bytes
    published: float
    deadline: float
    attempt: int
    session: tuple[str, str] | None
    ordered: bool = False
    handed_back: int = 0
    worker: HubWorker | None = None


class Queue:
    """A service's requests.

    When its sessions are sticky, ``owners`` has the workers that have them, None for one that has lost its state, and ``snapshots`` what
    was kept of their states.
    """

    def __init__(self) -> None:
        self.waiting: deque[QueuedEntry] = deque()
        self.running = 0
        self.dead: deque[tuple[str, bytes]] = deque(maxlen=_DEAD_LETTERS)
        self.owners: dict[tuple[str, str], HubWorker | None] = {}
        self.snapshots: dict[tuple[str, str], Snapshot] = {}


class SharedCall:
    """A call with an idempotency key: what it stands for, every frame so far, and who reads them."""

    def __init__(self, request: Request, entry: str, kept_until: float) -> None:
        self.call = request.id
        self.work = work_digest(request)
        self.entry = entry
        self.kept_until = kept_until
        self.frames: list[bytes] = []
        self.callers: dict[str, HubAgent] = {}


class Instance(NamedTuple):
    """One worker's publication of a service."""

    publication: Publication
    worker: HubWorker


class Hub:
    """The state that the processes of one namespace would share through the server."""

    def __init__(self, settings: Settings) -> None:
        self.queues: dict[str, Queue] = {}
        self.instances: dict[str, list[Instance]] = {}
        self.items: dict[str, bytes] = {}
        self.owners: dict[str, str] = {}
        self.agents: dict[str, HubAgent] = {}
        self.workers: set[HubWorker] = set()
        self.started: dict[str, str] = {}
        # By share digest, and by the call that runs: a failed call frees its key and keeps its readers.
        self.shared: dict[str, SharedCall] = {}
        self.shared_calls: dict[str, SharedCall] = {}
        self.tallies = MemoryTallies()
        self.confirmations = MemoryConfirmations()
        self.conversations = MemoryConversations(settings)
        self.creations = MemoryCreations(settings)
        self.chats = MemoryChats(self.conversations)
        self.results = MemorySessionResults(settings)
        self.tokens = MemoryTokens()
        self.routes = MemoryRoutes()
        # By user and id.
        self.tasks: dict[tuple[str, str], TaskRecord] = {}
        self.arrived = asyncio.Event()
        self.entries = itertools.count(1)

    def claim(self, key: str, owner: str) -> None:
        """Refuse a document that belongs to another owner; one that has an owner is nobody's without one.

        Raises:
            RegistrationRefused: it is.
        """
        holder = self.owners.get(key, owner)
        if holder != owner:
            raise item_refused(key, holder, owned=bool(owner), cooldown=0.0)

    def is_registered(self, worker: HubWorker) -> bool:
        """Return whether a worker takes requests: neither draining nor closed."""
        return any(instance.worker is worker for instances in self.instances.values() for instance in instances)

    def record(self, service: str) -> ServiceRecord | None:
        """Return a service's record in the registry; None when no worker serves it."""
        instances = self.instances.get(service)
        return ServiceRecord(instances[-1].publication, True) if instances else None

    def forget_old(self) -> None:
        """Drop shared answers whose retention is over."""
        now = time.monotonic()
        for held in (self.shared, self.shared_calls):
            for key in [key for key, shared in held.items() if shared.kept_until < now]:
                del held[key]

    def serving(self, queues: Collection[str]) -> list[tuple[HubWorker, str]]:
        """Return the workers that take from these queues, draining ones too, each with its service."""
        return [(worker, service) for worker in self.workers for service in worker.services_of(queues)]

    def announce(self, service: str) -> None:
        """Tell every agent what the registry says of a service now."""
        for agent in list(self.agents.values()):
            agent.listener.on_service(service, self.record(service))

    def holder(self, tool: str) -> Publication | None:
        """Return the publication with a tool of this name; None when there is none."""
        for instances in self.instances.values():
            for instance in instances:
                if any(tool == each.name for each in instance.publication.tools):
                    return instance.publication
        return None


_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Hub]] = weakref.WeakKeyDictionary()


def hub_of(settings: Settings) -> Hub:
    """Return the hub of this event loop, URL and namespace."""
    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    place = settings.url, settings.namespace
    if place not in hubs:
        hubs[place] = Hub(settings)
    return hubs[place]
