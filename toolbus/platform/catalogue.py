"""``synchronise``: match the items of an external catalogue with recorded tools and groups, and keep the links on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.support.display import one_line
from toolbus.bus.support.files import locked, replace
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.secrets import secret
from toolbus.platform.records import RecordedTool, ToolMeta
from toolbus.platform.store import Records, Snapshot

CONNECTED = "connected"
"""The status of an item that is a tool or group here."""

ITEMS = "toolhub_items"
"""The field and the path under which a catalogue has its items."""


class CatalogueUnavailable(ToolbusError):
    """The catalogue can't be read or written; nothing was changed, or nothing more."""


class Item(msgspec.Struct, frozen=True):
    """An item of the catalogue.

    Attributes:
        slug: its id there.
        title, description, category: for people.
        keywords: words for it.
        status: ``connected`` when it is a tool or a group here.
        tool_ids, group_ids: the tools and groups here that are it.
    """

    slug: str
    title: str = ""
    description: str = ""
    category: str = ""
    keywords: tuple[str, ...] = ()
    status: str = ""
    tool_ids: tuple[str, ...] = ()
    group_ids: tuple[str, ...] = ()

    def linked(self) -> dict[str, Any]:
        """Return the fields that a connection changes."""
        return {"status": self.status, "tool_ids": list(self.tool_ids), "group_ids": list(self.group_ids)}


def read_items(document: Any) -> tuple[list[Item], list[str]]:
    """Return the items of a document: a list, or an object by slug, maybe under ``toolhub_items``.

    Raises:
        CatalogueUnavailable: it is neither.
    """
    found, wrong = list[Item](), list[str]()
    for place, entry in entries(document):
        try:
            item = msgspec.convert(entry, Item)
        except msgspec.ValidationError as error:
            wrong.append(f"item {place}: {error}")
            continue
        if not item.slug.strip():
            wrong.append(f"item {place}: it has no slug")
        elif any(item.slug == each.slug for each in found):
            wrong.append(f"item {place}: another item has its slug")
        else:
            found.append(item)
    return found, wrong


def entries(document: Any) -> list[tuple[str, Any]]:
    """Return the entries of a document with their slugs or places.

    Raises:
        CatalogueUnavailable: it has no such form.
    """
    inside = document.get(ITEMS, document) if isinstance(document, Mapping) else document
    if isinstance(inside, Mapping):
        return [(str(slug), {"slug": slug, **each} if isinstance(each, Mapping) else each) for slug, each in inside.items()]
    if isinstance(inside, list):
        return [(f"#{index + 1}", each) for index, each in enumerate(inside)]
    raise CatalogueUnavailable(f"the catalogue is neither a list of items nor an object of them, also not under {ITEMS!r}")


_WORD = re.compile(r"\w+")
_LEAST_NAME = 3
# What a name says before the thing itself, as in "runcomfy".
_VERBS = ("run", "launch")
_LEAST_THING = 5
_LEAST_WORD = 4
# Shared keywords that make a match: with the same category, and without one.
_SHARED_WITH_CATEGORY, _SHARED_ALONE = 2, 4
_SHARE_ALONE = 0.5
# Words that say nothing of a tool.
_COMMON = frozenset(
    {
        "about", "after", "also", "another", "answer", "answers", "before", "been", "being", "both", "call", "called", "calls",
        "data", "does", "each", "every", "from", "given", "gives", "have", "into", "item", "items", "made", "make", "makes",
        "many", "more", "most", "only", "other", "others", "over", "result", "results", "return", "returns", "same", "some",
        "such", "than", "that", "their", "them", "then", "there", "these", "they", "this", "tool", "tools", "used", "user",
        "users", "uses", "using", "value", "values", "very", "want", "what", "when", "where", "which", "while", "will", "with",
        "without", "would", "your",
    }
)  # fmt: skip


def why_matches(item: Item, name: str, about: ToolMeta | ToolGroup) -> str:
    """Return why an item is the tool, or the group of tools, with this id; an empty text when it is not."""
    return _by_name(item, name, about.name) or _by_words(item, f"{about.name} {about.description}", about.category)


def _by_name(item: Item, name: str, title: str) -> str:
    for said, what in ((item.slug, "slug"), (item.title, "title")):
        sought = _plain(said)
        if len(sought) < _LEAST_NAME:
            continue
        things = {sought, *(thing for verb in _VERBS if len(thing := sought.removeprefix(verb)) >= _LEAST_THING)}
        for text, where in ((name, "id"), (title, "name")):
            if any(f" {each} " in f" {_plain(text)} " for each in things):
                return f"its {what} {said!r} is in the {where} {text!r}"
    return ""


def _by_words(item: Item, text: str, category: str) -> str:
    wanted = _keywords([*item.keywords, *([] if item.keywords else [item.title, item.description])])
    shared = sorted(wanted & _keywords([text]))
    same = bool(item.category) and item.category.casefold() == category.casefold()
    if same and len(shared) >= _SHARED_WITH_CATEGORY:
        return f"the category {category!r} and the keywords {', '.join(shared[:6])} of the description"
    differ = bool(item.category) and bool(category) and not same
    if not differ and len(shared) >= _SHARED_ALONE and len(shared) >= _SHARE_ALONE * len(wanted):
        return f"the keywords {', '.join(shared[:6])} of the description"
    return ""


def _plain(text: str) -> str:
    """Return the words of a text, so that ``image-stitcher`` is ``Image Stitcher``."""
    return " ".join(_WORD.findall(text.casefold().replace("_", " ")))


def _keywords(texts: Iterable[str]) -> set[str]:
    words = {word for text in texts for word in _plain(text).split()}
    # A plural is its word.
    return {word.removesuffix("s") for word in words if len(word) >= _LEAST_WORD} - _COMMON - {word.removesuffix("s") for word in _COMMON}


class Match(msgspec.Struct, frozen=True):
    """An item that is a tool or a group.

    Attributes:
        slug: of the item.
        kind: ``tool`` or ``group``.
        id: of the tool or the group.
        why: the reason of the match.
        changed: what was changed for it: ``here``, ``there``, both, or nothing.
    """

    slug: str
    kind: str
    id: str
    why: str
    changed: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The outcome of one synchronisation.

    Attributes:
        matches: every match that was found, also those that had been made before.
        wrong: items and tools that could not be connected, and why.
    """

    matches: tuple[Match, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def changes(self) -> list[Match]:
        """The matches for which something was changed."""
        return [each for each in self.matches if each.changed]


async def synchronise(records: Records, catalogue: Catalogue) -> Report:
    """Match all items with all recorded tools and groups; doing it again changes nothing.

    The catalogue is written first: when it can't be, nothing is changed here.

    Raises:
        CatalogueUnavailable: the catalogue can't be read, and nothing was changed; or written, and what was done before stays.
        BrokerError: the server could not be asked.
    """
    items, wrong = await catalogue.items()
    snapshot = await records.all()
    found: list[Match] = []
    for item in items:
        matches = list(_matches(item, snapshot))
        if matches:
            found += await _connected(records, catalogue, snapshot, item, matches, wrong)
    return Report(tuple(found), tuple(wrong))


def _matches(item: Item, snapshot: Snapshot) -> Iterable[Match]:
    known: list[tuple[str, str, ToolMeta | ToolGroup, bool]]
    known = [("tool", name, tool.meta, item.slug in tool.meta.tool_slug_ids) for name, tool in snapshot.tools.items()]
    known += [("group", name, group, name in item.group_ids) for name, group in snapshot.groups.items()]
    for kind, name, about, is_connected in known:
        if why := why_matches(item, name, about) or ("it is connected already" if is_connected else ""):
            yield Match(item.slug, kind, name, why)


async def _connected(
    records: Records, catalogue: Catalogue, snapshot: Snapshot, item: Item, matches: list[Match], wrong: list[str]
) -> list[Match]:
    """Connect an item with what it matches; return the matches with what was changed."""
    there = msgspec.structs.replace(
        item,
        status=CONNECTED,
        tool_ids=_with(item.tool_ids, [each.id for each in matches if each.kind == "tool"]),
        group_ids=_with(item.group_ids, [each.id for each in matches if each.kind == "group"]),
    )
    if there != item:
        await catalogue.connect(there)
    found: list[Match] = []
    for each in matches:
        listed = item.tool_ids if each.kind == "tool" else item.group_ids
        changed = ["there"] if there != item and (each.id not in listed or item.status != CONNECTED) else []
        if each.kind == "tool" and item.slug not in snapshot.tools[each.id].meta.tool_slug_ids:
            try:
                await records.revise(each.id, lambda tool: _linked(tool, item.slug))
                changed.insert(0, "here")
            except ConfigurationError as error:
                # It was removed or spoilt meanwhile.
                wrong.append(f"{item.slug}: {error}")
        found.append(msgspec.structs.replace(each, changed=tuple(changed)))
    return found


def _linked(tool: RecordedTool, slug: str) -> RecordedTool:
    if slug in tool.meta.tool_slug_ids:
        return tool
    return msgspec.structs.replace(tool, meta=msgspec.structs.replace(tool.meta, tool_slug_ids=(*tool.meta.tool_slug_ids, slug)))


def _with(before: tuple[str, ...], ids: Iterable[str]) -> tuple[str, ...]:
    return (*before, *(each for each in ids if each not in before))


_MOST_FILE = 64 * 1024 * 1024


class FileCatalogue:
    """A catalogue in a JSON file, which is replaced as a whole; processes that write it wait for each other.

    Its methods raise CatalogueUnavailable when it can't be read or written; nothing has changed then.

    Args:
        path: the file; a lock is kept beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def items(self) -> tuple[list[Item], list[str]]:
        """Return the items that can be read, and a line for each that can't."""
        return read_items(await asyncio.to_thread(self._read))

    async def connect(self, item: Item) -> None:
        """Write an item's status, tools and groups; its other fields stay."""
        await asyncio.to_thread(self._connect, item)

    def _connect(self, item: Item) -> None:
        with self._errors("written"), locked(self._path.with_name(f".{self._path.name}.lock")):
            document = self._read()
            for place, entry in entries(document):
                if isinstance(entry, dict) and entry.get("slug") == item.slug:
                    inside = document.get(ITEMS, document) if isinstance(document, dict) else document
                    key: Any = int(place[1:]) - 1 if isinstance(inside, list) else place
                    inside[key] = {**inside[key], **item.linked()}
                    mode = self._path.stat().st_mode & 0o777
                    replace(self._path, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n", mode)
                    return
            raise CatalogueUnavailable(f"{str(self._path)!r} has no item {item.slug!r} any more")

    def _read(self) -> Any:
        with self._errors("read"):
            with self._path.open("rb") as file:
                data = file.read(_MOST_FILE + 1)
            if len(data) > _MOST_FILE:
                raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} is over the limit of {_MOST_FILE:,} bytes")
            return msgspec.json.decode(data)

    @contextlib.contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be {done}: {error.strerror or error}") from None
        except DECODE_ERRORS as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be {done} as JSON: {error}") from None


_SECONDS = 30.0
_MOST_BODY = 64 * 1024 * 1024
_MOST_TOLD = 200


class HttpCatalogue:
    """A catalogue behind an HTTP API; its methods raise CatalogueUnavailable when it can't be read or written.

    Args:
        url: to which ``/toolhub_items`` is appended.
        token: a bearer token, or an empty text.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url = f"{url.rstrip('/')}/{ITEMS}"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def items(self) -> tuple[list[Item], list[str]]:
        """Return the items that can be read, and a line for each that can't."""
        body = await self._ask("GET", self._url)
        try:
            return read_items(msgspec.json.decode(body))
        except DECODE_ERRORS as error:
            raise CatalogueUnavailable(f"the catalogue at {self._url} answered no JSON: {error}") from None

    async def connect(self, item: Item) -> None:
        """Write an item's status, tools and groups; its other fields stay."""
        await self._ask("PATCH", f"{self._url}/{quote(item.slug, safe='')}", item.linked())

    async def _ask(self, method: str, url: str, body: Any = None) -> bytes:
        try:
            import httpx  # noqa: PLC0415 - few processes have a catalogue
        except ModuleNotFoundError as error:
            raise CatalogueUnavailable(f"a catalogue behind HTTP needs {error.name}: pip install 'toolbus[platform]'") from None

        content = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "accept": "application/json", **({} if content is None else {"content-type": "application/json"})}
        found = bytearray()
        try:
            async with (
                httpx.AsyncClient(timeout=_SECONDS, follow_redirects=False, trust_env=False) as client,
                client.stream(method, url, content=content, headers=headers) as answer,
            ):
                async for piece in answer.aiter_bytes():
                    found += piece
                    if len(found) > _MOST_BODY:
                        raise CatalogueUnavailable(f"the catalogue at {self._url} answered more than {_MOST_BODY:,} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CatalogueUnavailable(f"the catalogue at {self._url} can't be reached: {reason_of(error)}") from None
        if not 200 <= answer.status_code < 300:
            said = one_line(found[:4096].decode("utf-8", "replace"), _MOST_TOLD)
            raise CatalogueUnavailable(f"the catalogue at {self._url} answered {answer.status_code} to {method}: {said}")
        return bytes(found)


Catalogue = FileCatalogue | HttpCatalogue

PLACE = "TOOLBUS_CATALOGUE"
"""Names a JSON file, or the base URL of an HTTP API."""

TOKEN = "TOOLBUS_CATALOGUE_TOKEN"  # noqa: S105 - the name of a variable
"""Says where the API's bearer token is: ``env:NAME`` or ``file:PATH``."""


def catalogue_at(place: str, token: str = "") -> Catalogue:
    """Return the catalogue at a URL or a path.

    Args:
        place: begins with ``http://`` or ``https://``, or is the path of a file.
        token: where a bearer token is, ``env:NAME`` or ``file:PATH``; empty for none.

    Raises:
        ConfigurationError: there is no token at that place.
    """
    if place.startswith(("http://", "https://")):
        return HttpCatalogue(place, secret(token).value() if token else "")
    if "://" in place:
        raise ConfigurationError("a catalogue is a JSON file, or an http:// or https:// URL")
    return FileCatalogue(Path(place))


def configured(environ: Mapping[str, str]) -> Catalogue | None:
    """Return the catalogue that the environment names, or None.

    Raises:
        ConfigurationError: what it names can't be used.
    """
    place = environ.get(PLACE, "")
    return catalogue_at(place, environ.get(TOKEN, "")) if place else None


async def synchronise_after(records: Records, catalogue: Catalogue, _: RecordedTool) -> Report | None:
    """Synchronise after a registration; a catalogue that is down is logged, keeps nothing from going on, and gives None."""
    try:
        report = await synchronise(records, catalogue)
    except ToolbusError as error:
        telemetry.log.warning("catalogue.failed", error=str(error))
        return None
    for each in report.changes:
        telemetry.log.info("catalogue.connected", slug=each.slug, kind=each.kind, id=each.id, why=each.why)
    return report


def hook_of(records: Records, environ: Mapping[str, str]) -> Callable[[RecordedTool], Awaitable[Report | None]] | None:
    """Return what runs after a registration, if the environment names a catalogue.

    Raises:
        ConfigurationError: what it names can't be used.
    """
    catalogue = configured(environ)
    return None if catalogue is None else partial(synchronise_after, records, catalogue)
