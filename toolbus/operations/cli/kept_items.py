"""``get --all`` and ``put --all``: the registry's documents as one JSON object by key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError
from toolbus.operations.cli.common import fail, print_json, read_bytes, read_json, say, settings_of, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin

_MOST_READ = 64 * 1024 * 1024
_MOST_REASON = 300
_UNREADABLE = (msgspec.DecodeError, RecursionError, ValueError)


def print_all(ctx: click.Context) -> None:
    """Print every document that can be used; say which are left out, and fail then."""

    async def main(admin: Admin) -> tuple[dict[str, bytes], dict[str, str]]:
        from toolbus.bus.broker.protocols import RefusedTool

        items = (await admin.snapshot())[1]
        unusable = {key: each.reason for key, each in items.items() if isinstance(each, RefusedTool)}
        # An empty document stands for a pin that is not in its table.
        unusable |= {
            key: f"it is misplaced; `toolbus rm {key}` removes it, `toolbus migrate` moves it" for key, each in items.items() if not each
        }
        return {key: each for key, each in sorted(items.items()) if isinstance(each, bytes) and each}, unusable

    from toolbus.bus.schema.documents import read_document

    documents, unusable = with_admin(ctx, main)
    found: dict[str, msgspec.Raw] = {}
    for key, document in documents.items():
        try:
            read_document(document, object)
        except _UNREADABLE:
            unusable[key] = "it holds no JSON; `toolbus put` replaces it, `toolbus rm` deletes it"
        else:
            found[key] = msgspec.Raw(document)
    print_json(found)
    for key, why in unusable.items():
        say(f"left out: {visible(key)}: {one_line(visible(why), _MOST_REASON)}", fg="red", err=True)
    if unusable:
        fail(f"{len(unusable)} of {len(unusable) + len(found)} documents are left out")


def put_all(ctx: click.Context, place: str) -> None:
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

    owner = settings_of(ctx).owner or "operator"

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

    counts = with_admin(ctx, main) if documents else Counter()
    said = ", ".join(f"{counts[word]} {word}" for word in ("new", "changed", "unchanged") if counts[word])
    say(f"{counts.total()} stored: {said}" if counts else "nothing was stored")
    for key, why in wrong.items():
        say(f"not stored: {visible(key)}: {one_line(visible(why), _MOST_REASON)}", fg="red", err=True)
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
