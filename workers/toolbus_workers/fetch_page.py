"""``fetch_page``: read a page of the public Web as text, as its links, or as both with its title.

``toolbus worker fetch_page`` (needs ``toolbus[web]``). A page may be hostile, and a manipulated model may ask for it, so
``toolbus_workers.web`` limits what is fetched and how much of it. To reach an intranet, serve an instance of your own:
``FetchPage(FetchService(Guard(allow=["10.20.0.0/16"])))``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus import ToolResult, ToolService
from toolbus_workers.typed_arguments import parameters, read_arguments, read_config
from toolbus_workers.web.extract import MAX_CHARS, Content, ContentExtractor
from toolbus_workers.web.fetch import MAX_BYTES, MAX_SECONDS, MAX_URL, FetchService, Limits

LINKS_SHOWN = 20

ExtractType = Literal["text", "links", "structured"]


class Arguments(msgspec.Struct, frozen=True):
    """The arguments from the model."""

    url: Annotated[str, Meta(max_length=MAX_URL, description="the address of the page, beginning with http:// or https://")]
    extract_type: Annotated[
        ExtractType, Meta(description="text: what the page says; links: where it leads; structured: title, text and its first links")
    ] = "text"


class Config(msgspec.Struct, frozen=True):
    """The config values from a tool's descriptor, which can only narrow what the service allows.

    Attributes:
        hosts: the only hosts that are allowed, with their subdomains.
        max_bytes: most bytes of a page.
        max_seconds: most seconds for a page.
        max_chars: most characters of its text.
    """

    hosts: tuple[str, ...] = ()
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = MAX_BYTES
    max_seconds: Annotated[float, Meta(gt=0, le=MAX_SECONDS)] = MAX_SECONDS
    max_chars: Annotated[int, Meta(ge=1, le=MAX_CHARS)] = MAX_CHARS

    @property
    def limits(self) -> Limits:
        """The limits for fetching."""
        return Limits(bytes=self.max_bytes, seconds=self.max_seconds, hosts=self.hosts)


class FetchPage(ToolService):
    """Fetches pages of the public Web.

    Args:
        fetching: fetches pages; from the public Web only when left out.
        extractor: extracts the content of pages.
    """

    id = "fetch-page"
    description = "Fetches pages of the public Web"
    config_params = Config.__struct_fields__
    effect = "read"
    tools = [  # noqa: RUF012 - a declaration, read once when the service registers
        {
            "name": "fetch_page",
            "description": "Fetch a page of the public Web and return its text, its links, or its title with both.",
            "parameters": parameters(Arguments),
            "category": "crawler",
            "groups": ["web"],
            "timeout": 60.0,
        }
    ]

    def __init__(self, fetching: FetchService | None = None, extractor: ContentExtractor | None = None) -> None:
        self._fetching = fetching or FetchService()
        self._extractor = extractor or ContentExtractor()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> ToolResult:
        """Fetch the page and return the requested content."""
        wanted, options = read_arguments(Arguments, arguments), read_config(Config, config)
        page = await self._fetching.fetch(wanted.url, options.limits)
        content = await self._extractor.extract(page, max_chars=options.max_chars)
        return ToolResult.ok(data_of(content, wanted.extract_type), output=shown(content, wanted.extract_type))


def data_of(content: Content, extract_type: ExtractType) -> dict[str, Any]:
    """Return the result for programs: ``{text}``, ``{links}`` or ``{title, text, links}``."""
    if extract_type == "text":
        return {"text": content.text}
    links = [msgspec.to_builtins(link) for link in content.links]
    if extract_type == "links":
        return {"links": links}
    return {"title": content.title, "text": content.text, "links": links[:LINKS_SHOWN]}


def shown(content: Content, extract_type: ExtractType) -> str:
    """Return the text for the model."""
    links = "\n".join(
        f"- {link.text or '(no text)'}: {link.href}" for link in content.links[: None if extract_type == "links" else LINKS_SHOWN]
    )
    if extract_type == "links":
        return links or "The page has no links."
    text = (content.text or "The page has no text.") + ("\n… the page goes on; only its beginning is shown" if content.cut else "")
    if extract_type == "text":
        return text
    return "\n\n".join(part for part in (f"# {content.title}" if content.title else "", text, f"Links:\n{links}" if links else "") if part)
