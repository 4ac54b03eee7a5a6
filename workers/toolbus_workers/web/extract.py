"""``ContentExtractor``: extract title, text and links of a fetched page, even from hostile HTML."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from toolbus import ToolError
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus_workers.program import bare_environment
from toolbus_workers.web.fetch import Page

MAX_CHARS = 100_000
PARSE_SECONDS = 10
PARSE_MEMORY = 1 << 30

_PROGRAM = str(Path(__file__).with_name("document.py"))
_MARKUP = frozenset({"text/html", "application/xhtml+xml"})


class Link(msgspec.Struct, frozen=True):
    """A link of a page: its text and its absolute address."""

    text: str
    href: str


class Content(msgspec.Struct, frozen=True):
    """The content of a page.

    Attributes:
        cut: whether the page has more text than ``text``.
        links: links to other pages, without duplicates, at most 500.
    """

    title: str
    text: str
    cut: bool
    links: tuple[Link, ...] = ()


class ContentExtractor:
    """Extracts the content of pages, each in its own process that is killed when it takes too long.

    Args:
        seconds: most seconds for one page; a page waits for its turn up to twice as long.
        memory: bytes of address space for one page.
        parallel: pages processed at the same time; half of the processors when left out.
    """

    def __init__(self, *, seconds: int = PARSE_SECONDS, memory: int = PARSE_MEMORY, parallel: int = 0) -> None:
        self._seconds = seconds
        self._memory = memory
        self._turns = asyncio.Semaphore(parallel or max(1, (os.cpu_count() or 2) // 2))

    async def extract(self, page: Page, *, max_chars: int = MAX_CHARS) -> Content:
        """Return a page's title, text and links; a page that is not HTML is returned as text.

        Raises:
            ToolError: the page can't be read within the limits.
        """
        text = page.text
        if page.media_type not in _MARKUP:
            return Content("", text[:max_chars], len(text) > max_chars)
        options = {"base": page.url, "max_chars": max_chars, "memory": self._memory, "seconds": self._seconds}
        async with self._turn():
            answer = await self._run(msgspec.json.encode(options) + b"\n" + text.encode(errors="replace"), page.url)
        try:
            return msgspec.json.decode(answer, type=Content)
        except DECODE_ERRORS:
            raise _unreadable(page.url) from None

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(2 * self._seconds):
                await self._turns.acquire()
        except TimeoutError:
            message = "this worker reads other pages, and they take long; try again later"
            raise ToolError(message, type="overloaded", code="busy", retryable=True) from None
        try:
            yield
        finally:
            self._turns.release()

    async def _run(self, document: bytes, url: str) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # don't import from the program's own folder
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # A parser that is taken over by a page finds none of the worker's secrets.
            env=bare_environment(),
        )
        try:
            async with asyncio.timeout(self._seconds):
                answer, _ = await process.communicate(document)
        except TimeoutError:
            raise _unreadable(url) from None
        finally:
            if process.returncode is None:
                process.kill()
                # This also reads what the process had written; otherwise its pipes would stay open.
                await process.communicate()
        return answer


def _unreadable(url: str) -> ToolError:
    message = f"the page {url} could not be read: its HTML is damaged or made to be costly; try another page"
    return ToolError(message, code="unreadable_page")
