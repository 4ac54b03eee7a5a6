"""``text_process``: common operations on a text in one tool; ``toolbus_workers.text`` has tools that stream.

``toolbus worker text_process`` serves it. Every operation is linear in the text's length.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from toolbus import ToolError, ToolResult, tool
from toolbus_workers.text import check_text, frequencies, sentences, summary, words

MAX_RESULT = 2_000_000
MAX_FOUND = 1_000
SUMMARY_SENTENCES = 5
TOP_WORDS = 20

Operation = Literal[
    "upper", "lower", "title", "trim", "clean", "ascii", "sort_lines", "unique_lines", "reverse_lines", "number_lines",
    "replace", "count", "words", "summary", "emails", "urls", "numbers",
]  # fmt: skip

# Each repetition is bounded or possessive, so that no text makes these patterns slow.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")
_URL = re.compile(r"https?://[^\s<>\"'\])}]{1,2000}+")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d{1,40}+(?:,\d{3})*+(?:\.\d{1,40}+)?+(?:[eE][-+]?\d{1,4}+)?+(?!\w)")


@tool(category="data", groups=["text"], effect="read", timeout=30.0)
def text_process(text: str, operation: Operation, find: str = "", replace_with: str = "") -> ToolResult:
    """Change a text, count it, or find things in it.

    Operations that change it: upper, lower, title, trim (spaces at line ends and around), clean (runs of spaces and
    empty lines), ascii (letters without accents), sort_lines, unique_lines, reverse_lines, number_lines, replace.
    Others: count (characters, words, lines, sentences), words (the most frequent), summary, emails, urls, numbers.

    Args:
        text: the text
        operation: what to do with it
        find: for replace, the text to look for, literally
        replace_with: for replace, what to put in its place
    """
    check_text(text)
    if operation == "replace":
        result: Any = _replaced(text, find, replace_with)
    elif operation in _CHANGES:
        result = _CHANGES[operation](text)
    elif operation in _PATTERNS:
        result = _found(_PATTERNS[operation], text)
    else:
        result = _OTHERS[operation](text)
    if isinstance(result, str):
        return ToolResult.ok({"operation": operation, "result": result}, output=result)
    return ToolResult.ok({"operation": operation, "result": result}, output=_listed(result))


def _replaced(text: str, find: str, replace_with: str) -> str:
    if not find:
        raise ToolError("replace needs the text to look for in find", type="invalid_arguments", code="bad_find")
    size = len(text) + text.count(find) * (len(replace_with) - len(find))
    if size > MAX_RESULT:
        message = f"the result would have {size:,} characters; at most {MAX_RESULT:,} are allowed: look for something longer"
        raise ToolError(message, type="invalid_arguments", code="too_large")
    return text.replace(find, replace_with)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def _cleaned(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for at, line in enumerate(lines) if line or (at and lines[at - 1])).strip()


def _ascii(text: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def _numbered(text: str) -> str:
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(text.splitlines(), 1))


def _counted(text: str) -> dict[str, int]:
    lines = text.splitlines()
    return {"characters": len(text), "words": len(words(text)), "lines": len(lines), "sentences": sum(1 for _ in sentences(text))}


def _frequent(text: str) -> dict[str, int]:
    ranked = sorted(frequencies(text).items(), key=lambda item: (-item[1], item[0]))
    return dict(ranked[:TOP_WORDS])


def _found(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the matches without duplicates, in order."""
    found: dict[str, None] = {}
    for match in pattern.finditer(text):
        found[match[0].rstrip(".,;:!?")] = None
        if len(found) == MAX_FOUND:
            break
    return list(found)


def _listed(result: list[str] | dict[str, int]) -> str:
    if not result:
        return "Nothing was found."
    if isinstance(result, dict):
        return "\n".join(f"{name}: {count}" for name, count in result.items())
    return "\n".join(result) + (f"\n(only the first {MAX_FOUND} are listed)" if len(result) == MAX_FOUND else "")


_CHANGES: Mapping[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "trim": _trimmed,
    "clean": _cleaned,
    "ascii": _ascii,
    "sort_lines": lambda text: "\n".join(sorted(text.splitlines())),
    "unique_lines": lambda text: "\n".join(dict.fromkeys(text.splitlines())),
    "reverse_lines": lambda text: "\n".join(reversed(text.splitlines())),
    "number_lines": _numbered,
}

_PATTERNS: Mapping[str, re.Pattern[str]] = {"emails": _EMAIL, "urls": _URL, "numbers": _NUMBER}

_OTHERS: Mapping[str, Callable[[str], str | dict[str, int]]] = {
    "count": _counted,
    "words": _frequent,
    "summary": lambda text: "\n".join(summary(text, SUMMARY_SENTENCES)[0]),
}

OPERATIONS: tuple[str, ...] = get_args(Operation)
