"""``web_search``: find pages of the Web for a question.

``toolbus worker web_search`` (needs ``toolbus[web]``). It asks several search engines that need no key. For another one,
give ``WebSearch`` a ``SearchService`` with your own backend of two methods, see ``SearchBackend``.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from toolbus import ToolResult, ToolService
from toolbus_workers.typed_arguments import parameters, read_arguments, read_config
from toolbus_workers.web.search import MAX_QUERY, MAX_RESULTS, SEARCH_SECONDS, SafeSearch, Search, SearchService


class Arguments(msgspec.Struct, frozen=True):
    """The arguments from the model."""

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY, description="what to search for, as in a search engine")]
    max_results: Annotated[int, Meta(ge=1, le=MAX_RESULTS, description="how many pages to return")] = 5


class Config(msgspec.Struct, frozen=True):
    """The config values from a tool's descriptor.

    Attributes:
        region: country and language, such as ``de-de``.
        safesearch: ``on``, ``moderate`` or ``off``.
        engines: search engines by name, such as ``["duckduckgo", "wikipedia"]``.
        site: the only host whose pages are found.
    """

    region: Annotated[str, Meta(pattern=r"^[a-z]{2}-[a-z]{2}$")] = "us-en"
    safesearch: SafeSearch = "moderate"
    engines: Annotated[tuple[Annotated[str, Meta(pattern=r"^[a-z]+$")], ...], Meta(max_length=10)] = ()
    site: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.-]*$", max_length=253)] = ""


class WebSearch(ToolService):
    """Searches the Web.

    Args:
        searching: source of the results; search engines without keys when left out.
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
        """Search and list the results."""
        wanted, options = read_arguments(Arguments, arguments), read_config(Config, config)
        query = f"{wanted.query} site:{options.site}" if options.site else wanted.query
        hits = await self._searching.search(
            Search(
                query=query, max_results=wanted.max_results, region=options.region, safesearch=options.safesearch, engines=options.engines
            )
        )
        text = "\n".join(f"{number}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for number, hit in enumerate(hits, 1))
        return ToolResult.ok({"results": msgspec.to_builtins(hits)}, output=text or "Nothing was found; try other words.")

    async def cleanup(self) -> None:
        """Close the backend."""
        await self._searching.aclose()
