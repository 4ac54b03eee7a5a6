"""``InstanceAnswer``: the statistics of one worker, as it tells them to who asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 25_000.0, 60_000.0)
"""Upper bounds of the latency buckets, in milliseconds; one more bucket has what takes longer."""

BUCKETS = len(BOUNDS) + 1
"""The number of latency buckets."""

MOST_CALLS = 100
"""Most running calls that a worker names."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class LastError(msgspec.Struct, frozen=True, gc=False):
    """The last failure of a tool at one worker.

    Attributes:
        at: seconds since 1970, by the server's clock.
        type, code: as in results.
        message: shortened; empty for refused arguments, which it would quote.
        call: the id of the call.
    """

    at: _Time
    type: str
    code: str = ""
    message: str = ""
    call: str = ""


class ToolStatistics(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The counts of one tool at one worker, since the worker started.

    Attributes:
        service, tool: which; ``tool`` is empty for the calls of a service without typed tools.
        started: attempts that began.
        succeeded: attempts that ended with a result.
        failed: attempts that ended with an error, by its type.
        cancelled: attempts that were cancelled or whose worker let go of them.
        retaken: attempts that continued what another worker had begun.
        refused: requests that were answered without being run, by the error's type.
        running: attempts that run now.
        total_ms: milliseconds that all ended attempts ran.
        buckets: ended attempts by latency, see ``BOUNDS``; not cumulative, and without the zeros at the end.
        last_error: the last failure.
    """

    service: str
    tool: str
    started: _Count = 0
    succeeded: _Count = 0
    failed: dict[str, _Count] = {}
    cancelled: _Count = 0
    retaken: _Count = 0
    refused: dict[str, _Count] = {}
    running: _Count = 0
    total_ms: _Time = 0.0
    buckets: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=BUCKETS)] = ()
    last_error: LastError | None = None


class ServedService(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service that a worker serves: its queue, the digest of what was published, and how many sessions of it are open.

    ``unlisted`` says why the registry has no lease of the worker for it; it is empty while it has one.
    """

    id: str
    queue: str = ""
    digest: str = ""
    paused: bool = False
    unlisted: str = ""
    sessions: _Count = 0


class OpenSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session that a worker has open: how many of its calls run, and the seconds since its last one began."""

    service: str
    user: str = ""
    session: str = ""
    running: _Count = 0
    idle: _Time = 0.0


class RunningCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that holds a slot of a worker.

    Attributes:
        id, tool, service, user, session: what was called, and for whom; long names are shortened.
        instance: the worker; empty in the worker's own answer.
        attempt: its number, from 1.
        since: when it began to run: seconds since 1970 by the server's clock; 0 if it has not, and waits for its session.
        stopped: it has been answered, and its handler has not stopped yet.
    """

    id: str
    tool: str = ""
    service: str = ""
    user: str = ""
    session: str = ""
    instance: str = ""
    attempt: _Count = 1
    since: _Time = 0.0
    stopped: bool = False


class InstanceAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The statistics of one worker process.

    Attributes:
        instance: its id.
        host, pid, version, python: where it runs, and of which version of toolbus and Python.
        started: when its process began to serve: seconds since 1970 by the server's clock.
        uptime: seconds since then.
        slots, running, waiting: how many calls may run at once, run now, and wait here for a retry or their turn.
        services: what it serves.
        tools: counts of the tools that were called.
        sessions: open sessions, the last used ones first; some hundred at most.
        calls: those that run, the longest first; ``MOST_CALLS`` at most.
        commands, connects: commands sent to the server, and connections made, since it started.
        lines_lost: log lines that were dropped, or could not be written.
        trouble: why it can take no requests now; empty when it can.
    """

    instance: str
    host: str = ""
    pid: _Count = 0
    version: str = ""
    python: str = ""
    started: _Time = 0.0
    uptime: _Time = 0.0
    slots: _Count = 0
    running: _Count = 0
    waiting: _Count = 0
    services: tuple[ServedService, ...] = ()
    tools: tuple[ToolStatistics, ...] = ()
    sessions: tuple[OpenSession, ...] = ()
    calls: tuple[RunningCall, ...] = ()
    commands: _Count = 0
    connects: _Count = 0
    lines_lost: _Count = 0
    trouble: str = ""


def added(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of histograms, each of which may lack zeros at its end."""
    total = [0] * BUCKETS
    for histogram in histograms:
        for at, count in enumerate(histogram):
            total[at] += count
    return total


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the latency in milliseconds that a share of the calls did not exceed, interpolated within its bucket; None without calls.

    What took longer than the last bound counts as that bound.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, seen = share * total, 0
    for at, count in enumerate(buckets):
        if count and seen + count >= rank:
            if at >= len(BOUNDS):
                break
            low = BOUNDS[at - 1] if at else 0.0
            return round(low + (BOUNDS[at] - low) * max(0.0, rank - seen) / count, 3)
        seen += count
    return BOUNDS[-1]
