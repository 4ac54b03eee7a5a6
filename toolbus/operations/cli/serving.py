"""Give processes that serve what they have in common: probes, the line to their parent, and copies of themselves that they keep alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.command import Command, Probes
from toolbus.operations.cli.common import NotMendable, environment_of, reason
from toolbus.operations.cli.output import Failure

if TYPE_CHECKING:
    from toolbus.bus.worker.process.autoscaler import Autoscaler, Bounds
    from toolbus.bus.worker.process.lifeline import Told
    from toolbus.bus.worker.process.probes import Probed, ProbedWorker
    from toolbus.bus.worker.process.supervisor import Supervisor
    from toolbus.bus.worker.worker import Worker
    from toolbus.edges.gateway.metrics import ProbedGateway

    P = TypeVar("P", bound=Probed)

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


def end_with(lifeline: int | None, settings: Settings) -> None:
    """Begin the end of this process when the one that started it, if there is one, is gone."""
    from toolbus.bus.worker.process.lifeline import end_process, watch_lifeline

    if lifeline is not None:
        watch_lifeline(lifeline, end_process, settings.grace)


@contextlib.asynccontextmanager
async def probing(make: Callable[[], P], place: Probes, *, quiet: bool = False) -> AsyncIterator[tuple[P | None, int]]:
    """Answer probes, if a port was given, and yield who answers them and the port.

    Args:
        make: makes who answers them.
        place: where.
        quiet: log nothing, since nobody but a supervisor asks.

    Raises:
        NotMendable: the port can't be had.
    """
    if place.health_port is None:
        yield None, 0
        return
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.probes import probes

    probed = make()
    async with contextlib.AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(probes(probed, place.health_host, place.health_port))
        except OSError as error:
            raise NotMendable(f"--health-port can't be kept: {reason(error)}") from None
        if not quiet:
            telemetry.log.info("health.listening", host=place.health_host, port=port)
        yield probed, port


@contextlib.asynccontextmanager
async def announced(
    make: Callable[[], ProbedWorker | ProbedGateway], place: Probes, lifeline: int | None, *, quiet: bool
) -> AsyncIterator[tuple[Callable[..., None], Callable[[], None]]]:
    """Answer probes and the service manager; yield what is called when the process serves, and when it begins to end.

    The first is called with what else the process at the lifeline is to know.
    """
    from toolbus.bus.worker.process.lifeline import Notifier, Told, tell

    notifier = Notifier()
    async with probing(make, place, quiet=quiet) as (probed, port), notifier.alive():

        def serving(**told: Any) -> None:
            if probed is not None:
                probed.started = True
            tell(lifeline, Told(serving=True, probes=port, **told))
            notifier.ready()

        yield serving, notifier.stopping


async def run_worker(
    worker: Worker, place: Probes, lifeline: int | None, *, health_file: Path | None = None, on_open: Callable[[], object] = lambda: None
) -> None:
    """Serve until a signal, and answer probes meanwhile.

    Args:
        worker: not yet opened.
        place: where probes are answered.
        lifeline: the file descriptor of the process that started this one.
        health_file: kept fresh while the worker is healthy.
        on_open: called once when the worker is registered.

    Raises:
        NotMendable: the port or the file can't be kept.
        ToolbusError: the worker can't serve.
    """

    def probed() -> ProbedWorker:
        from toolbus.bus.worker.process.probes import ProbedWorker

        return ProbedWorker(worker)

    async with announced(probed, place, lifeline, quiet=lifeline is not None) as (serving, stopping):

        def opened() -> None:
            serving(instance=worker.instance)
            on_open()

        try:
            async with asyncio.TaskGroup() as tasks:
                kept = None if health_file is None else tasks.create_task(_keep(worker, health_file))
                await worker.run(opened, stopping)
                if kept is not None:
                    kept.cancel()
        except* ToolbusError as group:
            raise group.exceptions[0] from None


async def _keep(worker: Worker, file: Path) -> None:
    from toolbus.bus.worker.process.health import keep_file

    try:
        await keep_file(worker, file)
    except OSError as error:
        raise NotMendable(f"--health-file can't be kept: {reason(error)}") from None


# -- processes of the same command -------------------------------------------------------------------


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


def child_words(**more: Any) -> tuple[list[str], list[str]]:
    """Return the options, and the arguments, of a child that does the work of the command that runs: all that is not the process's own.

    Args:
        **more: values of parameters that only children get.
    """
    context = click.get_current_context()
    command = context.command
    if not isinstance(command, Command):
        raise TypeError(f"{command!r} is no command of this package")
    return command.words({**{name: value for name, value in context.params.items() if name not in command.kept}, **more})


async def supervise(
    settings: Settings,
    name: str,
    words: tuple[list[str], list[str]],
    *,
    processes: Bounds,
    lifeline: int | None,
    place: Probes,
    watch: Sequence[Path] = (),
) -> int:
    """Keep processes of a toolbus command alive until a signal; return the exit code.

    Args:
        settings: of the workers.
        name: of the command.
        words: its options and its arguments.
        processes: the fewest and the most; the load decides, if they differ.
        lifeline: the file descriptor of the process that started this one.
        place: where probes are answered for all of them.
        watch: folders in which changes start them anew.
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
    options, arguments = words
    asked = () if place.health_port is None else ("--health-host", CHILD_HOST, "--health-port", "0")
    scaler = Autoscaler(processes) if processes.least < processes.most else None
    async with probing(lambda: ProbedChildren(processes), place) as (children, _), notifier.alive():
        supervisor = Supervisor(
            [sys.executable, "-m", "toolbus", name, *options, *asked],
            environment,
            processes=processes.least,
            grace=settings.grace,
            retire=lambda told: retire(settings, told),
            complain=lambda text: Failure(text).show(),
            on_serving=serving,
            watch=watch,
            after=["--", *arguments],
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
