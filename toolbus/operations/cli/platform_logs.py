"""``platform logs``: what the programs of a recorded tool print."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.common import Failure, namespace_of, output_option, with_admin
from toolbus.operations.cli.output import say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import OutputLine

# Seconds between two looks for new lines.
_LOOK_AGAIN = 0.3


@click.command("logs")
@click.argument("tool")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines as they come, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Show this many of the latest lines.")
@output_option
@click.pass_context
def logs_command(ctx: click.Context, tool: str, follow: bool, lines: int, output: str) -> None:
    """Show what the programs of TOOL print, at all hosts, and what became of them.

    \b
    Example:
      toolbus platform logs image_stitcher -f
    """

    async def main(admin: Admin) -> None:
        found = await admin.routes.output(tool, lines)
        if not found and not follow:
            if await admin.item(f"recorded/{tool}") is None:
                raise Failure(f"no tool {tool!r} is recorded{namespace_of(ctx)}; `toolbus platform list` shows those that are")
            say("its programs have printed nothing in the last day", err=True)
        hosts: set[str] = set()
        after = ""
        while True:
            for line in found:
                _print(line, output, hosts)
                after = line.entry
            if not follow:
                return
            if len(found) < lines:
                await asyncio.sleep(_LOOK_AGAIN)
            found = await admin.routes.output_after(tool, after)

    with_admin(ctx, main)


def _print(line: OutputLine, output: str, hosts: set[str]) -> None:
    seconds = int(line.entry.partition("-")[0]) / 1000
    if output == "json":
        import msgspec

        say(visible(msgspec.json.encode({"at": seconds, "host": line.host, "line": line.text}).decode()))
        return
    hosts.add(line.host)
    at = datetime.datetime.fromtimestamp(seconds).astimezone()
    # One host is the usual case, and its name would take half of each line.
    place = f" {visible(line.host)}" if len(hosts) > 1 else ""
    say(f"{at:%H:%M:%S}{place} {visible(line.text)}")
