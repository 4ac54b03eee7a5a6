"""The run context: the worker, as far as a run needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from toolbus.broker.protocols import Delivery, WorkerBroker
from toolbus.middleware.chain import Middleware
from toolbus.results import ErrorInfo
from toolbus.settings import Settings
from toolbus.worker.isolation.pool import Isolation
from toolbus.worker.run.invocation import Caller
from toolbus.worker.run.reasons import RunState
from toolbus.worker.run.threads import Threads
from toolbus.worker.serving.handlers import Handler
from toolbus.worker.statistics.sampling import Sampling


class ContextRun(Protocol):
    """A run, as its context sees it."""

    delivery: Delivery
    handler: Handler
    slot: int

    @property
    def state(self) -> RunState:
        """The state of the run."""

    @property
    def began(self) -> float:
        """The monotonic time at which it began to run; 0 before."""

    def expire(self) -> None:
        """End the run because its time is up."""


class RunContext(Protocol):
    """The objects that the runs of one worker share.

    Attributes:
        most_gathered: bytes of text that gather for one frame, about.
        clock: returns monotonic seconds.
        sampling: takes in which attempts have ended.
    """

    broker: WorkerBroker
    settings: Settings
    threads: Threads
    isolation: Isolation
    most_gathered: int
    middleware: tuple[Middleware, ...]
    clock: Callable[[], float]
    sampling: Sampling

    def ended(self, run: ContextRun) -> None:
        """Free a run's slot."""

    def stopped(self, run: ContextRun) -> None:
        """Take note that a run was told to stop before its end."""

    def extended(self, run: ContextRun) -> None:
        """Take note that a run's deadline has changed."""

    def try_again(self, run: ContextRun, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; False when there is to be none."""

    async def caller(self) -> Caller:
        """Return the bus for nested calls."""
