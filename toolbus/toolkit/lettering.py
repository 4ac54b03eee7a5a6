"""Letter a picture: find fonts for every character, and fit names into boxes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from matplotlib import font_manager
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

from toolbus.display import harmless

BASE = "DejaVu Sans"
"""The font that comes with matplotlib."""

# Fonts with further scripts, as systems have them; the first installed one with a character is used.
_FURTHER = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR", "Source Han Sans SC", "Source Han Sans",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo",
    "Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Noto Sans", "Noto Sans Thai", "Noto Sans Devanagari",
    "Noto Sans Arabic", "Noto Sans Hebrew", "Leelawadee UI", "Nirmala UI", "Noto Emoji", "Segoe UI Symbol", "Segoe UI Emoji",
)  # fmt: skip

MISSING = "□"
"""The character that stands for one that no installed font has."""

SIZE = 8.0
_SMALLEST = 6.5
_DPI = 72.0


@functools.cache
def families() -> tuple[str, ...]:
    """Return the fonts to letter with, the base font first."""
    installed = {each.name for each in font_manager.fontManager.ttflist}
    return (BASE, *(name for name in _FURTHER if name in installed))


def missing(texts: Iterable[str]) -> list[str]:
    """Return the characters of some texts that no font has, sorted."""
    return sorted(character for character in set().union(*texts) if not _has(character))


def plain(text: str) -> str:
    """Return a text in one line, with what is invisible written out."""
    return harmless(" ".join(text.split()))


def fitted(name: str, width: float) -> tuple[str, float]:
    """Return a name as it stands in a box, and its size in points: smaller, in two lines, or cut.

    Args:
        name: one line.
        width: points of a line in the box.
    """
    for size in (SIZE, _SMALLEST):
        if _wide(name, size) <= width:
            return name, size
    first = _longest(name, width)
    # Names are parted at their words, if a word ends in the second half of the line.
    at = max(first.rfind(mark) + 1 for mark in " _-./")
    head = first[:at] if at > len(first) // 2 else first
    rest = name[len(head) :].lstrip()
    if _wide(rest, _SMALLEST) > width:
        rest = _longest(rest, width - _wide("…", _SMALLEST)).rstrip() + "…"
    return f"{head.rstrip(' ')}\n{rest}", _SMALLEST


def _longest(text: str, width: float) -> str:
    """Return the longest beginning that fits at the smallest size; at least one character."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if _wide(text[:middle], _SMALLEST) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _wide(text: str, size: float) -> float:
    prop = FontProperties(family=list(families()), size=size)
    return float(_renderer().get_text_width_height_descent(text, prop, ismath=False)[0])


@functools.cache
def _renderer() -> Any:
    make: Any = RendererAgg
    return make(1, 1, _DPI)


@functools.lru_cache(65_536)
def _has(character: str) -> bool:
    return any(_font(family).get_char_index(ord(character)) for family in families())


@functools.cache
def _font(family: str) -> Any:
    return font_manager.get_font(font_manager.findfont(FontProperties(family=family)))
