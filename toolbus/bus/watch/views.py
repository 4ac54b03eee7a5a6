"""``Snapshot``: the state of a namespace at one moment, with rates since earlier samples.

``toolbus see top`` and the gateway's page show these; ``msgspec.json.encode(snapshot)`` is the JSON of both. All fields are always there,
but for those of confirmations and running calls that have their defaults.

==================  ==============================================================================================================
Struct              Fields
==================  ==============================================================================================================
``Snapshot``        at, took_ms, window, services, instances, tools, recent, dead, confirmations, sessions, running, pins, silent,
                    faults, problems
``ServiceView``     id, owner, digest, live, state, gone, paused, workers, queued, running, dead, tools, calls, calls_per_s,
                    failures_per_s, p50_ms, p99_ms
``InstanceView``    id, answered, unknown, host, pid, version, python, started, uptime, services, slots, running, waiting, calls, failures,
                    cancelled, retaken, calls_per_s, commands, connects
``ToolView``        service, name, effect, description, started, succeeded, failed, failures, cancelled, retaken, refused, running,
                    calls_per_s, failures_per_s, mean_ms, p50_ms, p99_ms, last_error
``RecentCall``      id, tool, service, user, session, instance, attempt, outcome, queued, taken, first, ended, error, code, message,
                    by, agent, arguments, trace, entry  (``toolbus.bus.broker.statistics.recent``)
``DeadLetterView``  id, queue, at, call, tool, service, user, reason, attempts, error
``RunningCall``     id, tool, service, user, session, instance, attempt, since, stopped  (``toolbus.bus.broker.statistics.answers``)
``SessionView``     service, user, session, instance, running, idle
``PinView``         name, digest
confirmations       ``toolbus.bus.values.confirmations.ConfirmationRequest``, without ``whole``
==================  ==============================================================================================================

Times are seconds since 1970 by the server's clock, rates are per second, latencies are milliseconds.
"""

from __future__ import annotations

import msgspec

from toolbus.bus.broker.statistics.answers import LastError, RunningCall
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.values.confirmations import ConfirmationRequest


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """One service.

    Attributes:
        live: a worker of it beats.
        state, gone: as in ``toolbus.bus.broker.admin.ServiceOverview``.
        queued, running, dead: requests that wait, that workers hold, and that were set aside.
        tools: how many it has.
        calls: attempts that ended, since its present workers started.
        calls_per_s, failures_per_s: attempts that ended, and those that failed, within the window.
        p50_ms, p99_ms: latencies of the attempts that ended within the window, else of all; None when there were none.
    """

    id: str
    owner: str = ""
    digest: str = ""
    live: bool = False
    state: str = "down"
    gone: float = 0.0
    paused: bool = False
    workers: int = 0
    queued: int = 0
    running: int = 0
    dead: int = 0
    tools: int = 0
    calls: int = 0
    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process; one that has not ``answered`` has only an id and its services.

    Attributes:
        unknown: it can't answer, since the server takes no answers.
        services: ids of what it serves.
        slots, running, waiting: how many calls may run at once, run now, and wait here for a retry or their turn.
        calls, failures, cancelled, retaken: attempts that ended, failed, were cancelled, or continued another worker's.
        calls_per_s: attempts that ended, within the window.
        commands, connects: commands sent to the server, and connections made.
    """

    id: str
    answered: bool = False
    unknown: bool = False
    host: str = ""
    pid: int = 0
    version: str = ""
    python: str = ""
    started: float = 0.0
    uptime: float = 0.0
    services: tuple[str, ...] = ()
    slots: int = 0
    running: int = 0
    waiting: int = 0
    calls: int = 0
    failures: int = 0
    cancelled: int = 0
    retaken: int = 0
    calls_per_s: float = 0.0
    commands: int = 0
    connects: int = 0


class ToolView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tool, over all workers that answered.

    Attributes:
        failed: attempts that failed, by the error's type.
        failures: attempts that failed.
        refused: requests that were answered without being run.
        calls_per_s, failures_per_s: attempts that ended, and those that failed, within the window.
        mean_ms: of all attempts that ended; None when there were none.
        p50_ms, p99_ms: as of a service.
        last_error: the newest failure at any worker.
    """

    service: str
    name: str
    effect: str = ""
    description: str = ""
    started: int = 0
    succeeded: int = 0
    failed: dict[str, int] = {}
    failures: int = 0
    cancelled: int = 0
    retaken: int = 0
    refused: int = 0
    running: int = 0
    calls_per_s: float = 0.0
    failures_per_s: float = 0.0
    mean_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    last_error: LastError | None = None


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was set aside; ``call``, ``tool``, ``service`` and ``user`` are empty when it can't be read."""

    id: str
    queue: str
    at: float
    call: str = ""
    tool: str = ""
    service: str = ""
    user: str = ""
    reason: str = ""
    attempts: int = 0
    error: str = ""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """An open session at a worker: how many of its calls run, and the seconds since its last one began."""

    service: str
    user: str = ""
    session: str = ""
    instance: str = ""
    running: int = 0
    idle: float = 0.0


class PinView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is offered as a person approved it."""

    name: str
    digest: str


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a namespace.

    Attributes:
        at: when it was taken: seconds since 1970 by the server's clock.
        took_ms: milliseconds that it took.
        window: seconds over which rates and latencies were computed; 0 for the first sample, which has none.
        services, instances, tools: sorted by id or name.
        recent: attempts of calls that have ended, the newest first.
        dead: dead letters, the newest first.
        confirmations: what waits for a person, the oldest first.
        sessions: open sessions, those used last first.
        running: calls that run, the longest first.
        pins: approved descriptors by name.
        silent: ids of workers that did not answer.
        faults: what is wrong with the server, the services and the workers, the causes first, each with what to do.
        problems: parts of the snapshot that could not be read, each with the reason.
    """

    at: float
    took_ms: float = 0.0
    window: float = 0.0
    services: tuple[ServiceView, ...] = ()
    instances: tuple[InstanceView, ...] = ()
    tools: tuple[ToolView, ...] = ()
    recent: tuple[RecentCall, ...] = ()
    dead: tuple[DeadLetterView, ...] = ()
    confirmations: tuple[ConfirmationRequest, ...] = ()
    sessions: tuple[SessionView, ...] = ()
    running: tuple[RunningCall, ...] = ()
    pins: tuple[PinView, ...] = ()
    silent: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
