"""The operations of an operator."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Self, cast

from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.held.conversations import Chats, Conversations
from toolbus.bus.broker.held.creations import Creations
from toolbus.bus.broker.held.limits import Tallies
from toolbus.bus.broker.held.routes import Routes
from toolbus.bus.broker.held.tokens import Tokens
from toolbus.bus.broker.lease.dead_letters import DeadLetters
from toolbus.bus.broker.protocols import ItemChange, RefusedTool, ServiceRecord, WorkerId
from toolbus.bus.broker.registry.follower import read_gone, read_items, read_services
from toolbus.bus.broker.registry.pins import Pins
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.registry.registry import TTL, Registry
from toolbus.bus.broker.registry.versions import NamespaceVersions
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.access import ROLES, is_forbidden, mark
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import integer, shown, skipping, text
from toolbus.bus.broker.statistics.asking import PATIENCE, Statistics, ask
from toolbus.bus.broker.statistics.recent import RecentCall, after, newest
from toolbus.bus.broker.take.requests import epoch_of
from toolbus.bus.broker.transport.command import ReplyError, fields_of, info_fields
from toolbus.bus.broker.transport.connection import Connector, ServerInfo
from toolbus.bus.broker.transport.links import ProbingLink, ShortLink, pages, scan, scan_hash, server_ms
from toolbus.bus.broker.transport.mastership import Replication
from toolbus.bus.broker.transport.opening import NotOpen
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor
from toolbus.bus.values.envelope import Frame, Request, address, decode_request, encode, join_frames, new_run, share_digest
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.results import BrokerError, DescriptorError, EnvelopeError, ErrorInfo
from toolbus.bus.values.settings import Settings

_PAGE = 256
_OVERVIEWS_AT_ONCE = 40
_SCANNED = 1_000
# What the server writes, by the fields that say whether it could.
_FILES = {
    "the snapshot": "rdb_last_bgsave_status",
    "the append-only file": "aof_last_write_status",
    "a shorter append-only file": "aof_last_bgrewrite_status",
}
_CUT_OFF = ("client_output_buffer_limit_disconnections", "client_query_buffer_limit_disconnections")
_ENDED = 1_000


ServiceState = Literal["live", "asleep", "withdrawn", "down"]


def _position(entry: str) -> tuple[int, int]:
    """Return the two numbers of an entry's id."""
    at, _, number = entry.partition("-")
    return int(at), int(number or 0)


class ServiceOverview(NamedTuple):
    """One service as an operator sees it.

    Attributes:
        publication: what its workers publish; of a service that has gone, the ids and the owner alone.
        live: a worker of it beats.
        workers: how many do.
        queued: requests that wait for a worker, also those that dead ones held.
        running: requests that live workers hold.
        dead: requests that were set aside.
        paused: its workers take no requests.
        state: ``live``; without a worker ``asleep`` when it scales to zero, ``withdrawn`` when its last worker left by itself, and ``down``
            otherwise.
        gone: when its last worker went, in seconds since 1970 by the server's clock; 0 while it is in the registry, which it can be for
            a while after its workers have died. It is listed for a day.
    """

    publication: Publication
    live: bool
    workers: int
    queued: int
    running: int
    dead: int
    paused: bool
    state: ServiceState
    gone: float = 0.0

    @property
    def down(self) -> bool:
        """True when its workers are missing: it has none, and was neither withdrawn nor scaled to zero."""
        return self.state == "down"


class ServerHealth(NamedTuple):
    """The state of a server. Latency in milliseconds, skew in seconds (server minus local), memory in bytes.

    Attributes:
        refusal: why the server refuses what changes something, with its code first; empty when it does not.
        unsaved: which of its files it could not write when it tried last; empty when it could.
        appendfsync: as configured; empty when it is not known.
        needs_replicas: whether it takes no writes while it has lost its replicas.
        cut_off: clients that it has disconnected since its start because they read too slowly.
        certificate_ends: when its certificate ends, in seconds since 1970; None without TLS, or when it is not checked.
    """

    server: ServerInfo
    policy: str
    used_memory: int
    max_memory: int
    append_only: bool
    appendfsync: str
    unsaved: str
    refusal: str
    latency_ms: float
    skew: float
    replicas: int
    needs_replicas: bool
    cut_off: int
    certificate_ends: float | None


class Admin:
    """An operator's connection; use it with ``async with``.

    Raises:
        BrokerError: the server can't be reached or can't serve.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self._use(cast("ShortLink", NotOpen()))

    async def __aenter__(self) -> Self:
        self._use(ShortLink(self._connector))
        await self._link.connect()
        return self

    def _use(self, link: ShortLink) -> None:
        self._link = link
        # No other caller waits for this link, so it can wait for replicas itself.
        replication = Replication(link, self._settings.wait_replicas, self._settings.wait_timeout)
        self._registry = Registry(link, self._keys, self._settings, replication)
        self.dead_letters = DeadLetters(link, self._keys, self._settings)
        self.tallies = Tallies(link, self._keys)
        self.conversations = Conversations(link, self._keys, self._settings)
        self.chats = Chats(link, self._keys, self.conversations)
        self.confirmations = Confirmations(link, self._keys, self._settings.lease)
        self.creations = Creations(link, self._keys, self._settings)
        self.tokens = Tokens(link, self._keys)
        self.pins = Pins(link, self._keys, self._registry)
        self.routes = Routes(link, self._keys)
        self.versions = NamespaceVersions(link, self._keys, self._registry)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._link.close()
        await self._link.wait_closed()

    async def services(self) -> list[ServiceOverview]:
        """Return every service, by id: those in the registry, and those that were there within the last day."""
        return await self.overviews(await self.records())

    async def records(self) -> list[ServiceRecord]:
        """Return what is known of each service, also of those that have gone, without those that can't be read."""
        # In this order, so that one that goes meanwhile is not missed.
        listed = await read_services(self._link, self._keys)
        records = {**await read_gone(self._link, self._keys), **listed}
        return [each for each in records.values() if isinstance(each, ServiceRecord)]

    async def revision(self) -> bytes:
        """Return a token that is another one whenever the registry has changed."""
        found: bytes | None = await self._link.execute("HGET", self._keys.meta, "token")
        return found or b""

    async def overviews(self, records: Iterable[ServiceRecord]) -> list[ServiceOverview]:
        """Return what is going on in services, by id."""
        sought = sorted(records, key=lambda record: record.publication.service.id)
        # A script of all services at once would keep the server from others for too long.
        parts = [sought[at : at + _OVERVIEWS_AT_ONCE] for at in range(0, len(sought), _OVERVIEWS_AT_ONCE)]
        return [overview for part in await asyncio.gather(*map(self._overviews, parts)) for overview in part]

    async def snapshot(self) -> tuple[dict[str, ServiceRecord | RefusedTool], dict[str, bytes | RefusedTool]]:
        """Return the services and static documents as agents read them, with the reason in place of what can't be read."""
        return await read_services(self._link, self._keys), await read_items(self._link, self._keys)

    async def pause(self, service: str) -> None:
        """Make every worker of a service stop taking requests; what runs goes on, what comes waits."""
        await self._link.execute_script(scripts.PAUSE, (self._keys.paused,), (service, TTL * 1000), repeatable=True)
        await self._wake(service, "pause")

    async def resume(self, service: str) -> bool:
        """Lift a pause; False when there was none."""
        lifted = await self._link.execute("SREM", self._keys.paused, service)
        await self._wake(service, "resume")
        return bool(lifted)

    async def queued(self, service: str) -> int:
        """Return how many requests are queued or running for a service, which need not be in the registry any more."""
        return integer(await self._link.execute("XLEN", self._keys.queue(await self.queue(service))))

    async def purge(self, service: str) -> int:
        """Remove what is queued for a service and not running; each caller is answered ``cancelled``. Returns how many."""
        queue = await self.queue(service)
        stream, removed = self._keys.queue(queue), 0
        generation = await self._link.execute("HGET", self._keys.fence(queue), "generation", repeatable=True)
        # Callers ignore a frame that is older than what they have of a run, however often that was cut off.
        epoch = epoch_of(generation or b"") + 1
        async for entries in pages(self._link, stream, _PAGE):
            # One write and one round trip a page; each script stays short.
            found = ((entry, fields_of(flat).get(b"r", b"")) for entry, flat in entries)
            removed += sum(await asyncio.gather(*(self._purge(stream, entry, document, epoch) for entry, document in found)))
        return removed

    async def items(self, prefix: str = "") -> dict[str, bytes]:
        """Return the static descriptors by key, sorted, of keys that start with ``prefix``."""
        items = await read_items(self._link, self._keys)
        found = {key: document for key, document in items.items() if isinstance(document, bytes) and key.startswith(prefix)}
        return dict(sorted(found.items()))

    async def item(self, key: str) -> bytes | None:
        """Return one document, or None."""
        value: bytes | None = await self._link.execute("HGET", self._keys.table(key), key)
        return value

    async def put(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document; raises RegistrationRefused when a service publishes the name, or another owner than ``owner`` has it."""
        await self._registry.put_item(key, document, owner)

    async def replace(self, changes: Sequence[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed."""
        return await self._registry.replace_items(changes)

    async def delete(self, key: str) -> bool:
        """Delete a static descriptor; False when there was none."""
        return await self._registry.delete_item(key)

    async def delete_misplaced(self, key: str) -> bool:
        """Delete a document that stands where workers may write and its kind does not belong; False when there was none."""
        return await self._registry.delete_misplaced(key)

    async def misplaced(self) -> dict[str, bytes]:
        """Return the documents that stand in the table that workers may write, and don't belong there, sorted by key.

        Nobody uses them. A person looks at them before they are moved, since a stolen worker's credential can write them.
        """
        found: dict[str, bytes] = {}
        async for name, document in scan_hash(self._link, self._keys.items):
            with skipping(self._keys.items, field=name):
                key = text(name)
                if self._keys.table(key) != self._keys.items and not key_flaw(key):
                    found[key] = document
        return dict(sorted(found.items()))

    async def move(self, keys: Iterable[str]) -> dict[str, bool]:
        """Move misplaced documents to the tables of their kinds; return for each that was there whether it is used now.

        One for which there is a newer document in its own table is removed. A move that was interrupted is made again by the next one.

        Raises:
            BrokerError: the server could not be reached, or refuses it: operators may do this.
            ConfigurationError: one is too long.
        """
        there = await self.misplaced()
        moved: dict[str, bool] = {}
        for key in keys:
            if key in there:
                # A repetition finds the same document, and counts as moved.
                moved[key] = not await self._registry.replace_items([ItemChange(key, None, there[key])])
                await self._link.execute("HDEL", self._keys.items, key, repeatable=True)
        return moved

    async def transfer(self, key: str) -> bool:
        """Free a self-published name for another owner, and forget its service if that has gone; False when neither was to do."""
        kind, _, service = key.partition("/")
        gone = kind == "tool-service" and service in await read_gone(self._link, self._keys)
        if gone:
            await self.forget(service)
        return await self._registry.transfer(key) or gone

    async def forget(self, service: str) -> None:
        """List a service no more that has gone."""
        await self._registry.unregister([f"{service}/"], "forgotten")

    async def retire(self, instance: WorkerId) -> int:
        """End the leases of a worker that is known to be dead, so that others go on with what it held; returns its services.

        Raises:
            BrokerError: the server could not be asked; the leases end by themselves.
        """
        found: set[str] = set()
        suffix = f"/{instance}"
        async for page in scan(self._link, "ZSCAN", self._keys.live, "MATCH", f"*{suffix}", "COUNT", _PAGE):
            found |= {member.decode("utf-8", "surrogateescape").removesuffix(suffix) for member in page[::2]}
        # A service's queue is looked up in what goes with its last worker.
        queues = {service: await self.queue(service) for service in found}
        await self._registry.unregister([f"{service}{suffix}" for service in found], "died")
        for service, queue in queues.items():
            keys = self._keys
            args = (keys.queue(queue), keys.fence(queue), keys.cancelled(queue), keys.instances(service), keys.live)
            await self._link.execute_script(scripts.RETIRE, args, (instance, service, 1), repeatable=True)
            await self._link.execute("PUBLISH", keys.wake(queue), f"dead {service}")
        return len(found)

    async def now(self) -> float:
        """Return the server's time, in seconds since 1970."""
        return await server_ms(self._link) / 1000

    async def health(self, *, trips: int = 50, configuration: bool = False) -> ServerHealth:
        """Look at the server: its memory, persistence, replicas, latency and clock, and whether it takes writes.

        Args:
            trips: round trips of which the median is the latency.
            configuration: whether to read its configuration, which no role may.
        """
        memory, persistence, replication, counts = [await self._info(each) for each in ("memory", "persistence", "replication", "stats")]
        times: list[float] = []
        for _ in range(trips):
            asked = time.perf_counter()
            await self._link.execute("TIME")
            times.append((time.perf_counter() - asked) * 1000)
        configured = await self._link.execute("CONFIG", "GET", "appendfsync") if configuration else {}
        skew = await self.now() - time.time()
        if self._link.server is None:
            raise BrokerError("the connection was lost")
        return ServerHealth(
            server=self._link.server,
            policy=memory.get("maxmemory_policy", "unknown"),
            used_memory=integer(memory.get("used_memory", "0")),
            max_memory=integer(memory.get("maxmemory", "0")),
            append_only=persistence.get("aof_enabled") == "1",
            appendfsync=shown(configured.get(b"appendfsync", b"")),
            unsaved=", ".join(name for name, field in _FILES.items() if persistence.get(field, "ok") != "ok"),
            refusal=await self.refusal(),
            latency_ms=sorted(times)[len(times) // 2],
            skew=skew,
            replicas=int(replication.get("connected_slaves", "0")),
            # The server says it only when `min-replicas-to-write` is set.
            needs_replicas="min_slaves_good_slaves" in replication,
            cut_off=sum(integer(counts.get(field, "0")) for field in _CUT_OFF),
            certificate_ends=self._link.certificate_ends,
        )

    async def refusal(self) -> str:
        """Return why the server refuses what changes something, with its code first; empty when it does not."""
        link = ProbingLink(self._connector)
        await link.connect()
        try:
            await link.execute_script(scripts.PROBE, (), ())
        except ReplyError as error:
            # A role may be forbidden to bring the script to a server that has forgotten it.
            return "" if is_forbidden(error) else str(error)
        finally:
            link.close()
            await link.wait_closed()
        return ""

    async def lapsed(self, most: int = 100) -> list[str]:
        """Return the workers, as ``service/instance``, whose leases have ended and that nobody has taken out of the registry yet."""
        now = int(await server_ms(self._link))
        return list(map(shown, await self._link.execute("ZRANGE", self._keys.live, "-inf", now, "BYSCORE", "LIMIT", 0, most)))

    async def namespaces(self, most: int = 20_000) -> list[str]:
        """Return the namespaces with a registry that are found among some ``most`` keys of the server."""
        head, _, tail = Keys("\0").meta.partition("\0")
        found, cursor = set[str](), b"0"
        for _ in range(0, most, _SCANNED):
            cursor, page = await self._link.execute("SCAN", cursor, "MATCH", f"{head}*{tail}", "COUNT", _SCANNED)
            found |= {shown(key).removeprefix(head).removesuffix(tail) for key in page}
            if cursor == b"0":
                break
        return sorted(found)

    async def roles(self) -> list[str] | None:
        """Return the roles of this connection's user (``toolbus secure acl``); None for one with all rights, whose keys are not named."""
        if await self._may_look_for("none"):
            return None
        return [role for role in ROLES if await self._may_look_for(role)]

    async def statistics(self, service: str = "", *, patience: float = PATIENCE) -> Statistics:
        """Ask all workers, or those of one service, for their statistics; wait ``patience`` seconds at most for their answers."""
        found = await ask(self._link, self._keys, service=service, patience=patience)
        # Where every lease has ended, there is nobody left to be silent.
        return found._replace(refusal=await self.refusal()) if found.silent or not found.answers else found

    async def recent(self, limit: int = 200) -> list[RecentCall]:
        """Return the newest of the recent calls' attempts, the newest first."""
        return await newest(self._link, self._keys.recent, limit)

    async def recent_after(self, entry: str) -> tuple[list[RecentCall], str]:
        """Return some recent calls after the ``entry`` of one, the oldest first, and the entry to go on after."""
        return await after(self._link, self._keys.recent, entry)

    async def ended_after(self, entry: str) -> tuple[list[RecentCall], str]:
        """Return some of all attempts that have ended, as workers with ``TOOLBUS_HISTORY`` tell of them, as ``recent_after`` does.

        Where the server's newest one is before the ``entry``, as after a failover, the next ones are read from the oldest on.
        """
        found, last = await after(self._link, self._keys.ended, entry, _ENDED)
        if found or last != entry or not entry:
            return found, last
        latest = await newest(self._link, self._keys.ended, 1)
        return [], "" if latest and _position(latest[0].entry) < _position(entry) else entry

    # -- inside -----------------------------------------------------------------------------------

    async def _may_look_for(self, role: str) -> bool:
        try:
            await self._link.execute("EXISTS", mark(self._keys, role))
        except ReplyError as error:
            if not is_forbidden(error):
                raise
            return False
        return True

    async def _overviews(self, records: Sequence[ServiceRecord]) -> list[ServiceOverview]:
        services = [each.publication.service for each in records]
        keys = tuple(key for each in services for key in overview_keys(self._keys, each.id, each.queue))
        found = await self._link.execute_script(scripts.OVERVIEW, keys, tuple(each.id for each in services))
        return [_overview(each, counts) for each, counts in zip(records, found, strict=True)]

    async def queue(self, service: str) -> str:
        """Return the name of a service's queue; its id when it has been gone for long."""
        found = await self._descriptor(service)
        return service if found is None else found.queue

    async def queue_limit(self, service: str) -> int:
        """Most requests that a service's queue takes."""
        found = await self._descriptor(service)
        return (0 if found is None else found.queue_limit) or self._settings.queue_limit

    async def _descriptor(self, service: str) -> ServiceDescriptor | None:
        value = await self._link.execute("HGET", self._keys.services, service)
        if value is None:
            gone = (await read_gone(self._link, self._keys)).get(service)
            return None if gone is None else gone.publication.service
        try:
            return read_record(value).publication.service
        except DescriptorError:
            return None

    async def _wake(self, service: str, word: str) -> None:
        await self._link.execute("PUBLISH", self._keys.wake(await self.queue(service)), f"{word} {service}")

    async def _purge(self, stream: str, entry: bytes, document: bytes, epoch: int) -> int:
        replies, frames, call = "", b"", ""
        found = address(document)
        if found is not None:
            call, agent = found
            error = ErrorInfo("cancelled", "purged", "an operator purged the queue before the call ran")
            replies = self._keys.replies(agent)
            frames = join_frames([encode(Frame(call, new_run(), kind="end", end_of_stream=True, error=error, epoch=epoch))])
        # The fence and the dead letters are not looked at.
        keys: tuple[str, ...] = (stream, stream, stream)
        request = self._shared(document)
        if request is not None:
            replies = self._keys.call(request.id)
            keys = (*keys, self._keys.shared(share_digest(request)), self._keys.started(request.id))
        args = ("", "", "", entry, "", "", "", "", "", "", replies, frames, call, "")
        return int(await self._link.execute_script(scripts.BURY, keys, args))

    def _shared(self, document: bytes) -> Request | None:
        """Return the request of a call that carries an idempotency key."""
        try:
            request = decode_request(document, limit=self._settings.max_request + 1024)
        except EnvelopeError:
            return None
        return request if request.shared else None

    async def _info(self, section: str) -> dict[str, str]:
        try:
            return info_fields(await self._link.execute("INFO", section))
        except ReplyError:
            return {}


# What no change of the registry tells of is found all the same.
_READ_ANEW_AFTER = 30.0


class KnownServices:
    """Tells what goes on in the services again and again; their descriptions, which are long, are read when the registry has changed.

    Attributes:
        revision: the registry's, when they were read.
    """

    def __init__(self) -> None:
        self.revision: bytes | None = None
        self._records: list[ServiceRecord] = []
        self._read_at = -math.inf

    @property
    def expired(self) -> bool:
        """True when the next reading reads them in any case."""
        return time.monotonic() - self._read_at > _READ_ANEW_AFTER

    async def read(self, admin: Admin) -> list[ServiceOverview]:
        """Return what is going on in the services, as ``Admin.services`` does."""
        revision = await admin.revision()
        if revision != self.revision or self.expired:
            self._records = await admin.records()
            self.revision, self._read_at = revision, time.monotonic()
        return await admin.overviews(self._records)


def _overview(record: ServiceRecord, counts: Sequence[int]) -> ServiceOverview:
    queued, running, dead, paused, workers = counts
    gone = record.gone
    state: ServiceState = "down"
    if record.live and workers:
        state = "live"
    elif gone is None and not record.live:
        state = "asleep"
    elif gone is not None and gone.left:
        state = "withdrawn"
    at = 0.0 if gone is None else gone.at
    return ServiceOverview(record.publication, state == "live", workers, queued, running, dead, bool(paused), state, at)


def overview_keys(keys: Keys, service: str, queue: str) -> tuple[str, ...]:
    """Return the keys of the overview script, in its order."""
    return keys.queue(queue), keys.dead_letters(queue), keys.paused, keys.instances(service), keys.live, keys.fence(queue)
