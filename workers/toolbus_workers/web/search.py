"""``SearchService``: search the Web through a replaceable backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
from ddgs import DDGS
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

from toolbus import ToolError

MAX_QUERY = 400
MAX_RESULTS = 20
SEARCH_SECONDS = 20.0
MAX_TITLE = 200
MAX_URL = 2_000
MAX_SNIPPET = 500

# Seconds for one search engine, and most searches at a time: a thread can't be stopped, so there are few of them.
_ENGINE_SECONDS = 8
_THREADS = 4

SafeSearch = Literal["on", "moderate", "off"]


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """A query and its options.

    Attributes:
        region: country and language, such as ``de-de``.
        engines: the backend's names of search engines; the backend chooses when empty.
    """

    query: str
    max_results: int = 5
    region: str = "us-en"
    safesearch: SafeSearch = "moderate"
    engines: tuple[str, ...] = ()


class Hit(msgspec.Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    snippet: str


class SearchBackend(Protocol):
    """A source of search results."""

    async def search(self, search: Search) -> Sequence[Hit]:
        """Return the results, best first; none when nothing was found.

        Raises:
            ToolError: the search could not be made.
        """

    async def aclose(self) -> None:
        """Release the resources of the backend."""


class SearchService:
    """Searches the Web, within limits that hold for every backend.

    Args:
        backend: source of the results; several search engines without keys when left out.
        seconds: most seconds for a search.
    """

    def __init__(self, backend: SearchBackend | None = None, *, seconds: float = SEARCH_SECONDS) -> None:
        self._backend = backend or DdgsBackend()
        self._seconds = seconds

    async def search(self, search: Search) -> list[Hit]:
        """Return at most ``max_results`` pages, without duplicates.

        Raises:
            ToolError: the search could not be made; the message says what to do next.
        """
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._backend.search(search)
        except TimeoutError:
            message = f"the search took longer than {self._seconds:g} s; try again later, or with fewer words"
            raise ToolError(message, type="unavailable", code="too_slow", retryable=True) from None
        hits: dict[str, Hit] = {}
        for hit in found:
            if len(hits) == search.max_results:
                break
            if _is_page(hit.url):
                hits.setdefault(hit.url, Hit(_line(hit.title, MAX_TITLE), hit.url, _line(hit.snippet, MAX_SNIPPET)))
        return list(hits.values())

    async def aclose(self) -> None:
        """Close the backend."""
        await self._backend.aclose()


class DdgsBackend:
    """Searches through engines that need no key, with ddgs, in threads.

    Args:
        proxy: proxy for the searches, such as ``socks5://127.0.0.1:9050``.
    """

    def __init__(self, *, proxy: str | None = None) -> None:
        self._proxy = proxy
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="toolbus-search")

    async def search(self, search: Search) -> Sequence[Hit]:
        """Ask the engines."""
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, search)
        except RatelimitException:
            message = "the search engines want fewer requests; wait a minute before searching again"
            raise ToolError(message, type="rate_limited", code="rate_limited", retryable=True, retry_after=60) from None
        except TimeoutException:
            message = "the search engines did not answer in time; try again later"
            raise ToolError(message, type="unavailable", code="too_slow", retryable=True) from None
        except DDGSException as error:
            if "no results" in str(error).lower():
                return []
            message = "no search engine could be reached: they are down or refuse this worker, or it has no network; try again later"
            raise ToolError(message, type="unavailable", code="no_network", retryable=True) from None
        return [Hit(_text(row, "title"), _text(row, "href"), _text(row, "body")) for row in found]

    async def aclose(self) -> None:
        """Let the threads end; searches that still run have their own time limit."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, search: Search) -> list[dict[str, Any]]:
        # One object for each search, since it keeps its engines' connections and is not thread-safe.
        return DDGS(proxy=self._proxy, timeout=_ENGINE_SECONDS).text(
            search.query,
            region=search.region,
            safesearch=search.safesearch,
            max_results=search.max_results,
            backend=",".join(search.engines) or "auto",
        )


def _text(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""


def _is_page(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and len(url) <= MAX_URL


def _line(text: str, limit: int) -> str:
    line = " ".join(text[: 20 * limit].split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"
