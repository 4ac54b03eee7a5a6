"""Options and contexts of commands that answer probes and tell a service manager of themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from toolbus.bus.values.results import ToolbusError
from toolbus.operations.cli.common import NotMendable, reason

if TYPE_CHECKING:
    from toolbus.bus.worker.process.probes import Probed, ProbedWorker
    from toolbus.bus.worker.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])
P = TypeVar("P", bound="Probed")


class ProbePlace(NamedTuple):
    """The address of probes: a host and a port; no port for nowhere, and 0 for a free one."""

    host: str = "127.0.0.1"
    port: int | None = None


def health_options(prefix: str = "") -> Callable[[F], F]:
    """Return a decorator that adds ``--health-host`` and ``--health-port``; each can be set in the environment if there is a prefix."""

    def decorated(function: F) -> F:
        function = click.option(
            "--health-port",
            type=click.IntRange(0, 65535),
            envvar=f"{prefix}HEALTH_PORT" if prefix else None,
            help="Answer /live, /startup, /ready and /metrics at this port; 0 for a free one.",
        )(function)
        return click.option(
            "--health-host",
            default="127.0.0.1",
            show_default=True,
            envvar=f"{prefix}HEALTH_HOST" if prefix else None,
            help="Address of --health-port; anybody who can reach it may read.",
        )(function)

    return decorated


@contextlib.asynccontextmanager
async def probing(make: Callable[[], P], place: ProbePlace, *, quiet: bool = False) -> AsyncIterator[tuple[P | None, int]]:
    """Answer probes, if a port was given, and yield who answers them and the port.

    Args:
        make: makes who answers them.
        place: where.
        quiet: log nothing, since nobody but a supervisor asks.

    Raises:
        NotMendable: the port can't be had.
    """
    if place.port is None:
        yield None, 0
        return
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.probes import probes

    probed = make()
    async with contextlib.AsyncExitStack() as stack:
        try:
            port = await stack.enter_async_context(probes(probed, place.host, place.port))
        except OSError as error:
            raise NotMendable(f"--health-port can't be kept: {reason(error)}") from None
        if not quiet:
            telemetry.log.info("health.listening", host=place.host, port=port)
        yield probed, port


async def run_worker(
    worker: Worker,
    place: ProbePlace,
    lifeline: int | None,
    *,
    health_file: Path | None = None,
    on_open: Callable[[], object] = lambda: None,
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
    from toolbus.bus.worker.process.lifeline import Notifier, Told, tell

    notifier = Notifier()
    async with probing(lambda: _probed(worker), place, quiet=lifeline is not None) as (probed, port), notifier.alive():

        def opened() -> None:
            if probed is not None:
                probed.started = True
            tell(lifeline, Told(serving=True, instance=worker.instance, probes=port))
            notifier.ready()
            on_open()

        try:
            async with asyncio.TaskGroup() as tasks:
                kept = None if health_file is None else tasks.create_task(_keep(worker, health_file))
                await worker.run(opened, notifier.stopping)
                if kept is not None:
                    kept.cancel()
        except* ToolbusError as group:
            raise group.exceptions[0] from None


def _probed(worker: Worker) -> ProbedWorker:
    from toolbus.bus.worker.process.probes import ProbedWorker

    return ProbedWorker(worker)


async def _keep(worker: Worker, file: Path) -> None:
    from toolbus.bus.worker.process.health import keep_file

    try:
        await keep_file(worker, file)
    except OSError as error:
        raise NotMendable(f"--health-file can't be kept: {reason(error)}") from None
