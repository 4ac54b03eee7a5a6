"""Run background tasks again after they fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import described
from toolbus.bus.values.results import ToolbusError

# Twelve failures in a row take over half a minute: longer than a brief outage, and long enough that a supervisor
# does not mistake the end of the process for a failed start.
MOST_FAILURES = 12
_FIRST, _MOST = 0.1, 5.0
# A task that has lasted for this many seconds, and for two of its pauses, has worked: it starts counting failures from zero.
_SETTLED = 60.0


async def keep_running(name: str, work: Callable[[], Coroutine[Any, Any, None]], *, every: float) -> None:
    """Run ``work`` until it returns; start it again, after a growing pause, whenever it raises, or is cancelled from within.

    Args:
        name: of the task, for logs.
        work: makes the task anew.
        every: seconds for which it sleeps before each of its turns, or 0: one that has only slept has not worked.

    Raises:
        ToolbusError: it failed ``MOST_FAILURES`` times in a row.
    """
    failures = 0
    while True:
        began = time.monotonic()
        # In a task of its own: each of its steps would otherwise go through this function and its callers.
        task = asyncio.create_task(work(), name=f"toolbus-{name}")
        try:
            return await task
        except (Exception, asyncio.CancelledError) as error:
            mine = asyncio.current_task()
            if mine is None or mine.cancelling():
                if isinstance(error, asyncio.CancelledError):
                    raise
                # A task group whose task fails while it is cancelled raises that failure; who cancelled this waits for its end.
                telemetry.log.exception("task.failed", task=name, failures=failures + 1, retry_in=0.0)
                raise asyncio.CancelledError from error
            failures = 1 if time.monotonic() - began > max(_SETTLED, 2 * every) else failures + 1
            telemetry.count("toolbus.task_failures", task=name)
            if failures >= MOST_FAILURES:
                telemetry.log.exception("task.given_up", task=name, failures=failures)
                raise ToolbusError(f"{name} failed {failures} times in a row, at last with {described(error)}") from error
            pause = min(_FIRST * 2 ** (failures - 1), _MOST)
            telemetry.log.exception("task.failed", task=name, failures=failures, retry_in=pause)
        await asyncio.sleep(pause)
