"""``ProbedWorker``: the worker of this process, for probes."""

from __future__ import annotations

from toolbus.worker.process.report import Report, ReportingWorker, report_of
from toolbus.worker.process.worker_metrics import worker_metrics


class ProbedWorker:
    """Answers probes for a worker.

    Attributes:
        started: set once the worker has served.
    """

    def __init__(self, worker: ReportingWorker) -> None:
        self._worker = worker
        self.started = False

    async def ready(self) -> bool:
        """Return whether the worker takes requests now."""
        return self._worker.healthy

    async def report(self) -> Report:
        """Return its counts; none before it has served."""
        return report_of(self._worker) if self.started else Report()

    async def metrics(self) -> str:
        """Return its metrics."""
        return worker_metrics(await self.report())
