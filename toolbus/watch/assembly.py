"""Put the views of a snapshot together from what was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from toolbus.broker.admin import ServiceOverview
from toolbus.broker.dead_letters.dead_letters import DeadLetter
from toolbus.broker.statistics.answers import InstanceAnswer, ToolStatistics
from toolbus.broker.statistics.asking import Statistics, merged
from toolbus.display import shortened
from toolbus.watch.counts import Ended, Source, newest_error, rates
from toolbus.watch.views import DeadLetterView, InstanceView, ServiceView, SessionView, ToolView

_MOST_DESCRIPTION = 300


class Activity:
    """The calls that ended, by worker, service and tool.

    Args:
        now: since the workers started.
        recent: within the window.
        window: seconds; 0 when nothing is known of earlier.
    """

    def __init__(self, now: Mapping[Source, Ended], recent: Mapping[Source, Ended], window: float) -> None:
        self.window = window
        self._now = _grouped(now)
        self._recent = _grouped(recent)

    def ended(self, *group: str) -> list[Ended]:
        """Return what ended of an instance (one word), a service (two, the first is empty) or a tool."""
        return self._now.get(group, [])

    def recent(self, *group: str) -> list[Ended]:
        """Return what ended within the window."""
        return self._recent.get(group, [])


def _grouped(found: Mapping[Source, Ended]) -> dict[tuple[str, ...], list[Ended]]:
    groups: dict[tuple[str, ...], list[Ended]] = defaultdict(list)
    for (instance, service, tool), each in found.items():
        groups[(instance,)].append(each)
        groups[("", service)].append(each)
        groups[("", service, tool)].append(each)
    return dict(groups)


def service_views(overviews: Iterable[ServiceOverview], activity: Activity) -> tuple[ServiceView, ...]:
    """Return the services by id."""
    found = []
    for each in overviews:
        publication = each.publication
        everything = activity.ended("", publication.service.id)
        speed = rates(activity.recent("", publication.service.id), everything, activity.window)
        found.append(
            ServiceView(
                id=publication.service.id,
                owner=publication.owner,
                digest=publication.digest,
                live=each.live,
                paused=each.paused,
                workers=each.workers,
                queued=max(0, each.queued),
                running=max(0, each.running),
                dead=each.dead,
                tools=len(publication.tools),
                calls=sum(ended.count for ended in everything),
                calls_per_s=speed.calls_per_s,
                failures_per_s=speed.failures_per_s,
                p50_ms=speed.p50_ms,
                p99_ms=speed.p99_ms,
            )
        )
    return tuple(found)


def instance_views(statistics: Statistics, activity: Activity) -> tuple[InstanceView, ...]:
    """Return the workers by id, also those that did not answer."""
    silent = [InstanceView(id=instance, services=services) for instance, services in statistics.silent.items()]
    return tuple(sorted([*silent, *(_instance(each, activity) for each in statistics.answers.values())], key=lambda view: view.id))


def _instance(answer: InstanceAnswer, activity: Activity) -> InstanceView:
    everything = activity.ended(answer.instance)
    return InstanceView(
        id=answer.instance,
        answered=True,
        host=answer.host,
        pid=answer.pid,
        version=answer.version,
        python=answer.python,
        started=answer.started,
        uptime=round(answer.uptime, 1),
        services=tuple(sorted(each.id for each in answer.services)),
        slots=answer.slots,
        running=answer.running,
        waiting=answer.waiting,
        calls=sum(each.count for each in everything),
        failures=sum(each.failures for each in everything),
        cancelled=sum(each.cancelled for each in everything),
        retaken=sum(tool.retaken for tool in answer.tools),
        calls_per_s=rates(activity.recent(answer.instance), (), activity.window).calls_per_s,
        commands=answer.commands,
        connects=answer.connects,
    )


def tool_views(overviews: Iterable[ServiceOverview], answers: Iterable[InstanceAnswer], activity: Activity) -> tuple[ToolView, ...]:
    """Return the tools that are published, and those that workers count, by service and name."""
    counted: dict[tuple[str, str], list[ToolStatistics]] = defaultdict(list)
    for answer in answers:
        for counts in answer.tools:
            counted[counts.service, counts.tool].append(counts)
    described = {(each.publication.service.id, tool.name): tool for each in overviews for tool in each.publication.tools}
    found = []
    for service, name in sorted({*counted, *described}):
        descriptor = described.get((service, name))
        found.append(
            _tool(
                service,
                name,
                counted.get((service, name), []),
                activity,
                effect="" if descriptor is None else descriptor.effect,
                description="" if descriptor is None else shortened(descriptor.description, _MOST_DESCRIPTION),
            )
        )
    return tuple(found)


def _tool(service: str, name: str, counts: list[ToolStatistics], activity: Activity, *, effect: str, description: str) -> ToolView:
    if not counts:
        # Most tools of a large registry have not been called.
        return ToolView(service=service, name=name, effect=effect, description=description)
    speed = rates(activity.recent("", service, name), activity.ended("", service, name), activity.window)
    failed = merged(each.failed for each in counts)
    timed = sum(sum(each.buckets) for each in counts)
    return ToolView(
        service=service,
        name=name,
        effect=effect,
        description=description,
        started=sum(each.started for each in counts),
        succeeded=sum(each.succeeded for each in counts),
        failed=failed,
        failures=sum(failed.values()),
        cancelled=sum(each.cancelled for each in counts),
        retaken=sum(each.retaken for each in counts),
        refused=sum(sum(each.refused.values()) for each in counts),
        running=sum(each.running for each in counts),
        calls_per_s=speed.calls_per_s,
        failures_per_s=speed.failures_per_s,
        mean_ms=round(sum(each.total_ms for each in counts) / timed, 3) if timed else None,
        p50_ms=speed.p50_ms,
        p99_ms=speed.p99_ms,
        last_error=newest_error(counts),
    )


def session_views(answers: Iterable[InstanceAnswer]) -> tuple[SessionView, ...]:
    """Return the open sessions, those used last first."""
    found = [
        SessionView(
            service=each.service,
            user=each.user,
            session=each.session,
            instance=answer.instance,
            running=each.running,
            idle=round(each.idle, 1),
        )
        for answer in answers
        for each in answer.sessions
    ]
    return tuple(sorted(found, key=lambda view: view.idle))


def dead_letter_view(letter: DeadLetter) -> DeadLetterView:
    """Return a dead letter for people."""
    request = letter.request
    return DeadLetterView(
        id=letter.id,
        queue=letter.queue,
        at=letter.at,
        call="" if request is None else request.id,
        tool="" if request is None else request.tool,
        service="" if request is None else request.service,
        user="" if request is None else request.user,
        reason=letter.reason,
        attempts=letter.attempts,
        error=letter.error,
    )
