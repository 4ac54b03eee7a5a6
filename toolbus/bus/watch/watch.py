"""``Watch``: takes snapshots of a namespace, and knows the rates between them."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from itertools import zip_longest
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import msgspec

from toolbus.bus.broker.admin import Admin, KnownServices
from toolbus.bus.broker.lease.dead_letters import DeadLetter
from toolbus.bus.broker.statistics.answers import InstanceAnswer, RunningCall, ToolStatistics, added, quantile
from toolbus.bus.broker.statistics.asking import Statistics, merged
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.support.display import shortened
from toolbus.bus.support.grouping import grouped
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.results import BrokerError, EnvelopeError
from toolbus.bus.values.settings import Settings
from toolbus.bus.watch.faults import faults_of, look
from toolbus.bus.watch.views import DeadLetterView, InstanceView, PinView, ServiceView, SessionView, Snapshot, ToolView

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import ServiceOverview

T = TypeVar("T")

Source = tuple[str, str, str]
"""An instance, a service and a tool."""

Counted = Mapping[Source, ToolStatistics]


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Attempts that ended: all, those that failed, and the latencies of those that were not cancelled."""

    count: int = 0
    failures: int = 0
    buckets: Sequence[int] = ()


class Rates(msgspec.Struct, frozen=True):
    """The speed and the latencies of calls."""

    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


def ended(tool: ToolStatistics) -> Ended:
    """Return what a tool at a worker has ended."""
    return Ended(sum(tool.buckets) + tool.cancelled, sum(tool.failed.values()), tool.buckets)


def total(parts: Iterable[Ended]) -> Ended:
    """Return the sum of what ended in several places."""
    found = list(parts)
    if len(found) == 1:
        return found[0]
    return Ended(sum(each.count for each in found), sum(each.failures for each in found), added(each.buckets for each in found))


def since(now: Counted, before: Mapping[str, Counted]) -> dict[Source, Ended]:
    """Return what ended since the earlier counts, where anything did.

    Args:
        now: the present counts.
        before: earlier ones for each worker; what other workers ended is not counted.
    """
    found: dict[Source, Ended] = {}
    for source, tool in now.items():
        counts = before.get(source[0])
        if counts is None:
            continue
        old = counts.get(source)
        # Most tools are quiet.
        if tool == old:
            continue
        difference = _difference(ended(tool), Ended() if old is None else ended(old))
        if difference.count:
            found[source] = difference
    return found


def _difference(new: Ended, old: Ended) -> Ended:
    # An instance id is of one process, whose counts only grow; anything else is a stranger's.
    if new.count < old.count:
        return new
    buckets = [max(0, now - was) for now, was in zip_longest(new.buckets, old.buckets, fillvalue=0)]
    return Ended(new.count - old.count, max(0, new.failures - old.failures), buckets)


def rates(recent: Ended, everything: Ended, window: float) -> Rates:
    """Return rates over ``window`` seconds, and the latencies of what ended in them, or else of everything."""
    buckets = recent.buckets if any(recent.buckets) else everything.buckets
    calls_per_s, failures_per_s = (round(each / window, 2) if window > 0 else 0.0 for each in (recent.count, recent.failures))
    return Rates(calls_per_s, failures_per_s, quantile(buckets, 0.5), quantile(buckets, 0.99))


class _Sample(NamedTuple):
    at: float
    instances: frozenset[str]
    tools: dict[Source, ToolStatistics]


class Speed(NamedTuple):
    """Attempts that a service has ended since its workers started, and how fast it is now."""

    ended: Ended
    rates: Rates


class Activity:
    """Takes in what workers answered, one time after the other.

    Args:
        most: seconds over which rates are computed.

    Attributes:
        window: the seconds over which they were computed now; 0 when there is only one answer.
        tools: the counts of each tool, one from each worker.
        recent: what ended of each tool within the window.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._samples: deque[_Sample] = deque()
        self._quiet: dict[str, Speed] = {}
        self._parts: Mapping[str, list[ToolStatistics]] = {}
        self._recent: Mapping[str, list[Ended]] = {}
        self._instances: Mapping[str, list[Ended]] = {}
        self.window = 0.0
        self.tools: Mapping[tuple[str, str], list[ToolStatistics]] = {}
        self.recent: Mapping[tuple[str, str], list[Ended]] = {}

    def take_in(self, answers: Mapping[str, InstanceAnswer], now: float | None = None) -> None:
        """Take in the present answers, by instance."""
        tools = {(each.instance, tool.service, tool.tool): tool for each in answers.values() for tool in each.tools}
        sample = _Sample(time.monotonic() if now is None else now, frozenset(answers), tools)
        samples = self._samples
        if samples and samples[-1].instances != sample.instances:
            self._quiet.clear()
        # One sample stays that is as old as the window.
        while len(samples) > 1 and samples[1].at <= sample.at - self._most:
            samples.popleft()
        earlier = list(samples)
        samples.append(sample)
        self.window = sample.at - samples[0].at
        before: dict[str, Counted] = {}
        for each in earlier:
            for instance in each.instances:
                before.setdefault(instance, each.tools)
        for instance, answer in answers.items():
            # A worker that was silent, and began before the window, would look as if it had done everything just now.
            if instance not in before and answer.uptime <= self.window:
                before[instance] = {}
        self._group(tools, since(tools, before) if earlier else {})

    def service(self, service: str) -> Speed:
        """Return the speed of a service."""
        recent = self._recent.get(service)
        if recent is None and service in self._quiet:
            return self._quiet[service]
        everything = total(map(ended, self._parts.get(service, ())))
        found = Speed(everything, rates(total(recent or ()), everything, self.window))
        if recent is None:
            self._quiet[service] = found
        return found

    def instance(self, instance: str) -> float:
        """Return how many attempts a second a worker ends."""
        recent = self._instances.get(instance, ())
        return round(sum(each.count for each in recent) / self.window, 2) if self.window else 0.0

    def tool(self, service: str, tool: str) -> Rates:
        """Return the speed of a tool."""
        everything = total(map(ended, self.tools.get((service, tool), ())))
        return rates(total(self.recent.get((service, tool), ())), everything, self.window)

    def _group(self, tools: Mapping[Source, ToolStatistics], recent: Mapping[Source, Ended]) -> None:
        self._parts = grouped((service, each) for (_, service, _), each in tools.items())
        self.tools = grouped(((service, tool), each) for (_, service, tool), each in tools.items())
        self._recent = grouped((service, each) for (_, service, _), each in recent.items())
        self._instances = grouped((instance, each) for (instance, _, _), each in recent.items())
        self.recent = grouped(((service, tool), each) for (_, service, tool), each in recent.items())
        for service in self._recent:
            self._quiet.pop(service, None)


_MOST_DESCRIPTION = 300


def _same(source: object, *names: str) -> dict[str, Any]:
    """Return what a view has of its source under the same names."""
    return {name: getattr(source, name) for name in names}


def service_views(overviews: Iterable[ServiceOverview], activity: Activity) -> tuple[ServiceView, ...]:
    """Return the services by id."""
    found = []
    for each in overviews:
        publication = each.publication
        everything, speed = activity.service(publication.service.id)
        found.append(
            ServiceView(
                id=publication.service.id,
                owner=publication.owner,
                digest=publication.digest,
                **_same(each, "live", "state", "gone", "paused", "workers", "dead"),
                queued=max(0, each.queued),
                running=max(0, each.running),
                tools=len(publication.tools),
                calls=everything.count,
                **msgspec.structs.asdict(speed),
            )
        )
    return tuple(found)


def instance_views(statistics: Statistics, activity: Activity) -> tuple[InstanceView, ...]:
    """Return the workers by id, also those that did not answer."""
    unknown = bool(statistics.refusal)
    silent = [InstanceView(id=instance, unknown=unknown, services=services) for instance, services in statistics.silent.items()]
    return tuple(sorted([*silent, *(_instance(each, activity) for each in statistics.answers.values())], key=lambda view: view.id))


def _instance(answer: InstanceAnswer, activity: Activity) -> InstanceView:
    return InstanceView(
        id=answer.instance,
        answered=True,
        **_same(answer, "host", "pid", "version", "python", "started", "slots", "running", "waiting", "commands", "connects"),
        uptime=round(answer.uptime, 1),
        services=tuple(sorted(each.id for each in answer.services)),
        calls=sum(tool.started - tool.running for tool in answer.tools),
        failures=sum(sum(tool.failed.values()) for tool in answer.tools if tool.failed),
        cancelled=sum(tool.cancelled for tool in answer.tools),
        retaken=sum(tool.retaken for tool in answer.tools),
        calls_per_s=activity.instance(answer.instance),
    )


class ToolViews(msgspec.Struct, eq=False):
    """Makes the views of tools, and keeps those of the tools that are quiet."""

    _kept: dict[tuple[str, str], tuple[list[ToolStatistics], ToolDescriptor | None, ToolView]] = {}

    def make(self, overviews: Iterable[ServiceOverview], activity: Activity) -> tuple[ToolView, ...]:
        """Return the tools that are published, and those that workers count, by service and name."""
        described = {(each.publication.service.id, tool.name): tool for each in overviews for tool in each.publication.tools}
        kept, self._kept = self._kept, {}
        for name in sorted({*activity.tools, *described}):
            counts, descriptor = activity.tools.get(name, []), described.get(name)
            old = kept.get(name)
            if old is not None and name not in activity.recent and old[1] is descriptor and old[0] == counts and not old[2].calls_per_s:
                self._kept[name] = old
            else:
                self._kept[name] = counts, descriptor, _tool(*name, counts, activity, descriptor)
        return tuple(view for _, _, view in self._kept.values())


def _tool(service: str, name: str, counts: list[ToolStatistics], activity: Activity, descriptor: ToolDescriptor | None) -> ToolView:
    speed = activity.tool(service, name)
    failed = merged(each.failed for each in counts)
    timed = sum(sum(each.buckets) for each in counts)
    return ToolView(
        service=service,
        name=name,
        effect="" if descriptor is None else descriptor.effect,
        description="" if descriptor is None else shortened(descriptor.description, _MOST_DESCRIPTION),
        **{name: sum(getattr(each, name) for each in counts) for name in ("started", "succeeded", "cancelled", "retaken", "running")},
        failed=failed,
        failures=sum(failed.values()),
        refused=sum(sum(each.refused.values()) for each in counts),
        mean_ms=round(sum(each.total_ms for each in counts) / timed, 3) if timed else None,
        **msgspec.structs.asdict(speed),
        last_error=max(filter(None, (each.last_error for each in counts)), key=lambda error: error.at, default=None),
    )


def session_views(answers: Iterable[InstanceAnswer]) -> tuple[SessionView, ...]:
    """Return the open sessions, those used last first."""
    found = [
        SessionView(**_same(each, "service", "user", "session", "running"), instance=answer.instance, idle=round(each.idle, 1))
        for answer in answers
        for each in answer.sessions
    ]
    return tuple(sorted(found, key=lambda view: view.idle))


def running_calls(answers: Iterable[InstanceAnswer]) -> list[RunningCall]:
    """Return the calls that run, the longest first and those that wait to begin last."""
    found = [msgspec.structs.replace(each, instance=answer.instance) for answer in answers for each in answer.calls]
    return sorted(found, key=lambda each: each.since or math.inf)


def dead_letter_view(letter: DeadLetter) -> DeadLetterView:
    """Return a dead letter for people."""
    request = letter.request
    called = {} if request is None else {"call": request.id, **_same(request, "tool", "service", "user")}
    return DeadLetterView(**_same(letter, "id", "queue", "at", "reason", "attempts", "error"), **called)


# Seconds over which rates are computed.
_WINDOW = 10.0
# Seconds between two looks at the server, which take some round trips.
_LOOK_EVERY = 5.0
_MOST_DEAD = 50
_MOST_PAGES = 20


class Watch:
    """Takes snapshots; use it with ``async with``. It connects when it first needs to, and again after a lost connection.

    Args:
        settings: which namespace of which server.
        patience: seconds for workers to answer; those that do not are said to be ``silent``.
        calls: how many recent calls a snapshot has.
    """

    def __init__(self, settings: Settings, *, patience: float = 0.5, calls: int = 200) -> None:
        self._settings = settings
        self._activity = Activity(_WINDOW)
        self._tools = ToolViews()
        self._patience = patience
        self._admin: Admin | None = None
        self._known = KnownServices()
        self._pins: tuple[bytes | None, tuple[PinView, ...]] = (None, ())
        self._calls: deque[RecentCall] = deque(maxlen=calls)
        self._last_call = ""
        self._dead: dict[str, tuple[int, list[DeadLetterView]]] = {}
        # Of this user; empty until they are known.
        self._roles: list[str] | tuple[()] | None = ()
        self._faults: tuple[float, tuple[str, ...]] = (-math.inf, ())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(BrokerError):
                await admin.__aexit__(None, None, None)

    async def sample(self) -> Snapshot:
        """Take a snapshot. Parts of it that can't be read are its ``problems``.

        Raises:
            BrokerError: the server can't be reached; the next sample tries again.
        """
        began = time.monotonic()
        if self._admin is None:
            self._admin = await Admin(self._settings).__aenter__()
            self._roles = ()
        try:
            return await self._sample(self._admin, began)
        except ReplyError:
            raise
        except BaseException:
            # It is cancelled, perhaps, or the connection is lost: a link that waits for an answer is of no use any more.
            await self.aclose()
            raise

    async def _sample(self, admin: Admin, began: float) -> Snapshot:
        problems: list[str] = []

        async def read(part: str, step: Awaitable[T], otherwise: T) -> T:
            try:
                return await step
            except (ReplyError, EnvelopeError) as error:
                problems.append(f"{part}: {error}")
                return otherwise

        at = await admin.now()
        overviews: list[ServiceOverview] = await read("services", self._services(admin), [])
        statistics = await read("statistics", admin.statistics(patience=self._patience), Statistics({}, {}))
        activity = self._activity
        activity.take_in(statistics.answers)
        calls: list[RecentCall] = await read("recent calls", self._recent(admin), [])
        dead: list[DeadLetterView] = await read("dead letters", self._dead_letters(admin, overviews), [])
        waiting: list[ConfirmationRequest] = await read("confirmations", admin.confirmations.pending(), [])
        pins: tuple[PinView, ...] = await read("pins", self._approved(admin), ())
        faults: tuple[str, ...] = await read("faults", self._found_faults(admin, overviews, statistics), ())
        answers = statistics.answers.values()
        return Snapshot(
            at=at,
            took_ms=round((time.monotonic() - began) * 1000, 1),
            window=round(activity.window, 2),
            services=service_views(overviews, activity),
            instances=instance_views(statistics, activity),
            tools=self._tools.make(overviews, activity),
            recent=tuple(calls),
            dead=tuple(dead),
            confirmations=tuple(waiting),
            sessions=session_views(answers),
            running=tuple(running_calls(answers)),
            pins=pins,
            silent=() if statistics.refusal else tuple(statistics.silent),
            faults=faults,
            problems=tuple(problems),
        )

    async def _found_faults(self, admin: Admin, services: list[ServiceOverview], statistics: Statistics) -> tuple[str, ...]:
        """Return what is wrong, for which the server is looked at every few seconds."""
        now = time.monotonic()
        if now - self._faults[0] > _LOOK_EVERY:
            if self._roles == ():
                self._roles = await admin.roles()
            seen = await look(admin, self._settings, services=services, statistics=statistics, roles=self._roles)
            self._faults = now, tuple(fault.found for fault in faults_of(seen))
        return self._faults[1]

    async def _services(self, admin: Admin) -> list[ServiceOverview]:
        """Return what goes on in the services."""
        if self._known.expired:
            # A stranger's record with an id of the future would hide all later ones.
            self._last_call = ""
        return await self._known.read(admin)

    async def _approved(self, admin: Admin) -> tuple[PinView, ...]:
        """Return the approved descriptors, which are read when the registry has changed, whose items they are."""
        if self._pins[0] != self._known.revision:
            approved = [each for each in await admin.pins.all() if each.state == "approved"]
            self._pins = self._known.revision, tuple(PinView(name=each.name, digest=each.approved) for each in approved)
        return self._pins[1]

    async def _recent(self, admin: Admin) -> list[RecentCall]:
        """Return the recent calls, the newest first, of which only new ones are read."""
        if not self._last_call:
            self._calls.clear()
            self._calls.extend(reversed(await admin.recent(self._calls.maxlen or 1)))
            self._last_call = self._calls[-1].entry if self._calls else "0-0"
        else:
            for _ in range(_MOST_PAGES):
                found, last = await admin.recent_after(self._last_call)
                self._calls.extend(found)
                if last == self._last_call:
                    break
                self._last_call = last
        return list(reversed(self._calls))

    async def _dead_letters(self, admin: Admin, overviews: list[ServiceOverview]) -> list[DeadLetterView]:
        """Return the newest dead letters of services, which are read again when their number has changed."""
        queues = {each.publication.service.queue: each.dead for each in overviews if each.dead}
        self._dead = {queue: kept for queue, kept in self._dead.items() if queue in queues}
        for queue, count in queues.items():
            if queue not in self._dead or self._dead[queue][0] != count or count > _MOST_DEAD:
                letters = [dead_letter_view(each) for each in await admin.dead_letters.newest(queue, _MOST_DEAD)]
                # There may be others by now than those that were counted.
                self._dead[queue] = len(letters), letters
        return sorted((letter for _, letters in self._dead.values() for letter in letters), key=lambda each: each.at, reverse=True)
