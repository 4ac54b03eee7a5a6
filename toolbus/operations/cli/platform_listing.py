"""``platform list`` and ``platform search``: which tools are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import namespace_of, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.search import Search
    from toolbus.platform.store import Snapshot

_COLUMNS = ("TOOL", "STATUS", "CATEGORY", "RUNTIME", "SOURCES", "GROUPS", "ABOUT")


@click.command("list")
@output_option
@click.pass_context
def list_command(ctx: click.Context, output: str) -> None:
    """List the recorded tools, those that wait for approval, and records that can't be used."""
    from toolbus.platform.search import Search

    _show(ctx, Search(), output, everything=True)


@click.command("search")
@click.argument("words", nargs=-1)
@click.option("--category", default="", help="Only tools of this category.")
@click.option("--runtime", default="", help="Only tools of this backend runtime; local, docker or remote when a record names none.")
@click.option("--group", default="", help="Only tools in this group.")
@output_option
@click.pass_context
def search_command(ctx: click.Context, words: tuple[str, ...], category: str, runtime: str, group: str, output: str) -> None:
    """Find recorded tools by category, backend runtime, group, and WORDS in id, title, description or category.

    \b
    Example:
      toolbus platform search --runtime docker video
    """
    from toolbus.platform.search import Search

    _show(ctx, Search(category, runtime, group, " ".join(words)), output, everything=False)


def _show(ctx: click.Context, wanted: Search, output: str, *, everything: bool) -> None:
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> Snapshot:
        return await Records(admin).all()

    records = with_admin(ctx, main)
    found = [(tool, tool.meta.status) for tool in wanted.found(records.tools, records.groups)]
    if everything:
        found += [(tool, "pending") for tool in records.pending.values()]
    if output == "json":
        rows = [_document(tool, status, records) for tool, status in found]
        print_json([*rows, *({"key": each.key, "refused": each.reason} for each in records.refused)] if everything else rows)
        return
    print_table(_COLUMNS, [_row(tool, status, records) for tool, status in found], empty=f"no such tools are recorded{namespace_of(ctx)}")
    if everything:
        for each in records.refused:
            say(f"can't be used: {visible(each.reason)}", fg="red", err=True)
        if records.pending:
            say("`toolbus approve TOOL` shows one that is pending, and lets hosts run it", err=True)


def _document(tool: RecordedTool, status: str, records: Snapshot) -> dict[str, Any]:
    from toolbus.platform.search import groups_of, runtime_of

    meta = tool.meta
    return {
        "tool_id": meta.tool_id,
        "name": meta.name,
        "description": meta.description,
        "category": meta.category,
        "backend_runtime": runtime_of(tool),
        "group_ids": groups_of(tool, records.groups),
        "sources": [each.type for each in tool.sources],
        "status": status,
        "revision": tool.revision,
    }


def _row(tool: RecordedTool, status: str, records: Snapshot) -> tuple[object, ...]:
    said = _document(tool, status, records)
    about = one_line(tool.meta.description or tool.meta.name, 60)
    return (
        tool.tool_id,
        status,
        said["category"],
        said["backend_runtime"],
        ", ".join(said["sources"]),
        ", ".join(said["group_ids"]),
        about,
    )
