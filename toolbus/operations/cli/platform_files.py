"""``platform import`` and ``platform export``: recorded tools as files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.common import fail, output_option, with_admin
from toolbus.operations.cli.output import print_json, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.platform.store import Snapshot

_FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


@click.command("import")
@_FOLDER
@output_option
@click.pass_context
def import_command(ctx: click.Context, folder: Path, output: str) -> None:
    """Record the tools and groups of registry.json, sources.json and groups.json in DIR.

    Each entry that is wrong is told with its reason and left out; the exit code is 1 then. Tools that the files do not name
    stay as they are. The catalogue that TOOLBUS_CATALOGUE names is synchronised afterwards.
    """
    from toolbus.operations.cli.platform_sync import sync_after
    from toolbus.platform.files import read_folder
    from toolbus.platform.store import Records

    found = read_folder(folder)

    async def main(admin: Admin) -> dict[str, str]:
        stored = await Records(admin).put_all(found.records)
        await sync_after(admin)
        return stored

    stored = with_admin(ctx, main) if found.records else {}
    if output == "json":
        print_json(
            {
                "stored": stored,
                "wrong": [each._asdict() for each in found.wrong],
                "ignored": [{"file": each.file, "id": each.id, "field": each.reason} for each in found.ignored],
            }
        )
    else:
        counts = Counter(stored.values())
        said = ", ".join(f"{counts[word]} {word}" for word in ("new", "changed", "unchanged") if counts[word])
        say(f"{len(stored)} stored: {said}" if stored else "nothing was stored")
        for each in found.ignored:
            say(f"{each.file}: {visible(each.id)}: {visible(each.reason)} is no field that is kept", err=True)
        for each in found.wrong:
            say(f"{each.file}: {visible(each.id)}: {visible(each.reason)}" if each.id else visible(each.reason), fg="red", err=True)
    if found.wrong:
        entries = "1 entry was" if len(found.wrong) == 1 else f"{len(found.wrong)} entries were"
        fail(f"{entries} left out; mend the files and import them again")


@click.command("export")
@_FOLDER
@output_option
@click.pass_context
def export_command(ctx: click.Context, folder: Path, output: str) -> None:
    """Write the recorded tools and groups to registry.json, sources.json and groups.json in DIR.

    Files that are there are replaced, and keep their form: a list, or an object of entries by id.
    """
    from toolbus.platform.files import write_folder
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> Snapshot:
        return await Records(admin).all()

    records = with_admin(ctx, main)
    files = write_folder(folder, records)
    if output == "json":
        print_json({"files": files, "tools": len(records.tools), "groups": len(records.groups)})
    else:
        say(f"{', '.join(files)}: tools {len(records.tools)}, groups {len(records.groups)}")
    unusable = [each for each in records.refused if not each.key.startswith("pending/")]
    for refused in unusable:
        say(f"not exported: {visible(refused.reason)}", fg="red", err=True)
    if unusable:
        fail("not everything could be exported; `toolbus get KEY` shows what is stored, `toolbus put` replaces it")
