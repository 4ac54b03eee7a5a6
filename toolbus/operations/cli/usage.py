"""``usage``: show the usage of calls, by user and tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from toolbus.operations.cli.common import namespace_of, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import CreationOverview, Usage


@click.command("usage")
@click.option("--days", type=click.IntRange(1, 40), default=1, show_default=True, help="How many days (UTC); today is the first.")
@click.option("--user", "users", multiple=True, help="Only this user (may be repeated).")
@click.option("--tool", "tools", multiple=True, help="Only this tool (may be repeated).")
@click.option("--models", is_flag=True, help="Tokens and prices of coding agents' tasks, by tool and task, instead.")
@output_option
@click.pass_context
def usage_command(ctx: click.Context, days: int, users: tuple[str, ...], tools: tuple[str, ...], models: bool, output: str) -> None:
    """Show the usage of tools by user. It counts calls, errors, milliseconds, and bytes of the answers.

    Workers count it when they run with the middleware toolbus.bus.middleware.Metering. With --models it shows what coding agents spent on
    models; tasks are kept for 7 days.

    \b
    Examples:
      toolbus usage --days 7 --user alice
      toolbus usage --days 7 --models
    """
    if models:
        _show_models(ctx, days, users, tools, output)
        return

    async def main(admin: Admin) -> list[Usage]:
        return await admin.tallies.usage(days)

    found = [each for each in with_admin(ctx, main) if (not users or each.user in users) and (not tools or each.tool in tools)]
    if output == "json":
        print_json(msgspec.to_builtins(found))
        return
    rows = [(each.user, each.tool, each.calls, each.errors, each.ms, each.bytes) for each in found]
    print_table(
        ("USER", "TOOL", "CALLS", "ERRORS", "MS", "BYTES"),
        rows,
        empty=f"nothing was counted{namespace_of(ctx)}; workers count with the middleware Metering()",
    )


def _show_models(ctx: click.Context, days: int, users: tuple[str, ...], tools: tuple[str, ...], output: str) -> None:
    """Print what tasks of coding agents cost."""
    from toolbus.bus.broker.protocols.documents import MOST_ENDED
    from toolbus.platform.states import costs_of

    async def main(admin: Admin) -> CreationOverview:
        return await admin.creations.overview(MOST_ENDED)

    found = costs_of(with_admin(ctx, main), days)
    chosen = [each for each in found if (not users or each.user in users) and (not tools or each.tool in tools)]
    if output == "json":
        print_json(msgspec.to_builtins(chosen))
        return
    rows = [
        (each.tool, each.task, each.user, each.status, each.prompt_tokens, each.completion_tokens, f"{each.price:.4f}") for each in chosen
    ]
    if len(rows) > 1:
        total = [sum(getattr(each, name) for each in chosen) for name in ("prompt_tokens", "completion_tokens", "price")]
        rows.append(("all", "", "", "", total[0], total[1], f"{total[2]:.4f}"))
    print_table(
        ("TOOL", "TASK", "USER", "STATUS", "PROMPT", "COMPLETION", "PRICE"),
        rows,
        empty=f"no coding agent had a task{namespace_of(ctx)} in these days (UTC); --days 7 looks further back",
    )
