"""The state that the processes of a namespace would share through the server, for one event loop."""

from __future__ import annotations

import asyncio
import itertools
import time
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from toolbus.bus.broker.agent_steps import windows_of
from toolbus.bus.broker.limits import MOST_PAIRS, OTHERS, add_to, days_back, pair_of, rows
from toolbus.bus.broker.memory.confirmations import MemoryConfirmations
from toolbus.bus.broker.memory.conversations import MemoryConversations
from toolbus.bus.broker.memory.creations import MemoryCreations
from toolbus.bus.broker.protocols import AgentListener, ServiceRecord, Snapshot, TaskRecord, Usage, WorkerListener
from toolbus.bus.broker.protocols.documents import (
    MOST_BYTES,
    MOST_RESULTS,
    ChatWindow,
    Conversations,
    HostId,
    Messenger,
    OutputLine,
    Renewed,
)
from toolbus.bus.broker.registry.registry import item_refused
from toolbus.bus.broker.routes import MOST_LINE, MOST_LINES
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Request, work_digest
from toolbus.bus.values.settings import Settings
from toolbus.bus.values.tokens import TokenRecord


class MemoryRoutes:
    """``Routes`` in process."""

    def __init__(self) -> None:
        # Until when, and its routes.
        self._hosts: dict[HostId, tuple[float, dict[str, bytes]]] = {}
        self._claims: dict[str, tuple[float, HostId]] = {}
        self._output: dict[str, deque[OutputLine]] = defaultdict(lambda: deque(maxlen=MOST_LINES))
        self._entries = itertools.count()

    async def renew(
        self, host: HostId, lease: float, *, changed: Mapping[str, bytes], gone: Collection[str] = (), claims: Collection[str] = ()
    ) -> Renewed:
        """Keep a host's routes for another lease."""
        now = time.monotonic()
        routes = {**self._live().get(host, {}), **changed}
        for tool in gone:
            routes.pop(tool, None)
        self._hosts[host] = now + lease, routes
        mine = frozenset(tool for tool in claims if self._is_free(tool, host, now))
        self._claims.update(dict.fromkeys(mine, (now + lease, host)))
        return Renewed(len(routes), mine)

    async def release(self, host: HostId, claims: Collection[str]) -> None:
        """Let other hosts serve tools that this one served alone."""
        for tool in claims:
            if tool in self._claims and self._claims[tool][1] == host:
                del self._claims[tool]

    async def leave(self, host: HostId, claims: Collection[str]) -> None:
        """Forget a host, and release its claims."""
        await self.release(host, claims)
        self._hosts.pop(host, None)

    async def all(self) -> dict[HostId, dict[str, bytes]]:
        """Return the routes of every live host."""
        return {host: dict(routes) for host, routes in self._live().items() if routes}

    async def write(self, tool: str, host: HostId, lines: Sequence[str]) -> None:
        """Append lines of a program's output."""
        for line in lines[-MOST_LINES:]:
            entry = f"{int(time.time() * 1000)}-{next(self._entries)}"
            self._output[tool].append(OutputLine(entry, host, line[:MOST_LINE]))

    async def output(self, tool: str, most: int = 50) -> list[OutputLine]:
        """Return the latest lines of a tool's programs."""
        return list(self._output.get(tool, ()))[-most:]

    async def output_after(self, tool: str, entry: str) -> list[OutputLine]:
        """Return lines after the one at ``entry``."""
        after = int(entry.partition("-")[2] or -1)
        return [line for line in self._output.get(tool, ()) if int(line.entry.partition("-")[2]) > after]

    def _live(self) -> dict[HostId, dict[str, bytes]]:
        now = time.monotonic()
        return {host: routes for host, (until, routes) in self._hosts.items() if until > now}

    def _is_free(self, tool: str, host: HostId, now: float) -> bool:
        until, holder = self._claims.get(tool, (0.0, None))
        return holder == host or until <= now


_MOST_KEPT = 10_000


class MemoryTallies:
    """The tallies of a namespace within one event loop."""

    def __init__(self) -> None:
        self._full: dict[str, float] = {}
        self._used: dict[str, tuple[int, int]] = {}
        self._usage: dict[str, dict[str, list[int]]] = {}

    async def spend(self, name: str, limit: int, period: float) -> float:
        """Count one use against a rate; returns 0 when there was room, else the seconds until there is."""
        now = time.monotonic()
        full = max(self._full.get(name, 0.0), now) + period / limit
        wait = full - period - now
        # A rounding error is no wait: the limit is about whole intervals.
        if wait > 1e-6:
            return wait
        if len(self._full) >= _MOST_KEPT:
            self._full = {key: value for key, value in self._full.items() if value > now}
        self._full[name] = full
        return 0.0

    async def use(self, name: str, limit: int, period: float) -> float:
        """Count one use against a quota; returns 0 when there was some left, else the seconds until it starts anew."""
        now = time.time()
        current = int(now // period)
        before, used = self._used.get(name, (current, 0))
        used = used if before == current else 0
        if used >= limit:
            return period - now % period
        if len(self._used) >= _MOST_KEPT:
            self._used.pop(next(iter(self._used)))
        self._used[name] = current, used + 1
        return 0.0

    def count(self, user: str, tool: str, *, ms: float, size: int, failed: bool) -> None:
        """Add a call to today's usage."""
        today = self._usage.setdefault(next(iter(days_back(1))), {})
        pair = pair_of(user, tool)
        if len(today) >= MOST_PAIRS and pair not in today:
            pair = OTHERS
        add_to(today.setdefault(pair, [0, 0, 0, 0]), ms, size, failed=failed)

    async def usage(self, days: int = 1) -> list[Usage]:
        """Return the usage of the last days, by user and tool."""
        found: dict[str, list[int]] = {}
        for day in days_back(days):
            for pair, counts in self._usage.get(day, {}).items():
                total = found.setdefault(pair, [0, 0, 0, 0])
                total[:] = [one + other for one, other in zip(total, counts, strict=True)]
        return rows(found)


_MOST_SESSIONS = 1024


class MemorySessionResults:
    """``SessionResults`` within one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._ttl = settings.retention
        self._kept: OrderedDict[tuple[str, str], tuple[float, list[bytes]]] = OrderedDict()

    async def read(self, user: str, session: str) -> list[bytes]:
        """Return what is kept of a session, the oldest first."""
        until, found = self._kept.get((user, session), (0.0, []))
        return [*found] if time.monotonic() < until else []

    async def keep(self, user: str, session: str, documents: Sequence[bytes]) -> None:
        """Keep documents of a session."""
        found = [*await self.read(user, session), *documents][-MOST_RESULTS:]
        while sum(map(len, found)) > MOST_BYTES:
            del found[0]
        self._kept[user, session] = (time.monotonic() + self._ttl, found)
        self._kept.move_to_end((user, session))
        if len(self._kept) > _MOST_SESSIONS:
            self._kept.popitem(last=False)


class MemoryTokens:
    """``Tokens`` within one event loop."""

    def __init__(self) -> None:
        self._records: dict[str, TokenRecord] = {}

    async def get(self, id: str) -> TokenRecord | None:
        """Return the record of a token, or None."""
        return self._records.get(id)

    async def all(self) -> list[TokenRecord]:
        """Return every record, by name."""
        return sorted(self._records.values(), key=lambda each: (each.name, each.id))

    async def add(self, record: TokenRecord) -> None:
        """Store a record."""
        self._records[record.id] = record

    async def revoke(self, id: str) -> bool:
        """Delete a record; False when there was none."""
        return self._records.pop(id, None) is not None


class MemoryChats:
    """``Chats`` within one event loop."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._told: tuple[Messenger, float] | None = None

    async def windows(self, limit: int) -> list[ChatWindow]:
        """Return the chats, those that are used latest first, of the latest so many conversations."""
        return await windows_of(self._conversations, await self.messenger(), limit)

    async def messenger(self) -> Messenger | None:
        """Return the messenger's connector that told of itself last; None when none lives."""
        return self._told[0] if self._told is not None and time.monotonic() < self._told[1] else None

    async def tell(self, messenger: Messenger, seconds: float) -> None:
        """Tell of a messenger's connector, which lives for so many seconds from now."""
        self._told = messenger, time.monotonic() + seconds


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
