"""The catalogue that the environment names, and the hook that runs after a registration."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.display import one_line
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.secrets import secret
from toolbus.platform.catalogue.synchronise import ITEMS, Catalogue, CatalogueUnavailable, Item, Report, entries, read_items, synchronise
from toolbus.platform.store import Records

_MOST_FILE = 64 * 1024 * 1024


class FileCatalogue:
    """A catalogue in a JSON file, which is replaced as a whole; processes that write it wait for each other.

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
        with self._locked():
            document = self._read()
            for place, entry in entries(document):
                if isinstance(entry, dict) and entry.get("slug") == item.slug:
                    inside = document.get(ITEMS, document) if isinstance(document, dict) else document
                    key: Any = int(place[1:]) - 1 if isinstance(inside, list) else place
                    inside[key] = {**inside[key], **item.linked()}
                    self._write(document)
                    return
            raise CatalogueUnavailable(f"{str(self._path)!r} has no item {item.slug!r} any more")

    def _read(self) -> Any:
        try:
            with self._path.open("rb") as file:
                data = file.read(_MOST_FILE + 1)
            if len(data) > _MOST_FILE:
                raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} is over the limit of {_MOST_FILE:,} bytes")
            return msgspec.json.decode(data)
        except OSError as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be read: {error.strerror or error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be read as JSON: {error}") from None

    def _write(self, document: Any) -> None:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
                Path(name).chmod(self._path.stat().st_mode & 0o777)
                Path(name).replace(self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be written: {error.strerror or error}") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CatalogueUnavailable(f"the catalogue {str(self._path)!r} can't be written: {error.strerror or error}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


_SECONDS = 30.0
_MOST_BODY = 64 * 1024 * 1024
_MOST_TOLD = 200


class HttpCatalogue:
    """A catalogue behind an HTTP API.

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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
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
            raise CatalogueUnavailable(f"the catalogue at {self._url} can't be reached: {error or type_name(error)}") from None
        if not 200 <= answer.status_code < 300:
            said = one_line(found[:4096].decode("utf-8", "replace"), _MOST_TOLD)
            raise CatalogueUnavailable(f"the catalogue at {self._url} answered {answer.status_code} to {method}: {said}")
        return bytes(found)


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


class CatalogueSync:
    """Synchronises after a registration; call it with anything. A catalogue that is down is logged, and keeps nothing from going on."""

    def __init__(self, records: Records, catalogue: Catalogue) -> None:
        self._records = records
        self._catalogue = catalogue

    async def __call__(self, _: object = None) -> Report | None:
        """Synchronise; None when it could not be done."""
        try:
            report = await synchronise(self._records, self._catalogue)
        except ToolbusError as error:
            telemetry.log.warning("catalogue.failed", error=str(error))
            return None
        for each in report.changes:
            telemetry.log.info("catalogue.connected", slug=each.slug, kind=each.kind, id=each.id, why=each.why)
        return report


def hook_of(records: Records, environ: Mapping[str, str]) -> CatalogueSync | None:
    """Return what runs after a registration, if the environment names a catalogue.

    Raises:
        ConfigurationError: what it names can't be used.
    """
    catalogue = configured(environ)
    return None if catalogue is None else CatalogueSync(records, catalogue)
