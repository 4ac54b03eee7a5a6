"""``platform sync``: recorded tools in an external catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.common import fail, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.platform.catalogue.synchronise import Report


async def sync_after(admin: Admin) -> None:
    """Synchronise the catalogue that the environment names, if it names one, and tell what was changed or why it could not be."""
    import os

    from toolbus.bus.values.results import ToolbusError
    from toolbus.platform.catalogue.configured import configured
    from toolbus.platform.catalogue.synchronise import synchronise
    from toolbus.platform.store import Records

    try:
        catalogue = configured(os.environ)
        report = None if catalogue is None else await synchronise(Records(admin), catalogue)
    except ToolbusError as error:
        say(f"the catalogue was not synchronised: {visible(str(error))}; `toolbus platform sync` does it again", fg="red", err=True)
        return
    for each in [] if report is None else report.changes:
        say(f"connected {visible(each.id)} with {visible(each.slug)} of the catalogue: {visible(each.why)}", err=True)


@click.command("sync")
@click.argument("place", metavar="CATALOGUE", envvar="TOOLBUS_CATALOGUE")
@click.option("--token", envvar="TOOLBUS_CATALOGUE_TOKEN", default="", help="Where the API's bearer token is: env:VARIABLE or file:PATH.")
@output_option
@click.pass_context
def sync_command(ctx: click.Context, place: str, token: str, output: str) -> None:
    """Connect the items of CATALOGUE with the recorded tools and groups that they are.

    CATALOGUE is a JSON file or the URL of an API (also TOOLBUS_CATALOGUE). An item matches by its slug or title in a name or id,
    or by keywords of the description and the category. Doing it again changes nothing.

    \b
    Example:
      toolbus platform sync https://toolhub.example/api
    """
    from toolbus.platform.catalogue.configured import catalogue_at
    from toolbus.platform.catalogue.synchronise import synchronise
    from toolbus.platform.store import Records

    catalogue = catalogue_at(place, token)

    async def main(admin: Admin) -> Report:
        return await synchronise(Records(admin), catalogue)

    report = with_admin(ctx, main)
    if output == "json":
        print_json(report)
    else:
        rows = [(each.slug, each.kind, each.id, " and ".join(each.changed) or "nothing", each.why) for each in report.matches]
        print_table(("ITEM", "KIND", "ID", "CHANGED", "WHY"), rows, empty="no item of the catalogue is a tool or a group here")
        for line in report.wrong:
            say(visible(line), fg="red", err=True)
    if report.wrong:
        fail(f"{len(report.wrong)} could not be connected")
