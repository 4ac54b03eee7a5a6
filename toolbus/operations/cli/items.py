"""``operate items``: put, get, list and remove static descriptors and the other documents of the registry, one or all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError
from toolbus.operations.cli.command import JSON, Output, argument, command, group, option
from toolbus.operations.cli.common import read_bytes, read_json, settings_of, with_admin
from toolbus.operations.cli.output import complain, fail, print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord

    Services = dict[str, ServiceRecord | RefusedTool]
    Items = dict[str, bytes | RefusedTool]


@group("items")
def items_command() -> None:
    """Look after static descriptors: tools and services that are declared by documents, beside those that workers publish.

    Groups, recorded tools, presets and pins are such documents, too, each under its key. `get --all` keeps all of them in a file.

    \b
    Examples:
      toolbus operate items list tool/
      toolbus operate items get tool/tell-haiku
      toolbus operate items get --all > items.json
    """


@command("put", into=items_command)
def put_command(
    key: str | None,
    file: Annotated[str | None, argument(type=click.Path(allow_dash=True))],
    everything: Annotated[
        bool, option("Store all documents of a file from `toolbus operate items get --all`: toolbus operate items put --all FILE.", "--all")
    ],
) -> None:
    """Store a static descriptor. KEY is tool/NAME or tool-service/ID; FILE may be standard input.

    KEY may also be recorded/ID or pending/ID (a tool that hosts run, and one that waits for approval), group/ID or
    backend-runtime/ID. An invalid document is refused, and the error names the field. Running agents see the change at once.

    \b
    Example:
      echo '{"type": "tool-service", "name": "tell-haiku", "description": "Tell a haiku",
             "service": "joke-service", "style": "limerick"}' | toolbus operate items put tool/tell-haiku
      toolbus operate items put --all items.json
    """
    if everything:
        if file is not None:
            raise click.UsageError("--all takes one file, and no KEY: the file has the keys")
        _put_all(key or "-")
        return
    if key is None:
        raise click.UsageError("give a KEY, or --all")
    document = _read(key, file or "-")

    async def main(admin: Admin) -> list[str]:
        notes = _consequences(key, document, *await admin.snapshot())
        await admin.put(key, document)
        return notes

    notes = with_admin(main)
    say(f"stored {key}")
    for note in notes:
        say(note, err=True)


@command("get", JSON, into=items_command)
def get_command(
    key: str | None,
    everything: Annotated[bool, option("Print all documents, by key, for `toolbus operate items put --all`.", "--all")],
) -> None:
    """Print a static descriptor as JSON.

    With --all, every document by its key: also groups, recorded tools, presets and pins.

    \b
    Examples:
      toolbus operate items get tool/tell-haiku
      toolbus operate items get --all > items.json
    """
    if everything == (key is not None):
        raise click.UsageError("give a KEY, or --all")
    if key is None:
        _print_all()
        return
    document = with_admin(lambda admin: admin.item(key))
    if document is not None and (flaw := key_flaw(key)):
        fail(f"{key!r} can't be used: {flaw}")
    if document is None:
        fail(
            f"there is no static descriptor {key!r}; `toolbus operate items list` shows them, "
            "`toolbus see describe` shows self-published ones"
        )
    try:
        print_json(msgspec.Raw(document))
    except (msgspec.DecodeError, RecursionError, ValueError):
        say(document.decode("utf-8", "backslashreplace"))
        fail(f"{key!r} holds no JSON; `toolbus operate items put` replaces it, `toolbus operate items rm` deletes it")


@command("list", into=items_command)
async def list_command(admin: Admin, prefix: Annotated[str, argument(default="")], output: Output) -> None:
    """List static descriptors whose key starts with PREFIX.

    \b
    Example:
      toolbus operate items list tool/
    """
    # An empty document stands for a pin that is not in its table.
    found = [(key, len(document)) for key, document in (await admin.items(prefix)).items() if document]
    if output == "json":
        print_json([{"key": key, "bytes": size} for key, size in found])
    else:
        print_table(("KEY", "BYTES"), found, empty="no static descriptors")


@command("rm", into=items_command)
async def rm_command(
    admin: Admin, key: str, force: Annotated[bool, option("Free a self-published name, so that another owner may take it.")]
) -> None:
    """Delete a static descriptor. With --force, free the name of a self-published one.

    KEY may be any key that `toolbus doctor` names: also one that no document can have, or of a document in a wrong place.

    \b
    Examples:
      toolbus operate items rm tool/tell-haiku
      toolbus operate items rm --force tool-service/joke-service
    """
    removed = await admin.delete(key)
    misplaced = await admin.delete_misplaced(key)
    removed = removed or (force and not misplaced and await admin.transfer(key))
    if misplaced:
        say(f"removed {key}, which was misplaced: it stood where any worker may write")
        if not removed:
            return
    if not removed:
        fail(f"there is no static descriptor {key!r}" + ("" if force else "; --force frees the name of a self-published one"))
    say(f"removed {key}")


def _consequences(key: str, document: bytes, services: Services, items: Items) -> list[str]:
    """Return what a person should know of a document that is about to be stored; fail when agents could not use it."""
    from toolbus.bus.client.tools.catalogue import catalogue_of, unusable

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
    from toolbus.bus.schema.mend import mended_document
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


# -- all documents, as one JSON object by key ----------------------------------------------------------

_MOST_READ = 64 * 1024 * 1024
_MOST_REASON = 300
_UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)


def _print_all() -> None:
    """Print every document that can be used; say which are left out, and fail then."""

    async def main(admin: Admin) -> tuple[dict[str, bytes], dict[str, str]]:
        from toolbus.bus.broker.protocols import RefusedTool

        items = (await admin.snapshot())[1]
        unusable = {key: each.reason for key, each in items.items() if isinstance(each, RefusedTool)}
        # An empty document stands for a pin that is not in its table.
        unusable |= {
            key: f"it is misplaced; `toolbus operate items rm {key}` removes it, `toolbus operate migrate` moves it"
            for key, each in items.items()
            if not each
        }
        return {key: each for key, each in sorted(items.items()) if isinstance(each, bytes) and each}, unusable

    from toolbus.bus.schema.documents import read_document

    documents, unusable = with_admin(main)
    found: dict[str, msgspec.Raw] = {}
    for key, document in documents.items():
        try:
            read_document(document, object)
        except _UNREADABLE:
            unusable[key] = "it holds no JSON; `toolbus operate items put` replaces it, `toolbus operate items rm` deletes it"
        else:
            found[key] = msgspec.Raw(document)
    print_json(found)
    for key, why in unusable.items():
        complain(f"left out: {visible(key)}: {one_line(visible(why), _MOST_REASON)}")
    if unusable:
        fail(f"{len(unusable)} of {len(unusable) + len(found)} documents are left out")


def _put_all(place: str) -> None:
    """Store the documents of a file that ``get --all`` wrote; say what each is, leave out those that are wrong, and fail then."""
    try:
        given = read_json(read_bytes(place, _MOST_READ), dict[str, Any], "the documents")
    except click.UsageError as error:
        fail(error.message)
    wrong: dict[str, str] = {}
    documents: dict[str, bytes] = {}
    for key, value in given.items():
        try:
            documents[key] = _checked(key, value)
        except ToolbusError as error:
            wrong[key] = str(error)

    owner = settings_of().owner or "operator"

    async def main(admin: Admin) -> Counter[str]:
        counts: Counter[str] = Counter()
        there = await admin.items()
        for key, document in documents.items():
            if _same(there.get(key), document):
                counts["unchanged"] += 1
                continue
            try:
                # A preset is its publisher's, as that of `toolbus toolkit load`.
                await admin.put(key, document, owner if key.startswith("toolkit/") else "")
            except BrokerUnavailable:
                raise
            except ToolbusError as error:
                wrong[key] = str(error)
            else:
                counts["changed" if key in there else "new"] += 1
        return counts

    counts = with_admin(main) if documents else Counter()
    said = ", ".join(f"{counts[word]} {word}" for word in ("new", "changed", "unchanged") if counts[word])
    say(f"{counts.total()} stored: {said}" if counts else "nothing was stored")
    for key, why in wrong.items():
        complain(f"not stored: {visible(key)}: {one_line(visible(why), _MOST_REASON)}")
    if wrong:
        fail(f"{len(wrong)} of {len(given)} documents were left out; mend them and put them again")


def _checked(key: str, value: object) -> bytes:
    """Return the document of an entry as it is stored; raises ToolbusError when it can't be used."""
    from toolbus.bus.values import pins
    from toolbus.bus.values.descriptors import parse_service, parse_tool
    from toolbus.bus.values.results import DescriptorError
    from toolbus.platform.documents import encode, is_platform_key, read_written

    if key_flaw(key):
        raise DescriptorError("no document can have this key")
    kind, _, name = key.partition("/")
    if is_platform_key(key):
        return encode(read_written(key, value))
    document = msgspec.json.encode(value)
    if kind == "pin":
        pins.read(document)
        return document
    if kind == "toolkit":
        from toolbus.toolkit.presets import read_preset

        named = read_preset(document, key).name
    elif not isinstance(value, dict):
        raise DescriptorError("it is no JSON object")
    else:
        named = parse_tool(value, None).name if kind == "tool" else parse_service({"id": name, **value}).id
    if named != name:
        raise DescriptorError(f"it is of {named!r}, and its key is of {name!r}")
    return document


def _same(stored: bytes | None, document: bytes) -> bool:
    from toolbus.bus.schema.documents import read_document

    try:
        return stored is not None and bool(read_document(stored, object) == read_document(document, object))
    except _UNREADABLE:
        return False
