"""Keep the state of a run's session when its handler has ended, for services that restore states."""

from __future__ import annotations

from typing import Protocol

from toolbus.broker.protocols import Delivery
from toolbus.results import ErrorInfo, ToolResult
from toolbus.settings import Settings
from toolbus.worker.run.outcome import is_retryable
from toolbus.worker.run.states import RunState
from toolbus.worker.serving.handlers import Handler, Served
from toolbus.worker.sessions.session import SessionBook

_MOVED = ErrorInfo(
    "tool_error", "session_moved", "the session went to another worker while this call ran, so what it changed there is lost"
)


class KeepingContext(Protocol):
    """The part of a run's context that is used here."""

    settings: Settings


class KeptRun(Protocol):
    """A run, as far as its session's state is concerned."""

    delivery: Delivery
    served: Served
    handler: Handler
    state: RunState
    abandoned: bool

    @property
    def context(self) -> KeepingContext:
        """Share what the runs of a worker have in common."""

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""


class Handled(Protocol):
    """A handler that is about to run."""

    async def handle(self) -> ToolResult:
        """Return its result."""


async def kept(run: KeptRun, handling: Handled) -> ToolResult:
    """Return a handler's result, after a snapshot of its session if the service wants that, also when the handler failed."""
    sessions = _changed(run)
    if sessions is None:
        return await handling.handle()
    sessions.enter(run.delivery)
    result, done, changes = None, True, True
    try:
        result = await handling.handle()
        done = not _has_attempts(run) or result.error is None or not result.error.retryable
    except BaseException as error:
        done = not _has_attempts(run) or not is_retryable(error, run.error_info(error))
        raise
    finally:
        keep = run.state < RunState.ANSWERED and not run.abandoned
        changes = await sessions.leave(run.delivery, keep=keep, done=done)
    return result if changes else ToolResult(success=False, error=_MOVED)


def forget(run: KeptRun) -> None:
    """Forget the snapshot of a run that is stopped: its handler may have changed the state, and what it changes yet is in no snapshot."""
    sessions = _changed(run)
    if sessions is not None:
        sessions.forget(run.delivery)


def _changed(run: KeptRun) -> SessionBook | None:
    """Return the sessions of the service if they have snapshots and this call may change the state of one."""
    changes = run.served.restores_sessions and not (run.handler.beside and not run.delivery.request.ordered)
    return run.served.sessions if changes else None


def _has_attempts(run: KeptRun) -> bool:
    """Return whether a retryable failure leads to another attempt, unless the deadline comes first."""
    policy = run.handler.retry if run.state is RunState.RUNNING else None
    return policy is not None and policy.allows(run.delivery.tries, run.context.settings.max_deliveries)
