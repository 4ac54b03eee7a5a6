"""``calls``: show the recent calls and those that run, and follow them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import namespace_of, output_option, print_json, print_table, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.recent import RecentCall
    from toolbus.bus.broker.statistics.answers import RunningCall
    from toolbus.bus.broker.statistics.asking import Statistics

    C = TypeVar("C", RecentCall, RunningCall)

# As many as the server keeps, about.
_MOST = 1_200
_EVERY = 0.5
_FAILED = frozenset({"failed", "cancelled", "retried", "lost", "dead"})


@click.command("calls")
@click.option("--tool", help="Only calls of this tool.")
@click.option("--service", help="Only calls of this service.")
@click.option("--user", help="Only calls for this user.")
@click.option("--call", help="Only the attempts of calls whose id starts with this.")
@click.option("--failed", is_flag=True, help="Only attempts that did not succeed.")
@click.option("--running", is_flag=True, help="The calls that run now instead, asked from the workers; the longest first.")
@click.option("--limit", type=click.IntRange(1, _MOST), default=50, show_default=True, help="At most so many, the newest ones.")
@click.option("--follow", is_flag=True, help="Go on with new ones as they come, until Ctrl-C; JSON has one document per line.")
@output_option
@click.pass_context
def calls_command(
    ctx: click.Context,
    tool: str | None,
    service: str | None,
    user: str | None,
    call: str | None,
    failed: bool,
    running: bool,
    limit: int,
    follow: bool,
    output: str,
) -> None:
    """Show the attempts of recent calls, and what runs. The oldest one comes first.

    Workers tell of some of them: of all while there are few, and of at most ten a second each while there are many. Attempts that
    did not succeed have a share of their own. TOOLBUS_RECENT=off at a worker turns that off.

    With --running, each worker names a hundred calls at most, those that have run longest.

    \b
    Examples:
      toolbus calls --failed --follow
      toolbus calls --running --tool search
    """
    wanted = {name: value for name, value in (("tool", tool), ("service", service), ("user", user)) if value is not None}
    if running and (failed or follow):
        raise click.UsageError("--running shows calls that have not ended; leave out --failed and --follow")

    def chosen(found: Iterable[C]) -> list[C]:
        return [
            each for each in found if all(getattr(each, name) == value for name, value in wanted.items()) and each.id.startswith(call or "")
        ]

    def ended(found: Iterable[RecentCall]) -> list[RecentCall]:
        return [each for each in chosen(found) if not failed or each.outcome in _FAILED]

    async def main(admin: Admin) -> None:
        if running:
            from toolbus.bus.watch.assembly import running_calls

            statistics = await admin.statistics(service or "")
            _print_running(ctx, chosen(running_calls(statistics.answers.values()))[:limit], statistics, output)
            return
        everything = await admin.recent(_MOST)
        found = ended(everything)[:limit][::-1]
        if not follow:
            _print(ctx, found, output)
            return
        after = everything[0].entry if everything else "0-0"
        while True:
            for each in found:
                _print_line(each, output)
            await asyncio.sleep(_EVERY)
            new, after = await admin.recent_after(after)
            found = ended(new)

    with_admin(ctx, main)


def _print(ctx: click.Context, found: list[RecentCall], output: str) -> None:
    from toolbus.bus.watch.tables import TABLES

    if output == "json":
        print_json([each.document() for each in found])
        return
    table = TABLES["calls"]
    print_table([column.title for column in table.columns], map(table.cells, found), empty=f"no recent calls{namespace_of(ctx)}")


def _print_running(ctx: click.Context, found: list[RunningCall], statistics: Statistics, output: str) -> None:
    import msgspec

    from toolbus.bus.watch.tables import TABLES

    if output == "json":
        print_json([msgspec.structs.asdict(each) for each in found])
    else:
        table = TABLES["running"]
        print_table([column.title for column in table.columns], map(table.cells, found), empty=f"no running calls{namespace_of(ctx)}")
    held = sum(answer.running for answer in statistics.answers.values())
    named = sum(len(answer.calls) for answer in statistics.answers.values())
    if held > named:
        say(f"workers hold {held - named} more calls than they name", fg="yellow", err=True)
    if statistics.silent:
        say(f"workers that did not answer: {one_line(', '.join(map(visible, statistics.silent)), 300)}", fg="yellow", err=True)


def _print_line(call: RecentCall, output: str) -> None:
    from toolbus.bus.watch.tables import TABLES

    if output == "json":
        import msgspec

        say(visible(msgspec.json.encode(call.document()).decode()))
        return
    cells = TABLES["calls"].cells(call)
    say("  ".join(visible(cell) for cell in cells), fg="red" if call.outcome in _FAILED else None)
