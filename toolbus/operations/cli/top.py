"""``top``: watch a namespace in the terminal."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.common import Seconds, fail, output_option, print_json, print_table, say, settings_with_server

if TYPE_CHECKING:
    from toolbus.bus.values.settings import Settings
    from toolbus.bus.watch.views import Snapshot


@click.command("top")
@click.option("--every", type=Seconds(3600), default=1.0, show_default=True, help="Seconds between two snapshots.")
@click.option("--once", is_flag=True, help="Print one snapshot, with the rates of the seconds of --every, and end.")
@output_option
@click.pass_context
def top_command(ctx: click.Context, every: float, once: bool, output: str) -> None:
    """Watch services, workers, tools and calls in the terminal. The keys are shown below; q ends it.

    \b
    Example:
      toolbus top
      toolbus top --once --output json
    """
    import asyncio

    settings = settings_with_server(ctx)
    if once:
        _print(asyncio.run(_once(settings, every)), output)
        return
    if output == "json":
        raise click.UsageError("--output json goes with --once")
    try:
        from toolbus.operations.top import Top
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        fail("top needs textual: pip install 'toolbus[top]'; `toolbus top --once` does without")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("top needs a terminal; `toolbus top --once` prints one snapshot")
    app = Top(settings, every=every)
    # What was loaded stays for good, and what a snapshot leaves behind is freed by counting.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    app.run()
    ctx.exit(app.return_code or 0)


async def _once(settings: Settings, every: float) -> Snapshot:
    import asyncio

    from toolbus.bus.watch.watch import Watch

    async with Watch(settings, patience=1.0) as watch:
        await watch.sample()
        await asyncio.sleep(every)
        return await watch.sample()


def _print(snapshot: Snapshot, output: str) -> None:
    import msgspec

    from toolbus.bus.watch.tables import TABLES

    if output == "json":
        print_json(msgspec.to_builtins(snapshot))
        return
    for number, table in enumerate(TABLES.values()):
        rows = table.sorted(table.rows(snapshot), *table.first[:1], down=table.first[1])
        if not rows and number:
            continue
        say(f"{'' if not number else chr(10)}{table.title}")
        print_table([column.title for column in table.columns], map(table.cells, rows), empty=table.empty)
    for problem in snapshot.problems:
        say(f"could not be read: {visible(problem)}", fg="yellow", err=True)
    if snapshot.silent:
        say(f"did not answer: {visible(', '.join(snapshot.silent))}", fg="yellow", err=True)
