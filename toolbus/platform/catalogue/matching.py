"""Match an item of a catalogue with a tool or a group, and say why."""

from __future__ import annotations

import re
from collections.abc import Iterable

from toolbus.client.tools.groups import ToolGroup
from toolbus.platform.catalogue.items import Item
from toolbus.platform.records import RecordedTool

_WORD = re.compile(r"\w+")
_LEAST_NAME = 3
# What a name says before the thing itself, as in "runcomfy".
_VERBS = ("run", "launch")
_LEAST_THING = 5
_LEAST_WORD = 4
# Shared keywords that make a match: with the same category, and without one.
_SHARED_WITH_CATEGORY, _SHARED_ALONE = 2, 4
_SHARE_ALONE = 0.5
# Words that say nothing of a tool.
_COMMON = frozenset(
    {
        "about", "after", "also", "another", "answer", "answers", "before", "been", "being", "both", "call", "called", "calls",
        "data", "does", "each", "every", "from", "given", "gives", "have", "into", "item", "items", "made", "make", "makes",
        "many", "more", "most", "only", "other", "others", "over", "result", "results", "return", "returns", "same", "some",
        "such", "than", "that", "their", "them", "then", "there", "these", "they", "this", "tool", "tools", "used", "user",
        "users", "uses", "using", "value", "values", "very", "want", "what", "when", "where", "which", "while", "will", "with",
        "without", "would", "your",
    }
)  # fmt: skip


def match_tool(item: Item, tool: RecordedTool) -> str:
    """Return why an item is a tool, or an empty text when it is not."""
    meta = tool.meta
    return _by_name(item, meta.tool_id, meta.name) or _by_words(item, f"{meta.name} {meta.description}", meta.category)


def match_group(item: Item, group: ToolGroup) -> str:
    """Return why an item is a group of tools, or an empty text when it is not."""
    return _by_name(item, group.group_id, group.name) or _by_words(item, f"{group.name} {group.description}", group.category)


def _by_name(item: Item, name: str, title: str) -> str:
    for said, what in ((item.slug, "slug"), (item.title, "title")):
        sought = _plain(said)
        if len(sought) < _LEAST_NAME:
            continue
        things = {sought, *(thing for verb in _VERBS if len(thing := sought.removeprefix(verb)) >= _LEAST_THING)}
        for text, where in ((name, "id"), (title, "name")):
            if any(f" {each} " in f" {_plain(text)} " for each in things):
                return f"its {what} {said!r} is in the {where} {text!r}"
    return ""


def _by_words(item: Item, text: str, category: str) -> str:
    wanted = _keywords([*item.keywords, *([] if item.keywords else [item.title, item.description])])
    shared = sorted(wanted & _keywords([text]))
    same = bool(item.category) and item.category.casefold() == category.casefold()
    if same and len(shared) >= _SHARED_WITH_CATEGORY:
        return f"the category {category!r} and the keywords {', '.join(shared[:6])} of the description"
    differ = bool(item.category) and bool(category) and not same
    if not differ and len(shared) >= _SHARED_ALONE and len(shared) >= _SHARE_ALONE * len(wanted):
        return f"the keywords {', '.join(shared[:6])} of the description"
    return ""


def _plain(text: str) -> str:
    """Return the words of a text, so that ``image-stitcher`` is ``Image Stitcher``."""
    return " ".join(_WORD.findall(text.casefold().replace("_", " ")))


def _keywords(texts: Iterable[str]) -> set[str]:
    words = {word for text in texts for word in _plain(text).split()}
    # A plural is its word.
    return {word.removesuffix("s") for word in words if len(word) >= _LEAST_WORD} - _COMMON - {word.removesuffix("s") for word in _COMMON}
