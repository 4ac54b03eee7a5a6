"""Extract title, text and links of an HTML document, as a program: document on standard input, JSON on standard output.

It runs in its own process because parsing is where hostile pages do most harm: the parser's time grows with the square of
unclosed tags and of attributes (100 KB of them take over a second, some megabytes many minutes), without a pause in which
another thread of the process could run. A process has limits of time and memory and can be killed. It imports no module of
toolbus, so that it starts quickly.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from urllib.parse import urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_LINKS = 500
MAX_LINK_TEXT = 200
MAX_HREF = 1_000
MAX_TITLE = 500

_UNSEEN = frozenset(
    ("head", "script", "style", "noscript", "template", "iframe", "object", "svg", "math", "canvas", "audio", "video", "select", "datalist")
)
_BREAKS = frozenset(
    (
        "address", "article", "aside", "blockquote", "br", "dd", "details", "dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure",
        "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "summary",
        "table", "tr", "ul",
    )
)  # fmt: skip
_SPACED = frozenset(("h1", "h2", "h3", "h4", "h5", "h6", "p", "pre", "table", "ul", "ol", "blockquote", "section", "article"))
_MARKS = {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "h5": "##### ", "h6": "###### "}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]+")


def main() -> None:
    """Read a line with the options (``base``, ``max_chars``, …) and the document after it; write the content."""
    options = json.loads(sys.stdin.buffer.readline())
    _limit(options["memory"], options["seconds"])
    tree = LexborHTMLParser(sys.stdin.buffer.read().decode())
    text, cut = text_of(tree, options["max_chars"])
    content = {"title": title_of(tree), "text": text, "cut": cut, "links": links_of(tree, options["base"])}
    sys.stdout.buffer.write(json.dumps(content).encode())


def title_of(tree: LexborHTMLParser) -> str:
    """Return the title, or the first heading of a document without one."""
    for query in ("head title", "h1"):
        found = tree.css_first(query)
        if found is not None and (title := _line(found.text(), MAX_TITLE)):
            return title
    return ""


def text_of(tree: LexborHTMLParser, max_chars: int) -> tuple[str, bool]:
    """Return the visible text, one line per block, and whether there is more of it."""
    pieces: list[str] = []
    length = 0
    for piece in _pieces(tree):
        pieces.append(piece)
        length += len(piece)
        # Spaces are removed later, so twice the length is enough.
        if length > 2 * max_chars + 10_000:
            break
    lines = (" ".join(line.split()) for line in _CONTROLS.sub(" ", "".join(pieces)).split("\n"))
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line not in _EMPTY_ITEMS)).strip()
    return text[:max_chars], len(text) > max_chars


def links_of(tree: LexborHTMLParser, base: str) -> list[dict[str, str]]:
    """Return the links to other pages as absolute addresses, without duplicates."""
    root = tree.css_first("base[href]")
    if root is not None:
        base = _joined(base, root.attributes.get("href") or "") or base
    found: dict[str, str] = {}
    for node in tree.css("a[href], area[href]"):
        href = _joined(base, node.attributes.get("href") or "")
        if not href or len(href) > MAX_HREF:
            continue
        text = _line(node.text() or node.attributes.get("title") or node.attributes.get("alt") or "", MAX_LINK_TEXT)
        # A picture and a headline often link to the same page; the link with text is more useful.
        found[href] = found.get(href) or text
        if len(found) == MAX_LINKS:
            break
    return [{"text": text, "href": href} for href, text in found.items()]


_EMPTY_ITEMS = frozenset(mark.strip() for mark in _MARKS.values())


def _pieces(tree: LexborHTMLParser) -> Iterator[str]:
    """Yield the text in document order, without recursion, since documents may be nested deeper than Python recurses."""
    root = tree.body or tree.root
    if root is None:
        return
    node: LexborNode | None = root
    # Compare nodes by id, because `==` compares all of their markup.
    end = root.mem_id
    while node is not None:
        tag = node.tag or ""
        if tag == "-text":
            yield " ".join((node.text_content or "").split("\n"))
        elif tag in _BREAKS:
            yield ("\n\n" if tag in _SPACED else "\n") + _MARKS.get(tag, "")
        elif tag in {"td", "th"}:
            yield " "
        elif tag == "img" and (alt := node.attributes.get("alt")):
            yield f" {alt} "
        below = None if tag in _UNSEEN or (tag != "-text" and "hidden" in node.attributes) else node.first_child
        if below is not None:
            node = below
            continue
        while node is not None and node.mem_id != end and node.next is None:
            node = node.parent
            if node is not None and (node.tag or "") in _BREAKS:
                yield "\n\n" if node.tag in _SPACED else "\n"
        node = None if node is None or node.mem_id == end else node.next


def _joined(base: str, href: str) -> str | None:
    try:
        address = urljoin(base, href.strip()).partition("#")[0]
        parts = urlsplit(address)
    except ValueError:
        return None
    return address if parts.scheme in {"http", "https"} and parts.hostname else None


def _line(text: str, limit: int) -> str:
    line = " ".join(_CONTROLS.sub(" ", text[: 20 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource  # noqa: PLC0415 - missing on Windows, where only the parent's timeout applies
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):
            # Not every system supports every limit.
            continue


if __name__ == "__main__":
    main()
