"""``host``: serve recorded tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.common import settings_with_server
from toolbus.operations.cli.probing import ProbePlace, health_options, probing
from toolbus.operations.cli.supervised import refusals

# Calls wait here, at no cost, until a program has started; those of one tool must not keep others from running.
_CONCURRENCY = 1_000


@click.command("host")
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="Also run sources that name this label (may be repeated).")
@click.option("--name", default="", help="Begins the id of the host, instead of the machine's name.")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Look for relative folders of sources here (may be repeated; the working directory).",
)
@click.option("--concurrency", type=click.IntRange(1), help=f"Calls that run or wait here at once ({_CONCURRENCY:,}).")
@click.option("--grace", type=float, help="Seconds that running calls may take to finish on SIGTERM (TOOLBUS_GRACE; 30).")
@click.option("--lease", type=float, help="Seconds after which another host takes over from a dead one (TOOLBUS_LEASE; 30).")
@click.option("--allow-host", "allowed", multiple=True, metavar="HOST", help="Let APIs be at this host although it is not public.")
@health_options()
@click.option("--lifeline", type=int, hidden=True)
@click.pass_context
def host_command(
    ctx: click.Context,
    labels: tuple[str, ...],
    name: str,
    folders: tuple[Path, ...],
    concurrency: int | None,
    grace: float | None,
    lease: float | None,
    allowed: tuple[str, ...],
    health_host: str,
    health_port: int | None,
    lifeline: int | None,
) -> None:
    """Serve the recorded tools that this machine may run.

    Programs and containers are started when a tool is first called, watched, and stopped when nobody calls it. Tools come and go as
    records do (`toolbus platform`). A source that names hosts runs at those with one of its labels, any other source at every host.

    SIGTERM and Ctrl-C take the host's tools out of the registry, let running calls finish, stop the programs, and exit with 0.

    \b
    Examples:
      toolbus host
      toolbus host --label gpu --label eu
      toolbus host --name workshop --allow-host localhost:8080
    """
    from toolbus.bus import telemetry
    from toolbus.bus.worker.process.event_loop import run_loop

    settings = settings_with_server(ctx, serves=True, concurrency=concurrency or _CONCURRENCY, grace=grace, lease=lease)
    telemetry.configure_logging(settings.log_level, settings.log_format)
    telemetry.configure_export("toolbus-host")
    place = ProbePlace(health_host, health_port)
    with refusals(lifeline):
        run_loop(lambda: _serve(settings, Hosting(labels, name, allowed, folders), place, lifeline))
    sys.exit(0)


class Hosting(NamedTuple):
    """The options of a host."""

    labels: tuple[str, ...]
    name: str
    allowed: tuple[str, ...]
    folders: tuple[Path, ...]


async def _serve(settings: Settings, hosting: Hosting, place: ProbePlace, lifeline: int | None) -> None:
    from toolbus.bus.worker.process.lifeline import Notifier, Told, end_process, tell, watch_lifeline
    from toolbus.bus.worker.process.probes import ProbedWorker
    from toolbus.platform.host.host import Host

    notifier = Notifier()

    host = Host(settings, **hosting._asdict())
    if lifeline is not None:
        watch_lifeline(lifeline, end_process, settings.grace)
    async with probing(lambda: ProbedWorker(host.worker), place, quiet=lifeline is not None) as (probed, port), notifier.alive():

        def opened() -> None:
            if probed is not None:
                probed.started = True
            tell(lifeline, Told(serving=True, instance=host.worker.instance, host=host.id, probes=port))
            notifier.ready()

        await host.run(opened, notifier.stopping)
