"""``put``, ``get``, ``list``, ``rm``: manage static descriptors, which exist beside self-published ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.cli.common import fail, json_option, output_option, with_admin
from toolbus.cli.given import read_bytes, read_json
from toolbus.cli.output import print_json, print_table, say
from toolbus.display import visible

if TYPE_CHECKING:
    from toolbus.broker.admin import Admin
    from toolbus.broker.protocols import RefusedTool, ServiceRecord

    Services = dict[str, ServiceRecord | RefusedTool]
    Items = dict[str, bytes | RefusedTool]


@click.command("put")
@click.argument("key")
@click.argument("file", type=click.Path(allow_dash=True), default="-")
@click.pass_context
def put_command(ctx: click.Context, key: str, file: str) -> None:
    """Store a static descriptor. KEY is tool/NAME or tool-service/ID; FILE may be standard input.

    KEY may also be recorded/ID or pending/ID (a tool that hosts run, and one that waits for approval), group/ID or
    backend-runtime/ID. An invalid document is refused, and the error names the field. Running agents see the change at once.

    \b
    Example:
      echo '{"type": "tool-service", "name": "tell-haiku", "description": "Tell a haiku",
             "service": "joke-service", "style": "limerick"}' | toolbus put tool/tell-haiku
    """
    document = _read(key, file)

    async def main(admin: Admin) -> list[str]:
        notes = _consequences(key, document, *await admin.snapshot())
        await admin.put(key, document)
        return notes

    notes = with_admin(ctx, main)
    say(f"stored {key}")
    for note in notes:
        say(note, err=True)


@click.command("get")
@click.argument("key")
@json_option
@click.pass_context
def get_command(ctx: click.Context, key: str) -> None:
    """Print a static descriptor as JSON."""

    async def main(admin: Admin) -> bytes | None:
        return await admin.item(key)

    document = with_admin(ctx, main)
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
        return await admin.items(prefix)

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

    \b
    Examples:
      toolbus rm tool/tell-haiku
      toolbus rm --force tool-service/joke-service
    """

    async def main(admin: Admin) -> bool:
        return await admin.delete(key) or (force and await admin.transfer(key))

    if not with_admin(ctx, main):
        fail(f"there is no static descriptor {key!r}" + ("" if force else "; --force frees the name of a self-published one"))
    say(f"removed {key}")


def _consequences(key: str, document: bytes, services: Services, items: Items) -> list[str]:
    """Return what a person should know of a document that is about to be stored; fail when agents could not use it."""
    from toolbus.client.tools.review import catalogue_of, unusable

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
    from toolbus.descriptors import parse_service, parse_tool
    from toolbus.platform.documents import PREFIXES, encode, is_platform_key
    from toolbus.platform.written import read_written
    from toolbus.schema import mended_document

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
