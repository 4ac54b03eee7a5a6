"""``web_search``: pages of the Web that have to do with a question.

``toolbus worker web_search`` (needs ``toolbus[web]``). It asks several search engines that need no key. To ask another
one, give ``WebSearch`` a ``SearchService`` with a backend of your own: two methods, see ``SearchBackend``.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from toolbus import ToolResult, ToolService
from toolbus_workers.forms import parameters, read_arguments, read_config
from toolbus_workers.web.search import MAX_QUERY, MAX_RESULTS, SEARCH_SECONDS, SafeSearch, Search, SearchService


class Arguments(msgspec.Struct, frozen=True):
    """What a model says."""

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY, description="what to search for, as in a search engine")]
    max_results: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="how many pages to return")] = 5


class Config(msgspec.Struct, frozen=True):
    """What a tool's descriptor says.

    Attributes:
        region: country and language, such as ``de-de``.
        safesearch: ``on``, ``moderate`` or ``off``.
        engines: search engines by name, such as ``["duckduckgo", "wikipedia"]``.
        site: only pages of this host.
    """

    region: Annotated[str, Meta(pattern=r"^[a-z]{2}-[a-z]{2}$")] = "us-en"
    safesearch: SafeSearch = "moderate"
    engines: Annotated[tuple[Annotated[str, Meta(pattern=r"^[a-z]+$")], ...], Meta(max_length=10)] = ()
    site: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]*$", max_length=253)] = ""


class WebSearch(ToolService):
    """Searches the Web.

    Args:
        searching: where results come from; search engines without keys when left out.
    """

    id = "web-search"
    description = "Searches the Web"
    config_params = Config.__struct_fields__
    effect = "read"
    tools = [  # noqa: RUF012 - a declaration, read once when the service registers
        {
            "name": "web_search",
            "description": "Search the Web and return titles, addresses and snippets of pages; read a page itself with fetch_page.",
            "parameters": parameters(Arguments),
            "category": "crawler",
            "groups": ["web"],
            "timeout": SEARCH_SECONDS + 10,
        }
    ]

    def __init__(self, searching: SearchService | None = None) -> None:
        self._searching = searching or SearchService()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> ToolResult:
        """Search and list what was found."""
        asked, told = read_arguments(Arguments, arguments), read_config(Config, config)
        query = f"{asked.query} site:{told.site}" if told.site else asked.query
        hits = await self._searching.search(
            Search(query=query, max_results=asked.max_results, region=told.region, safesearch=told.safesearch, engines=told.engines)
        )
        text = "\n".join(f"{number}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for number, hit in enumerate(hits, 1))
        return ToolResult.ok({"results": msgspec.to_builtins(hits)}, output=text or "Nothing was found; try other words.")

    async def cleanup(self) -> None:
        """Release the backend."""
        await self._searching.aclose()
