"""``protocol``: the parts of the protocol that programs in other languages load."""

from __future__ import annotations

import re
from pathlib import Path

import click

from toolbus.operations.cli.common import fail, output_option, reason, settings_of
from toolbus.operations.cli.output import print_json, print_table, say


@click.group("protocol", no_args_is_help=True)
def protocol_command() -> None:
    """Write the scripts and numbers that a worker or an agent in another language needs.

    docs/protocol.md says how to use them, and `toolbus conformance` tries what you wrote.

    \b
    Example:
      toolbus protocol scripts lua/
      toolbus protocol constants --output json
    """


@protocol_command.command("scripts")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def scripts_command(folder: Path) -> None:
    """Write each Lua script into FOLDER, whole, in a folder for each step, and index.json with their SHA-1 digests."""
    from toolbus.bus.broker import scripts

    try:
        scripts.write_scripts(folder)
    except OSError as error:
        fail(f"can't write the scripts: {reason(error)}")
    say(f"wrote {len(scripts.ALL)} scripts to {folder}")


@protocol_command.command("constants")
@output_option
@click.pass_context
def constants_command(ctx: click.Context, output: str) -> None:
    """Print the numbers of the protocol: sizes, times, and what of them are settings."""
    from toolbus.bus.broker.replies import constants

    found = constants(settings_of(ctx))
    if output == "json":
        print_json([constant._asdict() for constant in found])
    else:
        rows = [
            (each.name, f"{each.value:,g}" if each.value < 1e6 else f"{each.value:,.0f}", each.unit, _plain(each.meaning)) for each in found
        ]
        print_table(("NAME", "VALUE", "UNIT", "MEANING"), rows, empty="no constants")


def _plain(text: str) -> str:
    return re.sub("`", "", text)
