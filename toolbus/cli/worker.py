"""``worker``: serve tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import click

from toolbus.cli.common import Failure, environment_of, reason, settings_with_server
from toolbus.results import ConfigurationError, ToolbusError
from toolbus.settings import Settings


@click.command("worker")
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes.")
@click.option("--concurrency", type=click.IntRange(1), help="Calls that run at once in each process (TOOLBUS_CONCURRENCY; 100).")
@click.option("--reload", is_flag=True, help="Restart when a Python file beside the targets changes.")
@click.option("--grace", type=float, help="Seconds that running calls may take to finish on SIGTERM (TOOLBUS_GRACE; 30).")
@click.option("--lease", type=float, help="Seconds after which another worker takes over a dead worker's calls (TOOLBUS_LEASE; 30).")
@click.option("--middleware", "around", multiple=True, metavar="MODULE:NAME", help="Middleware, or a list of it (may be repeated).")
@click.option(
    "--health-file", type=click.Path(path_type=Path), help="Touch this file regularly while the worker can serve (one process only)."
)
@click.option("--health-port", type=click.IntRange(1, 65535), help="Answer HTTP on this loopback port: 200 or 503 (one process only).")
@click.option("--examples", is_flag=True, hidden=True, help="Serve the examples of toolbus, too.")
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def worker_command(
    ctx: click.Context,
    targets: tuple[str, ...],
    processes: int,
    concurrency: int | None,
    reload: bool,
    grace: float | None,
    lease: float | None,
    around: tuple[str, ...],
    health_file: Path | None,
    health_port: int | None,
    examples: bool,
    lifeline: int | None,
) -> None:
    """Serve the tools of each TARGET.

    A TARGET is a path (jokes.py, mytools/), a module, a package with its modules, module:name, or the short name of an
    installed service (`toolbus workers` lists them).

    SIGTERM and Ctrl-C take the worker out of the registry at once, let running calls finish, and exit with 0.

    \b
    Examples:
      toolbus worker jokes.py
      toolbus worker calculator text --processes 4
      toolbus worker mytools
      toolbus worker jokes.py --middleware limits.py:middleware
    """
    from toolbus import telemetry
    from toolbus.worker.process.event_loop import run_loop

    probes = {"--health-file": health_file, "--health-port": health_port}
    extra = [word for option, value in probes.items() if value is not None for word in (option, str(value))]
    if extra and processes > 1:
        raise click.UsageError("--health-file and --health-port are for one process; leave --processes out")
    if not targets and not examples:
        raise click.UsageError("name what to serve: a file (jokes.py), a module, or an installed service (toolbus workers lists them)")
    extra += ["--examples"] if examples else []
    extra += [word for each in around for word in ("--middleware", each)]
    settings = settings_with_server(ctx, concurrency=concurrency, grace=grace, lease=lease)
    telemetry.configure_logging(settings.log_level, settings.log_format)
    watched = (*targets, *around) if reload else ()
    with _refusals(lifeline):
        if processes > 1 or reload:
            code = run_loop(lambda: _supervise(settings, targets, processes, lifeline, watched=watched, extra=extra, ctx=ctx))
        else:
            code = run_loop(lambda: _work(settings, targets, around, health_file, health_port, lifeline, examples=examples))
    sys.exit(code)


class _NotKept(ConfigurationError):
    """A probe can't be kept, whatever the served files say."""


@contextlib.contextmanager
def _refusals(lifeline: int | None) -> Iterator[None]:
    """Let the process that started this one, if there is one, say why the worker ends."""
    from toolbus import telemetry
    from toolbus.results import RegistrationRefused
    from toolbus.worker.process.lifeline import Told, tell

    try:
        yield
    except ToolbusError as error:
        mendable = isinstance(error, (ConfigurationError, RegistrationRefused)) and not isinstance(error, _NotKept)
        telemetry.flush_logging()
        if tell(lifeline, Told(refused=str(error), mendable=mendable)):
            sys.exit(1)
        raise
    except Exception:
        tell(lifeline, Told(mendable=True))
        raise


async def _work(
    settings: Settings,
    targets: tuple[str, ...],
    around: tuple[str, ...],
    health_file: Path | None,
    health_port: int | None,
    lifeline: int | None,
    *,
    examples: bool,
) -> int:
    from toolbus import telemetry
    from toolbus.worker.loading import installed
    from toolbus.worker.loading.command_line import load
    from toolbus.worker.process.lifeline import Told, tell, watch_lifeline
    from toolbus.worker.worker import Worker

    served = [*(installed.examples() if examples else ()), *(load(target) for target in targets)]
    worker = Worker(served, settings=settings, middleware=_middleware(around))
    if lifeline is not None:
        watch_lifeline(lifeline, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        async with asyncio.TaskGroup() as tasks:
            probes = []
            if health_file is not None:
                from toolbus.worker.process.health import keep_file

                probes.append(tasks.create_task(_probe("--health-file", keep_file(worker, health_file))))
            if health_port is not None:
                from toolbus.worker.process.health import serve_port

                probes.append(tasks.create_task(_probe("--health-port", serve_port(worker, health_port))))
            await worker.run(lambda: tell(lifeline, Told(instance=worker.instance)))
            for probe in probes:
                probe.cancel()
    except* ToolbusError as group:
        raise group.exceptions[0] from None
    if worker.stuck:
        # A thread can't be stopped; its call was given up, and it must not keep the process alive.
        telemetry.flush_logging()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


async def _probe(option: str, kept: Coroutine[Any, Any, None]) -> None:
    try:
        await kept
    except OSError as error:
        raise _NotKept(f"{option} can't be kept: {reason(error)}") from None


async def _supervise(
    settings: Settings,
    targets: tuple[str, ...],
    processes: int,
    lifeline: int | None,
    *,
    watched: tuple[str, ...],
    extra: list[str],
    ctx: click.Context,
) -> int:
    from toolbus.broker.admin import Admin
    from toolbus.worker.loading.command_line import folders
    from toolbus.worker.process.lifeline import Told, tell, watch_lifeline
    from toolbus.worker.process.supervisor import Supervisor, check_reload

    given = {**(ctx.find_root().obj or {}), "concurrency": settings.concurrency, "grace": settings.grace, "lease": settings.lease}
    environment = environment_of(given)
    # Refuses an impossible URL.
    Admin(settings)
    if watched:
        check_reload()
        # Python takes a compiled file for the new one when a change comes within a second and keeps the size.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"

    async def retire(instance: str) -> None:
        async with Admin(settings) as admin:
            await admin.retire(instance)

    supervisor = Supervisor(
        [sys.executable, "-m", "toolbus", "worker", *targets, *extra],
        environment,
        processes=processes,
        grace=settings.grace,
        retire=retire,
        complain=lambda text: Failure(text).show(),
        on_serving=lambda instance: tell(lifeline, Told(instance=instance)),
        watch=folders(watched),
    )
    if lifeline is not None:
        watch_lifeline(lifeline, lambda: os.kill(os.getpid(), signal.SIGTERM))
    return await supervisor.run()


def _middleware(places: tuple[str, ...]) -> list[Any]:
    from toolbus.worker.loading.command_line import load

    found: list[Any] = []
    for place in places:
        each = load(place)
        found += each if isinstance(each, (list, tuple)) else [each]
    return found
