"""A catalogue behind an HTTP API: ``GET …/toolhub_items`` and ``PATCH …/toolhub_items/SLUG``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from toolbus.display import one_line
from toolbus.platform.catalogue.items import ITEMS, CatalogueUnavailable, Item, read_items
from toolbus.safe_text import type_name

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
