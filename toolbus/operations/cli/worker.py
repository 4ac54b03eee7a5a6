"""``worker``: serve tools."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import click

from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.autoscaler import Bounds
from toolbus.operations.cli.command import Concurrency, Grace, Lifeline, Probes, argument, command, option, setting
from toolbus.operations.cli.common import serving_settings
from toolbus.operations.cli.serving import child_words, end_with, refusals, run_worker, supervise

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
    probes: Probes,
    examples: Annotated[bool, option("Serve the examples of toolbus, too.", hidden=True)],
    lifeline: Lifeline,
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
    from toolbus.bus.worker.loading import folders
    from toolbus.bus.worker.process.event_loop import run_loop

    if health_file is not None and processes.most > 1:
        raise click.UsageError("--health-file is for one process; leave --processes out, or use --health-port")
    if not targets and not examples:
        raise click.UsageError("name what to serve: a file (jokes.py), a module, or an installed service (toolbus see workers lists them)")
    settings = serving_settings("worker", lifeline=lifeline, concurrency=concurrency, grace=grace, lease=lease)
    with refusals(lifeline):
        if processes.most > 1 or reload:
            watch = folders((*targets, *around)) if reload else ()
            words = child_words(report_load=processes.most > processes.least)
            code = run_loop(lambda: supervise(settings, "worker", words, processes=processes, lifeline=lifeline, place=probes, watch=watch))
        else:
            code = run_loop(
                lambda: _work(settings, targets, around, health_file, probes, lifeline, examples=examples, report_load=report_load)
            )
    sys.exit(code)


async def _work(
    settings: Settings,
    targets: tuple[str, ...],
    around: tuple[str, ...],
    health_file: Path | None,
    probes: Probes,
    lifeline: int | None,
    *,
    examples: bool,
    report_load: bool,
) -> int:
    from toolbus.bus import telemetry
    from toolbus.bus.worker import loading
    from toolbus.bus.worker.process.autoscaler import load_reports
    from toolbus.bus.worker.worker import Worker
    from toolbus.edges.mounts.mount import mounted

    served = [*(loading.examples() if examples else ()), *map(_mounting, map(loading.load, targets))]
    end_with(lifeline, settings)
    async with mounted(served) as serve_with:
        worker = Worker(served, settings=settings, middleware=_middleware(around))
        serve_with(worker)
        async with load_reports(worker, lifeline if report_load else None) as opened:
            await run_worker(worker, probes, lifeline, health_file=health_file, on_open=opened)
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
    from toolbus.bus.worker.loading import load

    found: list[Any] = []
    for place in places:
        each = load(place)
        found += each if isinstance(each, (list, tuple)) else [each]
    return found
