"""Make the answer to a question for statistics, from the counts of a worker's tools."""

from __future__ import annotations

import functools
import os
import platform
import socket
from collections import Counter
from collections.abc import Iterable, Mapping

from toolbus.bus.broker.statistics.answers import MOST_CALLS, InstanceAnswer, OpenSession, RunningCall, ServedService
from toolbus.bus.support.display import shortened
from toolbus.bus.worker.run.reasons import ContextRun, RunState
from toolbus.bus.worker.serving.handlers import Served

_MOST_NAME = 256


def answer_of(
    served: Mapping[str, Served], runs: Iterable[ContextRun], *, slots: int, waiting: int, sessions: Mapping[str, list[OpenSession]]
) -> InstanceAnswer:
    """Return what this process knows; its broker adds the rest.

    Args:
        served: the services by id.
        runs: those that hold a slot, the oldest first.
        slots, waiting: how many calls may run at once, and wait here.
        sessions: open ones by service.
    """
    held = list(runs)
    # A handler that was told to stop and still runs is not counted: its attempt has ended.
    running = Counter(id(run.handler) for run in held if run.state < RunState.ANSWERED)
    tools = [
        found
        for each in served.values()
        for tool, handler in each.handlers()
        if (found := handler.counts.statistics(each.id, tool, running[id(handler)])) is not None
    ]
    unknown = [found for each in served.values() if (found := each.unknown.statistics(each.id, "", 0)) is not None]
    services = [
        ServedService(each.id, each.publication.service.queue, each.publication.digest, sessions=len(sessions.get(each.id, ())))
        for each in served.values()
    ]
    return InstanceAnswer(
        instance="",
        host=socket.gethostname(),
        pid=os.getpid(),
        version=_version(),
        python=platform.python_version(),
        slots=slots,
        running=len(held),
        waiting=waiting,
        services=tuple(services),
        tools=(*tools, *unknown),
        sessions=tuple(each for found in sessions.values() for each in found),
        calls=tuple(map(_running, held[:MOST_CALLS])),
    )


def _running(run: ContextRun) -> RunningCall:
    """Return a run as others see it, but with the worker's own monotonic time."""
    request = run.delivery.request
    tool, service, user, session = (shortened(each, _MOST_NAME) for each in (request.tool, request.service, request.user, request.session))
    stopped = run.state >= RunState.ANSWERED
    return RunningCall(request.id, tool, service, user, session, "", run.delivery.attempt, run.began, stopped)


@functools.cache
def _version() -> str:
    # It takes as long to load as a third of a worker's start.
    import importlib.metadata  # noqa: PLC0415

    try:
        return importlib.metadata.version("toolbus")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
