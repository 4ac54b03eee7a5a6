"""Put the views of a snapshot together from what was read."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from toolbus.broker.admin import ServiceOverview
from toolbus.broker.dead_letters import DeadLetter
from toolbus.broker.statistics.answers import InstanceAnswer, RunningCall, ToolStatistics
from toolbus.broker.statistics.asking import Statistics, merged
from toolbus.descriptors import ToolDescriptor
from toolbus.display import shortened
from toolbus.watch.activity import Activity
from toolbus.watch.counts import newest_error
from toolbus.watch.views import DeadLetterView, InstanceView, ServiceView, SessionView, ToolView

_MOST_DESCRIPTION = 300


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
                live=each.live,
                paused=each.paused,
                workers=each.workers,
                queued=max(0, each.queued),
                running=max(0, each.running),
                dead=each.dead,
                tools=len(publication.tools),
                calls=everything.count,
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
        calls=sum(tool.started - tool.running for tool in answer.tools),
        failures=sum(sum(tool.failed.values()) for tool in answer.tools if tool.failed),
        cancelled=sum(tool.cancelled for tool in answer.tools),
        retaken=sum(tool.retaken for tool in answer.tools),
        calls_per_s=activity.instance(answer.instance),
        commands=answer.commands,
        connects=answer.connects,
    )


class ToolViews:
    """Makes the views of tools, and keeps those of the tools that are quiet."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[list[ToolStatistics], ToolDescriptor | None, ToolView]] = {}

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


def running_calls(answers: Iterable[InstanceAnswer]) -> list[RunningCall]:
    """Return the calls that run, the longest first and those that wait to begin last."""
    found = [msgspec.structs.replace(each, instance=answer.instance) for answer in answers for each in answer.calls]
    return sorted(found, key=lambda each: each.since or math.inf)


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
