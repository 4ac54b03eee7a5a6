"""``put``, ``get``, ``list``, ``rm``: manage static descriptors, which exist beside self-published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.support.display import visible
from toolbus.bus.values.naming import key_flaw
from toolbus.operations.cli.common import fail, json_option, output_option, print_json, print_table, read_bytes, read_json, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord

    Services = dict[str, ServiceRecord | RefusedTool]
    Items = dict[str, bytes | RefusedTool]


@click.command("put")
@click.argument("key", required=False)
@click.argument("file", type=click.Path(allow_dash=True), required=False)
@click.option("--all", "everything", is_flag=True, help="Store all documents of a file from `toolbus get --all`: toolbus put --all FILE.")
@click.pass_context
def put_command(ctx: click.Context, key: str | None, file: str | None, everything: bool) -> None:
    """Store a static descriptor. KEY is tool/NAME or tool-service/ID; FILE may be standard input.

    KEY may also be recorded/ID or pending/ID (a tool that hosts run, and one that waits for approval), group/ID or
    backend-runtime/ID. An invalid document is refused, and the error names the field. Running agents see the change at once.

    \b
    Example:
      echo '{"type": "tool-service", "name": "tell-haiku", "description": "Tell a haiku",
             "service": "joke-service", "style": "limerick"}' | toolbus put tool/tell-haiku
      toolbus put --all items.json
    """
    if everything:
        from toolbus.operations.cli.kept_items import put_all

        if file is not None:
            raise click.UsageError("--all takes one file, and no KEY: the file has the keys")
        put_all(ctx, key or "-")
        return
    if key is None:
        raise click.UsageError("give a KEY, or --all")
    document = _read(key, file or "-")

    async def main(admin: Admin) -> list[str]:
        notes = _consequences(key, document, *await admin.snapshot())
        await admin.put(key, document)
        return notes

    notes = with_admin(ctx, main)
    say(f"stored {key}")
    for note in notes:
        say(note, err=True)


@click.command("get")
@click.argument("key", required=False)
@click.option("--all", "everything", is_flag=True, help="Print all documents, by key, for `toolbus put --all`.")
@json_option
@click.pass_context
def get_command(ctx: click.Context, key: str | None, everything: bool) -> None:
    """Print a static descriptor as JSON.

    With --all, every document by its key: also groups, recorded tools, presets and pins.

    \b
    Examples:
      toolbus get tool/tell-haiku
      toolbus get --all > items.json
    """
    if everything == (key is not None):
        raise click.UsageError("give a KEY, or --all")
    if key is None:
        from toolbus.operations.cli.kept_items import print_all

        print_all(ctx)
        return

    async def main(admin: Admin) -> bytes | None:
        return await admin.item(key)

    document = with_admin(ctx, main)
    if document is not None and (flaw := key_flaw(key)):
        fail(f"{key!r} can't be used: {flaw}")
    if document is None:
        fail(f"there is no static descriptor {key!r}; `toolbus list` shows them, `toolbus describe` shows self-published ones")
    try:
        print_json(msgspec.Raw(document))
    except (msgspec.DecodeError, RecursionError, ValueError):
        say(document.decode("utf-8", "backslashreplace"))
        fail(f"{key!r} holds no JSON; `toolbus put` replaces it, `toolbus rm` deletes it")


@click.command("list")
@click.argument("prefix", default="")
@output_option
@click.pass_context
def list_command(ctx: click.Context, prefix: str, output: str) -> None:
    """List static descriptors whose key starts with PREFIX.

    \b
    Example:
      toolbus list tool/
    """

    async def main(admin: Admin) -> dict[str, bytes]:
        # An empty document stands for a pin that is not in its table.
        return {key: document for key, document in (await admin.items(prefix)).items() if document}

    found = with_admin(ctx, main)
    if output == "json":
        print_json([{"key": key, "bytes": len(document)} for key, document in found.items()])
        return
    print_table(("KEY", "BYTES"), [(key, len(document)) for key, document in found.items()], empty="no static descriptors")


@click.command("rm")
@click.argument("key")
@click.option("--force", is_flag=True, help="Free a self-published name, so that another owner may take it.")
@click.pass_context
def rm_command(ctx: click.Context, key: str, force: bool) -> None:
    """Delete a static descriptor. With --force, free the name of a self-published one.

    KEY may be any key that `toolbus doctor` names: also one that no document can have, or of a document in a wrong place.

    \b
    Examples:
      toolbus rm tool/tell-haiku
      toolbus rm --force tool-service/joke-service
    """

    async def main(admin: Admin) -> tuple[bool, bool]:
        removed = await admin.delete(key)
        misplaced = await admin.delete_misplaced(key)
        return removed or (force and not misplaced and await admin.transfer(key)), misplaced

    removed, misplaced = with_admin(ctx, main)
    if misplaced:
        say(f"removed {key}, which was misplaced: it stood where any worker may write")
        if not removed:
            return
    if not removed:
        fail(f"there is no static descriptor {key!r}" + ("" if force else "; --force frees the name of a self-published one"))
    say(f"removed {key}")


def _consequences(key: str, document: bytes, services: Services, items: Items) -> list[str]:
    """Return what a person should know of a document that is about to be stored; fail when agents could not use it."""
    from toolbus.bus.client.tools.review import catalogue_of, unusable

    before, after = catalogue_of((services, items)), catalogue_of((services, {**items, key: document}))
    known = {(tool.name, tool.service) for tool in unusable(before)}
    kind, _, name = key.partition("/")
    notes: list[str] = []
    for tool in unusable(after):
        if kind == "tool" and tool.name == name:
            fail(f"not stored: {visible(tool.reason)}")
        if (tool.name, tool.service) not in known:
            notes.append(f"{visible(tool.name)} of {visible(tool.service)} can't be used any more: {visible(tool.reason)}")
    if kind == "tool" and name in after.tools and after.tools[name].service_descriptor is None:
        notes.append(f"no service {after.tools[name].service!r} is known yet; {name} can be called when a worker serves it")
    return notes


def _read(key: str, file: str) -> bytes:
    from toolbus.bus.schema import mended_document
    from toolbus.bus.values.descriptors import parse_service, parse_tool
    from toolbus.platform.documents import PREFIXES, encode, is_platform_key, read_written

    if is_platform_key(key):
        try:
            return encode(read_written(key, read_json(read_bytes(file), Any, "the record")))
        except click.UsageError as error:
            fail(error.message)
    kind, _, name = key.partition("/")
    if kind not in {"tool", "tool-service"} or not name:
        raise click.UsageError(f"{key!r} is none of tool/NAME, tool-service/ID, {', '.join(f'{each}ID' for each in PREFIXES)}")
    try:
        document = read_json(read_bytes(file), dict[str, Any], "the descriptor")
    except click.UsageError as error:
        fail(error.message)
    if kind == "tool":
        document, changes = mended_document(document)
        for change in changes:
            say(f"parameters corrected: {change}", err=True)
        found = parse_tool(document, None).name
    else:
        found = parse_service({"id": name, **document}).id
    if found != name:
        fail(f"the descriptor names {found!r}, the key {name!r}")
    return msgspec.json.encode(document)
