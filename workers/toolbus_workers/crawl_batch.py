"""``crawl_batch``: read many pages of the public Web in one call, each streamed as soon as it has been read.

``toolbus worker crawl_batch`` (needs ``toolbus[web]``). A page that fails becomes an entry like the others and stops
nothing. Several requests run at a time, but few to one host, and those with a pause between them; these limits count
the pages of all calls that a worker runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from toolbus import ErrorInfo, Progress, ToolError, ToolResult, ToolService
from toolbus_workers import fetch_page
from toolbus_workers.fetch_page import ExtractType, data_of, shown
from toolbus_workers.typed_arguments import parameters, read_arguments, read_config
from toolbus_workers.web.extract import Content, ContentExtractor
from toolbus_workers.web.fetch import MAX_SECONDS, FetchService, parse_url
from toolbus_workers.web.politeness import PAUSE, Politeness

MAX_PAGES = 50
MAX_CHARS = 20_000
MAX_LINKS = 30
BATCH_SECONDS = 120.0
PARALLEL = 8
MAX_PAUSE = 10.0

_LATE = ErrorInfo("unavailable", "too_late", "the time of the batch ended before this page was read; ask for it again", retryable=True)


class Arguments(msgspec.Struct, frozen=True):
    """The arguments from the model."""

    urls: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=MAX_PAGES, description="the addresses of the pages, each beginning with http:// or https://"),
    ]
    extract_type: Annotated[
        ExtractType, Meta(description="text: what the pages say; links: where they lead; structured: title, text and first links")
    ] = "text"


class Config(fetch_page.Config, frozen=True):
    """The config values from a tool's descriptor, which can only narrow what the service allows.

    Attributes:
        max_pages: most pages in one call.
        max_chars: most characters of each page's text.
        host_pause: least seconds between two requests to one host.
    """

    max_pages: Annotated[int, Meta(ge=1, le=MAX_PAGES)] = MAX_PAGES
    max_chars: Annotated[int, Meta(ge=1, le=MAX_CHARS)] = MAX_CHARS // 2
    host_pause: Annotated[float, Meta(ge=PAUSE, le=MAX_PAUSE)] = PAUSE


class Outcome(NamedTuple):
    """The outcome of one page: its content or an error."""

    place: int
    content: Content | None
    error: ErrorInfo | None


class CrawlBatch(ToolService):
    """Fetches many pages of the public Web.

    Args:
        fetching, extractor: as for ``FetchPage``.
        politeness: limits for requests to one host.
        parallel: most requests of one call at a time.
        seconds: seconds for a whole call; pages that are not read by then are failures.
    """

    id = "crawl-batch"
    description = "Fetches many pages of the public Web"
    config_params = Config.__struct_fields__
    effect = "read"
    tools = [  # noqa: RUF012 - a declaration, read once when the service registers
        {
            "name": "crawl_batch",
            "description": f"Fetch up to {MAX_PAGES} pages of the public Web at once; each is returned as soon as it has been read.",
            "parameters": parameters(Arguments),
            "category": "crawler",
            "groups": ["web"],
            "timeout": BATCH_SECONDS + MAX_SECONDS,
        }
    ]

    def __init__(
        self,
        fetching: FetchService | None = None,
        extractor: ContentExtractor | None = None,
        politeness: Politeness | None = None,
        *,
        parallel: int = PARALLEL,
        seconds: float = BATCH_SECONDS,
    ) -> None:
        self._fetching = fetching or FetchService()
        self._extractor = extractor or ContentExtractor()
        self._politeness = politeness or Politeness()
        self._parallel = parallel
        self._seconds = seconds

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str | Progress | ToolResult]:
        """Stream each page when it is read, once; the result has a page for each of the addresses, in their order."""
        wanted, options = read_arguments(Arguments, arguments), read_config(Config, config)
        urls = list(dict.fromkeys(wanted.urls))
        if len(urls) > options.max_pages:
            message = f"{len(urls)} pages are too many for one call; ask for at most {options.max_pages} at a time"
            raise ToolError(message, type="invalid_arguments", code="too_many_pages")
        outcomes: dict[int, Outcome] = {}
        async with aclosing(self._outcomes(urls, options)) as arriving:
            async for outcome in arriving:
                outcomes[outcome.place] = outcome
                yield Progress(len(outcomes), len(urls), urls[outcome.place])
                yield _shown(urls[outcome.place], outcome, wanted.extract_type)
        places = {url: place for place, url in enumerate(urls)}
        yield _result(wanted.urls, [outcomes[places[url]] for url in wanted.urls], wanted.extract_type)

    async def _outcomes(self, urls: Sequence[str], options: Config) -> AsyncGenerator[Outcome, None]:
        """Yield the outcomes of all pages as they come. The tasks are cancelled when the iteration ends."""
        places = asyncio.Semaphore(self._parallel)
        deadline = asyncio.get_running_loop().time() + self._seconds
        tasks = [asyncio.create_task(self._outcome(index, url, options, places, deadline)) for index, url in enumerate(urls)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _outcome(self, place: int, url: str, options: Config, places: asyncio.Semaphore, deadline: float) -> Outcome:
        try:
            async with asyncio.timeout_at(deadline):
                return Outcome(place, await self._content(url, options, places), None)
        except ToolError as error:
            return Outcome(place, None, error.error)
        except TimeoutError:
            return Outcome(place, None, _LATE)

    async def _content(self, url: str, options: Config, places: asyncio.Semaphore) -> Content:
        # Take one of the call's slots only after the host's, so that a slow host does not hold up the others.
        async with self._politeness.turn(parse_url(url).host) as turn, places:
            await turn.begin(options.host_pause)
            page = await self._fetching.fetch(url, options.limits)
        content = await self._extractor.extract(page, max_chars=options.max_chars)
        return msgspec.structs.replace(content, links=content.links[:MAX_LINKS])


def _shown(url: str, outcome: Outcome, extract_type: ExtractType) -> str:
    text = f"Error ({outcome.error})" if outcome.content is None else shown(outcome.content, extract_type)
    return f"## {url}\n\n{text}\n\n"


def _result(urls: Sequence[str], outcomes: Sequence[Outcome], extract_type: ExtractType) -> ToolResult:
    pages = [
        {
            "url": url,
            "success": outcome.content is not None,
            "data": None if outcome.content is None else data_of(outcome.content, extract_type),
            "error": None if outcome.error is None else msgspec.to_builtins(outcome.error),
        }
        for url, outcome in zip(urls, outcomes, strict=True)
    ]
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(errors) < len(outcomes):
        return ToolResult.ok({"pages": pages})
    kinds = {error.type for error in errors}
    failure = ErrorInfo(
        errors[0].type if len(kinds) == 1 else "tool_error",
        "no_page",
        "none of the pages could be read, each for the reason that stands with it; try other pages",
        retryable=all(error.retryable for error in errors),
    )
    return ToolResult(success=False, data={"pages": pages}, error=failure)
