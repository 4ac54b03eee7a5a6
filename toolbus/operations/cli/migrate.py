"""``migrate``: bring a namespace to the version of the protocol that this release writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import ask_first, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.versions import NamespaceVersion

_MOST_ROWS = 1_000
_MOST_SHOWN = 500


@click.command("migrate")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--batch", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Documents that are written at once.")
@click.option("--yes", is_flag=True, help="Do not ask before documents are moved.")
@output_option
@click.pass_context
def migrate_command(ctx: click.Context, dry_run: bool, batch: int, yes: bool, output: str) -> None:
    """Bring a namespace to the version of the protocol that this release writes.

    Run it after an upgrade, when all workers, agents and gateways are of the new release: stored documents get their new form, and
    requests are published in the new version. Workers and agents go on meanwhile. It may be stopped and run again, and does nothing twice.
    It refuses while a worker does not speak the new version; `toolbus doctor` shows who speaks which. It needs the role operator.

    Recorded tools, groups and pins of an older toolbus stand where every worker could write them, and are used once they are moved from
    there: look at them (--dry-run shows them) before you say yes.

    \b
    Examples:
      toolbus migrate --dry-run
      toolbus migrate
    """
    if dry_run:
        with_admin(ctx, lambda admin: _show(admin, output))
        return
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        told = done
        say(f"{done} documents converted", err=True)

    misplaced = with_admin(ctx, lambda admin: admin.misplaced())
    if misplaced and not yes:
        say(f"to be moved: {visible(', '.join(misplaced))}", err=True)
        count = "1 document" if len(misplaced) == 1 else f"{len(misplaced)} documents"
        ask_first(f"Move {count}, which every worker could have written, to where they are used?")

    async def main(admin: Admin) -> tuple[NamespaceVersion, NamespaceVersion, int]:
        before = await admin.versions.read()
        # What is moved may have an older form, too.
        moved = len(await admin.move(misplaced))
        return before, await admin.versions.migrate(batch, tell), moved

    before, after, moved = with_admin(ctx, main)
    if output == "json":
        print_json({"namespace": after.namespace, "before": before.written, "version": after.written, "converted": told, "moved": moved})
    elif (before.written, told, moved) == (after.written, 0, 0):
        say(f"{after} is of version {after.written} already; nothing was to be changed")
    else:
        say(f"{after} is of version {after.written} now; {told} documents converted{f', {moved} moved' if moved else ''}")


async def _show(admin: Admin, output: str) -> None:
    from toolbus.bus.broker.versions import spoken
    from toolbus.bus.values.envelope import VERSION

    namespace, behind = await asyncio.gather(admin.versions.read(), admin.versions.behind())
    namespace.check()
    # Documents may be large, and many.
    rows, more = list[tuple[str, str, str, str]](), 0
    async for each in admin.versions.changes():
        if len(rows) < _MOST_ROWS:
            rows.append((each.key, each.migration.name, each.migration.about, each.problem))
        else:
            more += 1
    misplaced = {key: document.decode("utf-8", "replace") for key, document in (await admin.misplaced()).items()}
    if output == "json":
        print_json(
            {
                "namespace": namespace.namespace,
                "before": namespace.written,
                "version": max(VERSION, namespace.written),
                "changes": [{"key": key, "migration": name, "problem": problem} for key, name, _, problem in rows],
                "more": more,
                "moves": misplaced,
                "behind": [{"service": each.service, "instance": each.instance, "speaks": each.versions or (1, 1)} for each in behind],
            }
        )
        return
    say(f"{namespace} is of version {namespace.written}, and this release writes version {VERSION}", err=True)
    for worker in behind:
        say(f"{worker.service}/{worker.instance} speaks {spoken(worker.versions)} only: upgrade it first", err=True)
    shown = [(key, name, problem or about) for key, name, about, problem in rows]
    shown += [(key, "moved", f"to where it is used, as {one_line(document, _MOST_SHOWN)}") for key, document in misplaced.items()]
    print_table(("KEY", "MIGRATION", "CHANGE"), shown, empty="no stored document has an older form")
    if more:
        say(f"and {more} more", err=True)
