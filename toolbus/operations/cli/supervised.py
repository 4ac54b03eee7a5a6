"""Worker processes of a command: several of them under a supervisor, and the reason why one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.autoscaler import Bounds
from toolbus.operations.cli.common import Failure, NotMendable, environment_of
from toolbus.operations.cli.probing import ProbePlace, probing

if TYPE_CHECKING:
    from toolbus.bus.worker.process.autoscaler import Autoscaler
    from toolbus.bus.worker.process.lifeline import Told
    from toolbus.bus.worker.process.supervisor import Supervisor

# Seconds that children may take beyond their grace period, until they are killed and what they held is others'.
_OF_CHILDREN = 10.0


@contextlib.contextmanager
def refusals(lifeline: int | None) -> Iterator[None]:
    """Let the process that started this one, if there is one, say why the worker ends."""
    from toolbus.bus import telemetry
    from toolbus.bus.values.results import RegistrationRefused
    from toolbus.bus.worker.process.lifeline import Told, tell

    try:
        yield
    except ToolbusError as error:
        mendable = isinstance(error, (ConfigurationError, RegistrationRefused)) and not isinstance(error, NotMendable)
        telemetry.flush_logging()
        if tell(lifeline, Told(refused=str(error), mendable=mendable)):
            sys.exit(1)
        raise
    except Exception:
        tell(lifeline, Told(mendable=True))
        raise


async def retire(settings: Settings, told: Told) -> None:
    """Give what a dead process held to others, by the ids that it had told.

    Raises:
        BrokerError: the server could not be asked; the leases end by themselves.
    """
    from toolbus.bus.broker.admin import Admin

    async with Admin(settings) as admin:
        if told.host:
            await admin.routes.retire(told.host)
        if told.instance:
            await admin.retire(told.instance)


async def supervise(
    settings: Settings,
    words: Sequence[str],
    *,
    processes: Bounds,
    lifeline: int | None,
    watch: Sequence[Path] = (),
    after: Sequence[str] = (),
    place: ProbePlace,
) -> int:
    """Keep processes of a toolbus command alive until a signal; return the exit code.

    Args:
        settings: of the workers.
        words: the command and its arguments, after ``toolbus``.
        processes: the fewest and the most; the load decides, if they differ.
        lifeline: the file descriptor of the process that started this one.
        watch: folders in which changes start them anew.
        after: arguments that stand after all options.
        place: where probes are answered for all of them.
    """
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.worker.process.autoscaler import Autoscaler
    from toolbus.bus.worker.process.lifeline import Notifier, Told, tell, watch_lifeline
    from toolbus.bus.worker.process.probes import CHILD_HOST, ProbedChildren
    from toolbus.bus.worker.process.supervisor import Supervisor, check_reload

    # Before the environment of the children is made.
    notifier = Notifier()
    environment = environment_of(settings)
    # Refuses an impossible URL.
    Admin(settings)
    if watch:
        check_reload()
        # Python takes a compiled file for the new one when a change comes within a second and keeps the size.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def serving() -> None:
        tell(lifeline, Told(serving=True))
        notifier.ready()

    if lifeline is not None:
        watch_lifeline(lifeline, lambda: os.kill(os.getpid(), signal.SIGTERM), settings.grace + _OF_CHILDREN)
    asked = () if place.port is None else ("--health-host", CHILD_HOST, "--health-port", "0")
    scaler = Autoscaler(processes) if processes.least < processes.most else None
    async with probing(lambda: ProbedChildren(processes), place) as (children, _), notifier.alive():
        supervisor = Supervisor(
            [sys.executable, "-m", "toolbus", *words, *asked],
            environment,
            processes=processes.least,
            grace=settings.grace,
            retire=lambda told: retire(settings, told),
            complain=lambda text: Failure(text).show(),
            on_serving=serving,
            watch=watch,
            after=after,
            watchers=[each for each in (children, scaler) if each is not None],
            on_stopping=notifier.stopping,
        )
        async with _scaled(supervisor, scaler):
            return await supervisor.run()


@contextlib.asynccontextmanager
async def _scaled(supervisor: Supervisor, scaler: Autoscaler | None) -> AsyncIterator[None]:
    """Let the load decide how many processes there are, if there is what follows it."""
    if scaler is None:
        yield
        return
    from toolbus.bus.telemetry.background import keep_running
    from toolbus.bus.worker.process.load import EVERY

    task = asyncio.create_task(keep_running("scaling", lambda: scaler.run(supervisor), every=EVERY))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
