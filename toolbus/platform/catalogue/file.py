"""A catalogue in a JSON file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from toolbus.platform.catalogue.items import ITEMS, CatalogueUnavailable, Item, entries, read_items

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
