"""``worker``: serve tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.autoscaler import Bounds
from toolbus.operations.cli.common import Failure, NotMendable, environment_of, settings_with_server
from toolbus.operations.cli.doctor import ProbePlace, health_options, probing, run_worker

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


_MOST = 256


class Processes(click.ParamType):  # type: ignore[type-arg] # generic in newer versions of click only
    """A number of processes (``4``), or two between which they follow the load (``1..8``); the value is ``Bounds``."""

    name = "N|N..M"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bounds:
        """Return the bounds, which are equal for a fixed number."""
        if isinstance(value, Bounds):
            return value
        first, dots, second = str(value).partition("..")
        least = self._number(first, param, ctx)
        most = self._number(second, param, ctx) if dots else least
        if most < least:
            self.fail(f"{value} ends below its beginning; give the fewest processes first: {most}..{least}", param, ctx)
        return Bounds(least, most)

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST and len(text) < 9):
            self.fail(f"{text!r} is no number of processes from 1 to {_MOST}; give one (4), or the fewest and the most (1..8)", param, ctx)
        return int(text)


@click.command("worker")
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option(
    "--processes", type=Processes(), default="1", show_default=True, help="Worker processes: a number, or 1..8 to follow the load."
)
@click.option("--concurrency", type=click.IntRange(1), help="Calls that run at once in each process (TOOLBUS_CONCURRENCY; 100).")
@click.option("--reload", is_flag=True, help="Restart when a Python file beside the targets changes.")
@click.option("--grace", type=float, help="Seconds that running calls may take to finish on SIGTERM (TOOLBUS_GRACE; 30).")
@click.option("--lease", type=float, help="Seconds after which another worker takes over a dead worker's calls (TOOLBUS_LEASE; 30).")
@click.option("--middleware", "around", multiple=True, metavar="MODULE:NAME", help="Middleware, or a list of it (may be repeated).")
@click.option(
    "--health-file", type=click.Path(path_type=Path), help="Touch this file regularly while the worker can serve (one process only)."
)
@health_options()
@click.option("--examples", is_flag=True, hidden=True, help="Serve the examples of toolbus, too.")
@click.option("--lifeline", type=int, hidden=True)
@click.option("--report-load", is_flag=True, hidden=True, help="Tell the process at the lifeline how busy this one is.")
@click.pass_context
def worker_command(
    ctx: click.Context,
    targets: tuple[str, ...],
    processes: Bounds,
    concurrency: int | None,
    reload: bool,
    grace: float | None,
    lease: float | None,
    around: tuple[str, ...],
    health_file: Path | None,
    health_host: str,
    health_port: int | None,
    examples: bool,
    lifeline: int | None,
    report_load: bool,
) -> None:
    """Serve the tools of each TARGET.

    A TARGET is a path (jokes.py, mytools/), a module, a package with its modules, module:name, or the short name of an
    installed service (`toolbus workers` lists them). A name may be that of a FastMCP server object (server.py:mcp).

    With --processes 1..8 there are as many processes as the load asks for, between 1 and 8: more when calls wait for a slot, hold the event
    loop or use up a core, fewer after half a minute with less to do. A process that goes finishes its calls first.

    SIGTERM and Ctrl-C take the worker out of the registry at once, let running calls finish, and exit with 0.

    \b
    Examples:
      toolbus worker jokes.py
      toolbus worker calculator text --processes 4
      toolbus worker jokes.py --processes 1..8 --health-port 8081
      toolbus worker mytools
      toolbus worker jokes.py --middleware limits.py:middleware
    """
    from toolbus.bus import telemetry
    from toolbus.bus.worker.loading.command_line import folders
    from toolbus.bus.worker.process.event_loop import run_loop

    if health_file is not None and processes.most > 1:
        raise click.UsageError("--health-file is for one process; leave --processes out, or use --health-port")
    if not targets and not examples:
        raise click.UsageError("name what to serve: a file (jokes.py), a module, or an installed service (toolbus workers lists them)")
    extra = ["--health-file", str(health_file)] if health_file is not None else []
    extra += ["--examples"] if examples else []
    extra += [word for each in around for word in ("--middleware", each)]
    settings = settings_with_server(ctx, serves=True, concurrency=concurrency, grace=grace, lease=lease)
    # Its lines stand among those of others.
    process = 0 if lifeline is None else os.getpid()
    telemetry.configure_logging(settings.log_level, settings.log_format, process=process)
    telemetry.configure_export("toolbus-worker")
    place = ProbePlace(health_host, health_port)
    watched = (*targets, *around) if reload else ()
    with refusals(lifeline):
        if processes.most > 1 or reload:
            watch = folders(watched)
            words = ["worker", *targets, *extra, *(["--report-load"] if processes.most > processes.least else [])]
            code = run_loop(lambda: supervise(settings, words, processes=processes, lifeline=lifeline, watch=watch, place=place))
        else:
            code = run_loop(
                lambda: _work(settings, targets, around, health_file, place, lifeline, examples=examples, report_load=report_load)
            )
    sys.exit(code)


async def _work(
    settings: Settings,
    targets: tuple[str, ...],
    around: tuple[str, ...],
    health_file: Path | None,
    place: ProbePlace,
    lifeline: int | None,
    *,
    examples: bool,
    report_load: bool,
) -> int:
    from toolbus.bus import telemetry
    from toolbus.bus.worker.loading import installed
    from toolbus.bus.worker.loading.command_line import load
    from toolbus.bus.worker.process.autoscaler import load_reports
    from toolbus.bus.worker.process.lifeline import end_process, watch_lifeline
    from toolbus.bus.worker.worker import Worker
    from toolbus.edges.mounts.mount import mounted

    served = [*(installed.examples() if examples else ()), *map(_mounting, map(load, targets))]
    if lifeline is not None:
        watch_lifeline(lifeline, end_process, settings.grace)
    async with mounted(served) as serve_with:
        worker = Worker(served, settings=settings, middleware=_middleware(around))
        serve_with(worker)
        async with load_reports(worker, lifeline if report_load else None) as opened:
            await run_worker(worker, place, lifeline, health_file=health_file, on_open=opened)
    if worker.stuck:
        # A thread can't be stopped; its call was given up, and it must not keep the process alive.
        telemetry.flush_logging()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def _mounting(target: object) -> object:
    """Return a server object of FastMCP or of the official SDK as a service, and any other target as it is."""
    from toolbus.edges.mounts.mount import is_server

    if not is_server(target):
        return target
    from toolbus.edges.mounts.service import mount_of

    return mount_of(target)


def _middleware(places: tuple[str, ...]) -> list[Any]:
    from toolbus.bus.worker.loading.command_line import load

    found: list[Any] = []
    for place in places:
        each = load(place)
        found += each if isinstance(each, (list, tuple)) else [each]
    return found
