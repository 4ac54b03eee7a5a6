"""``usage``: show the usage of calls, by user and tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from toolbus.cli.common import namespace_of, output_option, with_admin
from toolbus.cli.output import print_json, print_table

if TYPE_CHECKING:
    from toolbus.broker.admin import Admin
    from toolbus.broker.protocols import Usage


@click.command("usage")
@click.option("--days", type=click.IntRange(1, 40), default=1, show_default=True, help="How many days (UTC); today is the first.")
@click.option("--user", "users", multiple=True, help="Only this user (may be repeated).")
@click.option("--tool", "tools", multiple=True, help="Only this tool (may be repeated).")
@output_option
@click.pass_context
def usage_command(ctx: click.Context, days: int, users: tuple[str, ...], tools: tuple[str, ...], output: str) -> None:
    """Show the usage of tools by user. It counts calls, errors, milliseconds, and bytes of the answers.

    Workers count it when they run with the middleware toolbus.middleware.Metering.

    \b
    Example:
      toolbus usage --days 7 --user alice
    """

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
