"""Check a built site: links within it lead somewhere, its pages ask no other server, and no Markdown is left in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

# The tags whose addresses a browser fetches by itself, and the attribute that has them.
_FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
_FETCHED_RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "preconnect", "dns-prefetch", "manifest"}
_BLOCKS = {"p", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "div", "dt", "dd", "blockquote", "br"}
_STYLE_ADDRESS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")\s]+)")


class _Page(HTMLParser):
    """The links, fetched addresses, anchors and texts outside of code of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.prose: list[str] = []
        self._in_code = 0
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag's addresses and its name."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _FETCHED and _FETCHED[tag] in given:
            self.fetched.append(given[_FETCHED[tag]])
        if tag == "link" and _FETCHED_RELATIONS & set(given.get("rel", "").split()):
            self.fetched.append(given.get("href", ""))
        if given.get("data-md-component") == "source":
            self.fetched.append("https://api.github.com")
        if tag in _BLOCKS:
            self.prose.append("\n")
        self._in_code += tag in {"code", "pre", "script"}
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        """Leave a tag."""
        self._in_code -= tag in {"code", "pre", "script"}
        self._in_style = False

    def handle_data(self, data: str) -> None:
        """Note text that is no code, and the addresses of a style."""
        if self._in_style:
            self.fetched += _STYLE_ADDRESS.findall(data)
        elif not self._in_code:
            self.prose.append(data)


def faults(site: Path) -> list[str]:
    """Return what is wrong with a built site, one line each.

    Args:
        site: its folder.
    """
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: {fault}" for fault in _broken(path, page, pages, site)]
        found += [f"{name}: fetches {each} from elsewhere" for each in page.fetched if urlsplit(each).netloc]
        found += [f"{name}: has Markdown in its text: {line}" for line in _unread("".join(page.prose))]
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.relative_to(site)}: fetches {each} from elsewhere" for each in _STYLE_ADDRESS.findall(path.read_text("utf-8"))]
    return found


def _read(path: Path) -> _Page:
    """Return a page."""
    page = _Page()
    page.feed(path.read_text("utf-8"))
    return page


def _broken(path: Path, page: _Page, pages: dict[Path, _Page], site: Path) -> Iterator[str]:
    """Yield the links and fetched addresses of a page that lead to no file or anchor of the site."""
    # The page for unknown addresses links from the site's root, wherever that will be.
    if path == site / "404.html":
        return
    for link in sorted({*page.links, *page.fetched}):
        if urlsplit(link).scheme or urlsplit(link).netloc:
            continue
        address, fragment = urldefrag(urljoin(f"/{path.relative_to(site).as_posix()}", link))
        target = site / unquote(urlsplit(address).path).lstrip("/")
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"links to {link}, which is not there"
        elif fragment and target in pages and unquote(fragment) not in pages[target].anchors:
            yield f"links to {link}, but that page has no such anchor"


def _unread(prose: str) -> Iterator[str]:
    """Yield lines of a page's text that only look right in the repository, where Markdown is read a little differently."""
    for line in prose.splitlines():
        if re.match(r"\s*(```|[-*] \S|\|.*\|\s*$|#+ )", line) or re.search(r"\]\([^)]+\)|^\s*::: ", line):
            yield line.strip()[:80]
