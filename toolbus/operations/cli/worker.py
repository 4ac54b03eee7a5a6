"""``worker``: serve tools; and what all commands that serve have in common: probes, the line to their parent, copies of themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from toolbus.bus import telemetry
from toolbus.bus.values.results import ConfigurationError, RegistrationRefused, ToolbusError
from toolbus.bus.values.settings import Settings, environment_of
from toolbus.bus.worker.loading import examples as example_services
from toolbus.bus.worker.loading import folders, load
from toolbus.bus.worker.process.lifeline import Bounds, ChildState, Notifier, end_process, load_reports, report_state, watch_lifeline
from toolbus.operations.cli.command import Command, Concurrency, Grace, ProcessOptions, argument, command, option, setting
from toolbus.operations.cli.common import NotMendable, reason, serving_settings
from toolbus.operations.cli.failing import Failure

if TYPE_CHECKING:
    from toolbus.bus.worker.process.health import Probed
    from toolbus.bus.worker.worker import Worker

# Seconds that children may take beyond their grace period, until they are killed and what they held is others'.
_OF_CHILDREN = 10.0


_MOST = 256


class Processes(click.ParamType):  # type: ignore[type-arg] # generic in newer versions of click only
    """A number of processes (``4``), or two between which they follow the load (``1..8``); the value is ``Bounds``."""

    name = "N|N..M"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bounds:
        """Return the bounds, which are equal for a fixed number."""
        if isinstance(value, Bounds):
            return value
        least, *more = (self._number(each, param, ctx) for each in str(value).split("..", 1))
        most = more[0] if more else least
        if most < least:
            self.fail(f"{value} ends below its beginning; give the fewest processes first: {most}..{least}", param, ctx)
        return Bounds(least, most)

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST and len(text) < 9):
            self.fail(f"{text!r} is no number of processes from 1 to {_MOST}; give one (4), or the fewest and the most (1..8)", param, ctx)
        return int(text)


@command("worker")
def worker_command(
    targets: Annotated[tuple[str, ...], argument(metavar="TARGET...")],
    processes: Annotated[
        Bounds, option("Worker processes: a number, or 1..8 to follow the load.", kept=True, type=Processes(), default="1")
    ],
    concurrency: Concurrency,
    reload: Annotated[bool, option("Restart when a Python file beside the targets changes.", kept=True)],
    grace: Grace,
    lease: Annotated[float | None, setting("lease", "Seconds after which another worker takes over a dead worker's calls")],
    around: Annotated[tuple[str, ...], option("Middleware, or a list of it (may be repeated).", "--middleware", metavar="MODULE:NAME")],
    health_file: Annotated[Path | None, option("Touch this file regularly while the worker can serve (one process only).")],
    process: ProcessOptions,
    examples: Annotated[bool, option("Serve the examples of toolbus, too.", hidden=True)],
    report_load: Annotated[bool, option("Tell the process at the lifeline how busy this one is.", hidden=True)],
) -> None:
    """Serve the tools of each TARGET.

    A TARGET is a path (jokes.py, mytools/), a module, a package with its modules, module:name, or the short name of an
    installed service (`toolbus see workers` lists them). A name may be that of a FastMCP server object (server.py:mcp).

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
    from toolbus.bus.worker.process.event_loop import run_loop

    if health_file is not None and processes.most > 1:
        raise click.UsageError("--health-file is for one process; leave --processes out, or use --health-port")
    if not targets and not examples:
        raise click.UsageError("name what to serve: a file (jokes.py), a module, or an installed service (toolbus see workers lists them)")
    settings = serving_settings("worker", lifeline=process.lifeline, concurrency=concurrency, grace=grace, lease=lease)

    async def work() -> int:
        from toolbus.bus.worker.worker import Worker
        from toolbus.edges.mounts.mount import mounted

        served = [*(example_services() if examples else ()), *map(_mounting, map(load, targets))]
        end_with(process, settings)
        async with mounted(served) as serve_with:
            worker = Worker(served, settings=settings, middleware=_middleware(around))
            serve_with(worker)
            async with load_reports(worker.statistics, process.lifeline if report_load else None) as opened:
                await run_worker(worker, process, health_file=health_file, on_open=opened)
        if worker.stuck:
            # A thread can't be stopped; its call, or the start, was given up, and it must not keep the process alive.
            telemetry.flush_logging()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        return 0

    with refusals(process):
        if processes.most > 1 or reload:
            watch = folders((*targets, *around)) if reload else ()
            words = child_words(report_load=processes.most > processes.least)
            code = run_loop(lambda: supervise(settings, "worker", words, processes, process, watch))
        else:
            code = run_loop(work)
    sys.exit(code)


def _mounting(target: object) -> object:
    """Return a server object of FastMCP or of the official SDK as a service, and any other target as it is."""
    from toolbus.edges.mounts.mount import is_server

    if not is_server(target):
        return target
    from toolbus.edges.mounts.service import mount_of

    return mount_of(target)


def _middleware(places: tuple[str, ...]) -> list[Any]:
    found: list[Any] = []
    for place in places:
        each = load(place)
        found += each if isinstance(each, (list, tuple)) else [each]
    return found


# -- of every command that serves ----------------------------------------------------------------------


@contextlib.contextmanager
def refusals(process: ProcessOptions) -> Iterator[None]:
    """Let the process that started this one, if there is one, say why the worker ends."""
    try:
        yield
    except ToolbusError as error:
        mendable = isinstance(error, (ConfigurationError, RegistrationRefused)) and not isinstance(error, NotMendable)
        telemetry.flush_logging()
        if report_state(process.lifeline, ChildState(refused=str(error), mendable=mendable)):
            sys.exit(1)
        raise
    except Exception:
        report_state(process.lifeline, ChildState(mendable=True))
        raise


def end_with(process: ProcessOptions, settings: Settings) -> None:
    """Begin the end of this process when the one that started it, if there is one, is gone."""
    if process.lifeline is not None:
        watch_lifeline(process.lifeline, end_process, settings.grace)


@contextlib.asynccontextmanager
async def announced(
    make: Callable[[], Probed], process: ProcessOptions, *, notifier: Notifier | None = None, quiet: bool = False
) -> AsyncIterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Answer probes and the service manager; yield what is called when the process serves, and when it begins to end.

    Args:
        make: makes what answers probes, if a port was given.
        process: this one.
        notifier: of the service manager.
        quiet: log nothing, since nobody but a supervisor asks.

    Raises:
        NotMendable: the port can't be had.
    """
    notifier = notifier or Notifier()
    probed, port = None, 0
    async with contextlib.AsyncExitStack() as stack:
        if process.health_port is not None:
            from toolbus.bus.worker.process.health import probes

            probed = make()
            try:
                port = await stack.enter_async_context(probes(probed, process.health_host, process.health_port))
            except OSError as error:
                raise NotMendable(f"--health-port can't be kept: {reason(error)}") from None
            if not quiet:
                telemetry.log.info("health.listening", host=process.health_host, port=port)
        await stack.enter_async_context(notifier.alive())

        def serving() -> None:
            if probed is not None:
                probed.started = True
            report_state(process.lifeline, ChildState(serving=True, probes=port))
            notifier.ready()

        yield serving, notifier.stopping


async def run_worker(
    worker: Worker, process: ProcessOptions, *, health_file: Path | None = None, on_open: Callable[[], object] = lambda: None
) -> None:
    """Serve until a signal, and answer probes meanwhile.

    Args:
        worker: not yet opened.
        process: this one.
        health_file: kept fresh while the worker is healthy.
        on_open: called once when the worker is registered.

    Raises:
        NotMendable: the port or the file can't be kept.
        ToolbusError: the worker can't serve.
    """
    async with announced(lambda: probed_worker(worker), process, quiet=process.lifeline is not None) as (serving, stopping):

        def connected() -> None:
            report_state(process.lifeline, ChildState(instance=worker.instance))

        def opened() -> None:
            serving()
            on_open()

        try:
            async with asyncio.TaskGroup() as tasks:
                kept = None if health_file is None else tasks.create_task(_keep(worker, health_file))
                await worker.run(opened, stopping, on_connect=connected)
                if kept is not None:
                    kept.cancel()
        except* ToolbusError as group:
            raise group.exceptions[0] from None


def probed_worker(worker: Worker) -> Probed:
    """Return what answers probes for a worker."""
    from toolbus.bus.worker.process.health import ProbedWorker

    return ProbedWorker(worker)


async def _keep(worker: Worker, file: Path) -> None:
    from toolbus.bus.worker.process.health import keep_file

    try:
        await keep_file(worker, file)
    except OSError as error:
        raise NotMendable(f"--health-file can't be kept: {reason(error)}") from None


def child_words(**more: Any) -> tuple[list[str], list[str]]:
    """Return the options, and the arguments, of a child that does the work of the command that runs: all that is not the process's own.

    Args:
        **more: values of parameters that only children get.
    """
    context = click.get_current_context()
    command = cast("Command", context.command)
    return command.words({**{name: value for name, value in context.params.items() if name not in command.kept}, **more})


async def supervise(
    settings: Settings,
    name: str,
    words: tuple[list[str], list[str]],
    processes: Bounds,
    process: ProcessOptions,
    watch: Sequence[Path] = (),
) -> int:
    """Keep processes of a toolbus command alive until a signal; return the exit code.

    Args:
        settings: of the workers.
        name: of the command.
        words: its options and its arguments.
        processes: the fewest and the most; the load decides, if they differ.
        process: this one, which answers probes for all of them.
        watch: folders in which changes start them anew.
    """
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.worker.process.health import CHILD_HOST, ProbedChildren
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
    if process.lifeline is not None:
        watch_lifeline(process.lifeline, lambda: os.kill(os.getpid(), signal.SIGTERM), settings.grace + _OF_CHILDREN)
    options, arguments = words
    asked = () if process.health_port is None else ("--health-host", CHILD_HOST, "--health-port", "0")
    supervisor = Supervisor(
        [sys.executable, "-m", "toolbus", name, *options, *asked],
        environment,
        settings,
        complain=lambda text: Failure(text).show(),
        processes=processes,
        watch=watch,
        after=["--", *arguments],
    )
    async with announced(lambda: ProbedChildren(supervisor), process, notifier=notifier) as (serving, stopping):
        return await supervisor.run(serving, stopping)
