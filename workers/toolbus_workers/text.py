"""Tools for a text or Markdown document; each streams its answer.

Every answer depends only on the arguments, so that a call which runs again on
another worker yields the same text. Every pass is linear in the text's length.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta

from toolbus import Progress, ToolError, ToolResult, tool

MAX_TEXT = 1_000_000
MAX_MATCHES = 500
MAX_HEADINGS = 2_000
MAX_PARTS = 5_000
MAX_DELAY_MS = 1_000
MAX_STREAM_SECONDS = 60
WORDS_PER_MINUTE = 238
LINE_SHOWN = 200

# Reporting progress after every part would double the frames of a long stream.
_PROGRESS_STEPS = 100

_WORD = re.compile(r"[^\W_]++(?:['’-][^\W_]++)*+")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]++(.*))?$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NOT_A_PARAGRAPH = re.compile(r" {0,3}(?:[>|]|[-*+][ \t]|\d{1,9}[.)][ \t])| {4}|\t")
_MARKER = re.compile(r"\s*+(?:(?:>|[-*+](?=\s)|\d{1,9}[.)](?=\s))\s*+)*+")
_LINK = re.compile(r"!?\[([^\]\[]*+)\]\([^()]*+\)")
_STOP = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?= )|[。！？]++")

_ABBREVIATIONS = frozenset({"e.g", "i.e", "mr", "mrs", "ms", "dr", "prof", "st", "vs", "no", "fig", "cf", "al", "approx", "inc", "ltd"})

_COMMON = """
a about after again all also am an and any are as at be because been before being between both but by can could did do does
doing done down during each few for from further had has have having he her here hers him his how i if in into is it its itself
just may me might more most must my no nor not now of off on once one only or other our out over own same shall she should so
some such than that the their them then there these they this those through to too under until up us very was we were what when
where which while who whom why will with would you your it's don't doesn't isn't aren't can't i'm you're that's
"""
_STOP_WORDS = frozenset(_COMMON.split())


class Heading(NamedTuple):
    """A Markdown heading with its line number, from 1."""

    level: int
    title: str
    line: int


def check_text(text: str) -> str:
    """Return the text unchanged after checking its length.

    Raises:
        ToolError: the text is too long.
    """
    if len(text) > MAX_TEXT:
        raise _fail(f"the text has {len(text):,} characters; at most {MAX_TEXT:,} are allowed", "too_long")
    return text


def headings(text: str) -> Iterator[Heading]:
    """Yield the headings of a Markdown text, in both of its styles; code blocks have none."""
    previous = ""
    for number, line in _outside_fences(text):
        found = _HEADING.match(line)
        if found:
            title = re.sub(r"(?:^|(?<=\s))#+\s*$", "", (found[2] or "").rstrip()).strip()
            yield Heading(len(found[1]), title, number)
        elif previous and (underline := _UNDERLINE.match(line)):
            yield Heading(1 if underline[1][0] == "=" else 2, previous.strip(), number - 1)
        usable = line.strip() and not found and not _UNDERLINE.match(line) and not _NOT_A_PARAGRAPH.match(line)
        previous = line if usable else ""


def paragraphs(text: str) -> Iterator[str]:
    """Yield the text cut after its blank lines; the joined pieces are the text again."""
    held: list[str] = []
    blank = False
    for line in text.splitlines(keepends=True):
        if blank and line.strip():
            yield "".join(held)
            held.clear()
        held.append(line)
        blank = not line.strip()
    if held:
        yield "".join(held)


def parts(text: str, size: int) -> Iterator[str]:
    """Yield the text in parts of at most ``size`` characters: whole paragraphs, and long ones cut at a space.

    The joined parts are the text again.
    """
    held: list[str] = []
    length = 0
    for paragraph in paragraphs(text):
        if held and length + len(paragraph) > size:
            yield "".join(held)
            held.clear()
            length = 0
        start = 0
        while len(paragraph) - start > size:
            space = paragraph.rfind(" ", start + size // 2, start + size)
            end = space + 1 if space >= 0 else start + size
            yield paragraph[start:end]
            start = end
        held.append(paragraph[start:])
        length += len(paragraph) - start
    if held:
        yield "".join(held)


def words(text: str) -> list[str]:
    """Return the words of a text, in order."""
    return _WORD.findall(text)


def frequencies(text: str) -> Counter[str]:
    """Return how often each word occurs, in lower case, without common words."""
    return Counter(word for word in (word.lower().replace("’", "'") for word in words(text)) if len(word) > 1 and word not in _STOP_WORDS)


def prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a Markdown text as plain one-line prose, without headings, code, tables and markup."""
    held: list[str] = []
    last = 0
    for number, line in _outside_fences(text):
        gap = number > last + 1
        last = number
        marker = _MARKER.match(line)
        item = bool(marker and marker[0].strip())
        skip = not line.strip() or line.lstrip().startswith("|") or bool(_HEADING.match(line) or _UNDERLINE.match(line))
        if held and (gap or skip or item):
            yield _plain(" ".join(held))
            held.clear()
        if not skip:
            held.append(line[marker.end() :] if marker else line)
    if held:
        yield _plain(" ".join(held))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text or Markdown document."""
    for paragraph in prose(text):
        start = 0
        for stop in _STOP.finditer(paragraph):
            if _ends_sentence(paragraph, start, stop):
                yield paragraph[start : stop.end()].strip()
                start = stop.end()
        if rest := paragraph[start:].strip():
            yield rest


def summary(text: str, count: int) -> tuple[list[str], int]:
    """Return the ``count`` most informative sentences in the text's order, and the total number of sentences.

    A sentence's weight is that of its words, and a word's weight is how often it occurs in the text.
    """
    everything = list(sentences(text))
    weights = frequencies(" ".join(everything))
    scored: list[tuple[float, int]] = []
    for index, sentence in enumerate(everything):
        found = frequencies(sentence)
        length = len(words(sentence))
        # Fragments and run-on sentences make a poor summary, even with frequent words.
        if 4 <= length <= 60 and found:
            scored.append((-sum(weights[word] for word in found) / (8 + length), index))
    if not scored:
        return everything[:count], len(everything)
    chosen = sorted(index for _, index in sorted(scored)[:count])
    return [everything[index] for index in chosen], len(everything)


@tool(category="data", groups=["text"], effect="read", timeout=30.0)
def text_outline(text: str, depth: Annotated[int, Meta(ge=1, le=6)] = 6) -> Iterator[str | ToolResult]:
    """List the headings of a Markdown text, indented by level, with their line numbers.

    Args:
        text: the Markdown text
        depth: the deepest level to list
    """
    check_text(text)
    found: list[Heading] = []
    for heading in headings(text):
        if heading.level > depth:
            continue
        if len(found) == MAX_HEADINGS:
            yield f"… only the first {MAX_HEADINGS} headings are listed\n"
            break
        found.append(heading)
        yield f"{'  ' * (heading.level - 1)}{_excerpt(heading.title)} (line {heading.line})\n"
    if not found:
        yield "The text has no headings.\n"
    yield ToolResult.ok({"headings": [heading._asdict() for heading in found]})


@tool(category="data", groups=["text"], effect="read", timeout=30.0)
def text_search(
    text: str, query: str, context: Annotated[int, Meta(ge=0, le=20)] = 1, max_matches: Annotated[int, Meta(ge=1, le=MAX_MATCHES)] = 50
) -> Iterator[str | ToolResult]:
    """Find every line of a text that contains a phrase, ignoring case, and show each with the lines around it.

    Args:
        text: the text to search
        query: the phrase to look for, literally, within one line
        context: lines to show before and after each match
        max_matches: how many matches to show; the others are only counted
    """
    check_text(text)
    if not query.strip() or "\n" in query:
        raise _fail("the query must be a phrase of one line, and not empty", "bad_query")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    pattern = re.compile(re.escape(query), re.IGNORECASE)
    matches: list[dict[str, object]] = []
    total = 0
    printed = 0  # number of lines from the top that are printed or skipped
    shown_to = 0  # number of lines up to the end of the last match's context
    for index, line in enumerate(lines):
        match = pattern.search(line)
        total += match is not None
        if match and len(matches) < max_matches:
            first = max(index - context, printed)
            gap = "--\n" if matches and first > printed else ""
            before = "".join(f"{number + 1}- {_excerpt(lines[number])}\n" for number in range(first, index))
            excerpt = _excerpt(line, match.start())
            matches.append({"line": index + 1, "column": match.start() + 1, "text": excerpt})
            printed, shown_to = index + 1, index + 1 + context
            yield f"{gap}{before}{index + 1}: {excerpt}\n"
        elif index == printed and index < shown_to:
            printed = index + 1
            yield f"{index + 1}{':' if match else '-'} {_excerpt(line)}\n"
    if not total:
        yield f"No line contains {_excerpt(query)!r}.\n"
    elif total > len(matches):
        yield f"… {total - len(matches)} more matching lines\n"
    yield ToolResult.ok({"total": total, "matches": matches})


@tool(category="data", groups=["text"], effect="read", timeout=30.0)
def text_stats(text: str, top: Annotated[int, Meta(ge=0, le=100)] = 10) -> Iterator[str | ToolResult]:
    """Count the words, lines, sentences and paragraphs of a text, and find its most frequent words and reading time.

    Args:
        text: the text to measure
        top: how many of the most frequent words to list
    """
    check_text(text)
    found = words(text)
    seconds = round(len(found) * 60 / WORDS_PER_MINUTE)
    stats: dict[str, object] = {
        "characters": len(text),
        "lines": len(text.splitlines()),
        "paragraphs": sum(1 for paragraph in paragraphs(text) if paragraph.strip()),
        "words": len(found),
        "unique_words": len({word.lower() for word in found}),
    }
    yield "".join(f"{name.replace('_', ' ')}: {value}\n" for name, value in stats.items())
    stats["sentences"] = sum(1 for _ in sentences(text))
    stats["reading_seconds"] = seconds
    yield f"sentences: {stats['sentences']}\n"
    yield f"reading time: {seconds // 60} min {seconds % 60} s at {WORDS_PER_MINUTE} words a minute\n"
    # most_common keeps the order of first occurrence among equal counts; alphabetical order is more predictable.
    ranked = sorted(frequencies(text).items(), key=lambda item: (-item[1], item[0]))[:top]
    if ranked:
        yield "most frequent words: " + ", ".join(f"{_excerpt(word)} ({count})" for word, count in ranked) + "\n"
    stats["top_words"] = [{"word": _excerpt(word), "count": count} for word, count in ranked]
    yield ToolResult.ok(stats)


@tool(category="data", groups=["text"], effect="read", timeout=120.0)
async def text_stream(
    text: str, part: Annotated[int, Meta(ge=16, le=100_000)] = 400, delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] = 0
) -> AsyncIterator[str | Progress | ToolResult]:
    """Stream a document back unchanged, paragraph by paragraph, reporting progress.

    Args:
        text: the document
        part: the most characters in one part; only longer paragraphs are cut, at a space
        delay_ms: milliseconds to wait between two parts, no more than 60 seconds in all
    """
    check_text(text)
    pieces = list(parts(text, part))
    if len(pieces) > MAX_PARTS:
        raise _fail(f"the text has {len(pieces)} parts; at most {MAX_PARTS} are streamed, so ask for larger ones", "too_many_parts")
    if len(pieces) * delay_ms > MAX_STREAM_SECONDS * 1000:
        raise _fail(f"{len(pieces)} parts at {delay_ms} ms take over {MAX_STREAM_SECONDS} s; lower delay_ms or raise part", "too_slow")
    done = reported = 0
    for index, piece in enumerate(pieces, 1):
        yield piece
        done += len(piece)
        if index == len(pieces) or (done - reported) * _PROGRESS_STEPS >= len(text):
            reported = done
            yield Progress(done, len(text), f"part {index} of {len(pieces)}")
        if delay_ms and index < len(pieces):
            await asyncio.sleep(delay_ms / 1000)
    yield ToolResult.ok({"parts": len(pieces), "characters": done})


@tool(category="data", groups=["text"], effect="read", timeout=30.0)
def text_summary(text: str, sentences: Annotated[int, Meta(ge=1, le=50)] = 5) -> Iterator[str | ToolResult]:
    """Summarise a text by its most telling sentences, quoted in their order.

    Args:
        text: the text to summarise
        sentences: how many sentences to quote
    """
    check_text(text)
    chosen, total = summary(text, sentences)
    for sentence in chosen:
        yield f"{sentence}\n"
    if not chosen:
        yield "The text has no sentences.\n"
    yield ToolResult.ok({"sentences": chosen, "total": total})


def _fail(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)


def _excerpt(line: str, at: int = 0) -> str:
    """Return a line, or the part of a long one around position ``at``."""
    if len(line) <= LINE_SHOWN:
        return line
    start = min(max(at - LINE_SHOWN // 2, 0), len(line) - LINE_SHOWN)
    end = start + LINE_SHOWN
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


def _outside_fences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a Markdown text outside of front matter and fenced code blocks."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    fence = ""
    start = 0
    if lines[0] == "---" and "---" in lines[1:]:
        start = lines.index("---", 1) + 1
    for number, line in enumerate(lines[start:], start + 1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and ("`" not in mark[2] or mark[1][0] == "~"):
            fence = mark[1]
        else:
            yield number, line


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[`*]++|(?<!\w)_++|_++(?!\w)", "", _LINK.sub(r"\1", text)).split())


def _ends_sentence(paragraph: str, start: int, stop: re.Match[str]) -> bool:
    if stop[0][0] in "。！？":
        return True
    follows = paragraph[stop.end() + 1 : stop.end() + 2]
    if follows.islower():
        return False
    before = paragraph[max(paragraph.rfind(" ", start, stop.start()) + 1, start) : stop.start()].lstrip("(\"'“‘[").lower()
    return not (stop[0].startswith(".") and (before in _ABBREVIATIONS or (len(before) == 1 and before.isalpha())))
