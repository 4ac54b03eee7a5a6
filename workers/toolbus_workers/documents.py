"""Extract text from documents: plain text, Markdown, HTML, and zipped formats that the standard library can open.

Markup is scanned instead of parsed: no entity is expanded, nesting costs nothing, and the time grows only with the length.
"""

from __future__ import annotations

import html
import io
import lzma
import re
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from toolbus import ToolError
from toolbus_workers.charset import Text, read_text
from toolbus_workers.text import headings

MAX_TITLE = 200
MAX_SECONDS = 20.0
"""Most seconds for the markup of one document; a valid one of 5 MB takes three."""

PLAIN = frozenset(
    {"txt", "text", "md", "markdown", "rst", "adoc", "org", "log", "csv", "tsv", "json", "jsonl", "yaml", "yml", "toml", "ini"}
)
MARKUP = frozenset({"html", "htm", "xhtml", "xml"})
ZIPPED = frozenset({"docx", "odt", "epub"})
FORMATS = PLAIN | MARKUP | ZIPPED

_TAG = re.compile(r"<(?:[!?]|/?([A-Za-z][A-Za-z0-9:_-]{0,60}))")
# References far beyond the last character; Python can't read numbers of more than some thousand digits.
_NO_CHARACTER = re.compile(r"&#(?:0*+[1-9][0-9]{7,}+|[xX]0*+[1-9A-Fa-f][0-9A-Fa-f]{6,}+);?")
_SKIPPED = frozenset({"script", "style", "template", "noscript", "svg"})
_BREAKING = frozenset({
    "p", "div", "li", "ul", "ol", "dl", "dt", "dd", "tr", "table", "section", "article", "header", "footer", "main", "aside", "nav", "pre",
    "blockquote", "figure", "form", "hr", "br", "h1", "h2", "h3", "h4", "h5", "h6", "title", "body",
    "w:p", "w:br", "w:tr", "text:p", "text:h", "text:list-item", "table:table-row",
})  # fmt: skip
_HEADINGS = {**{f"h{level}": level for level in range(1, 7)}, "text:h": 2}


class Unreadable(Exception):
    """A document has no readable text; the message gives the reason."""


class Document(NamedTuple):
    """A document's text, with line breaks between its paragraphs, its title, and the encoding that was assumed, if any."""

    title: str
    text: str
    assumed: str = ""


def format_of(path: str) -> str:
    """Return the format that a file's name indicates."""
    return path.rpartition("/")[2].rpartition(".")[2].lower()


def read(content: bytes, path: str, most: int) -> Document:
    """Return the text of a document, at most ``most`` characters of it.

    Raises:
        Unreadable: the document is broken, binary, or has another format than its name says.
    """
    kind = format_of(path)
    if kind in ZIPPED:
        until = time.monotonic() + MAX_SECONDS
        found = Text("\n\n".join(_markup_text(decode(part).text, most, until) for part in _zipped(content, kind, most)))
    else:
        found = decode(content)
        if kind in MARKUP:
            found = Text(_markup_text(found.text, most, time.monotonic() + MAX_SECONDS), found.assumed)
    text = found.text[:most].replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise Unreadable("it holds no text")
    return Document(_title(text, kind) or path.rpartition("/")[2], text, found.assumed)


def decode(content: bytes) -> Text:
    """Return bytes as text, as ``read_text`` does.

    Raises:
        Unreadable: they are not text, or nothing tells their encoding.
    """
    try:
        found = read_text(content)
    except ToolError:
        _checked(content.decode("latin-1"))
        raise Unreadable("it is not UTF-8, and its bytes do not tell its encoding; convert it to UTF-8") from None
    return Text(_checked(found.text), found.assumed)


def _checked(text: str) -> str:
    # Text has hardly any control characters, and never a NUL.
    sample = text[:20_000]
    strange = sum((character < " " and character not in "\t\n\r\f\v\x1b") or character == "\ufffd" for character in sample)
    if "\0" in sample or strange * 10 > len(sample):
        raise Unreadable("it is binary, not text")
    return text


def _title(text: str, format: str) -> str:
    if format in {"md", "markdown"} or format in MARKUP | ZIPPED:
        for heading in headings(text[:100_000]):
            if heading.title.strip():
                return heading.title.strip()[:MAX_TITLE]
    if format in MARKUP | ZIPPED | {"txt", "text", "rst", "adoc", "org", "md", "markdown"}:
        first = text.lstrip()[: MAX_TITLE + 1].partition("\n")[0].strip()
        return first if len(first) <= MAX_TITLE else ""
    return ""


# Exceptions of zipfile for archives that are broken, encrypted, or packed in an unknown way.
_BROKEN_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, OSError, EOFError, ValueError, RuntimeError, LookupError, MemoryError,
)  # fmt: skip


def _zipped(content: bytes, format: str, most: int) -> Iterator[bytes]:
    wanted = {"docx": r"word/document\.xml\Z", "odt": r"content\.xml\Z", "epub": r".*\.x?html?\Z"}[format]
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            left = most * 4
            for info in archive.infolist()[:10_000]:
                if left > 0 and re.match(wanted, info.filename):
                    with archive.open(info) as part:
                        piece = part.read(left)
                    left -= len(piece)
                    yield piece
    except _BROKEN_ZIP as error:
        raise Unreadable(f"it is not a {format} file that can be opened: {str(error)[:100]}") from None


def _markup_text(source: str, most: int, until: float) -> str:
    """Return the text between the tags, one paragraph per line, with headings as in Markdown.

    Args:
        most: most characters that will be used.
        until: monotonic time (seconds) at which to give up.

    Raises:
        Unreadable: it takes longer.
    """
    pieces: list[str] = []
    lowered = source.lower()
    if len(lowered) != len(source):
        # A few letters change their length in lower case, but positions in both texts must agree.
        lowered = source
    at = tags = 0
    while found := _TAG.search(source, at):
        start = found.start()
        pieces.append(source[at:start])
        tags += 1
        if not tags % 10_000 and time.monotonic() > until:
            raise Unreadable(f"it takes more than {MAX_SECONDS:g} s to read")
        comment = source.startswith("<!--", start)
        end = source.find("-->", start + 4) if comment else source.find(">", start + 1)
        if end < 0:
            at = len(source)
            break
        at = end + (3 if comment else 1)
        if found[1] is None:
            continue
        tag, opening = found[1].lower(), source[start + 1] != "/"
        if opening and tag in _SKIPPED and source[end - 1] != "/":
            end = lowered.find(f"</{tag}", at)
            at = len(source) if end < 0 else end
        elif tag in _BREAKING:
            pieces.append("\n\n" + "#" * _HEADINGS.get(tag, 0) + " " if opening and tag in _HEADINGS else "\n\n")
        elif tag in {"td", "th", "w:tab", "table:table-cell"}:
            pieces.append(" ")
    pieces.append(source[at:])
    # Removing blanks and entities shortens the text, but hardly to half.
    text = html.unescape(_NO_CHARACTER.sub("\ufffd", "".join(pieces)[: 2 * most]))
    lines = (" ".join(line.split()) for line in re.split(r"\n[ \t]*\n", text))
    return "\n\n".join(line for line in lines if line and line.strip("# "))
