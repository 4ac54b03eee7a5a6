"""Show untrusted text and values to a person so that no part is hidden, reordered or disguised."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import unicodedata
from typing import Any, NamedTuple

import msgspec

# Characters of a value that is shown in full, and most characters when it takes more to show every key.
_MOST = 4_000
_MOST_KEPT = 16_000
# Most combining marks on one character; more would cover the lines above and below.
_MOST_MARKS = 4
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
# Unicode's categories of controls, formats, halves of pairs, and line separators. Many languages need the two joiners.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_KEPT = frozenset("\n\t\u200c\u200d")
# Printable by their Unicode category, but invisible.
_WORD = re.compile(r"[^\W_]+")
# Letters that may look like one of ASCII; accented Latin letters stand before them, and the scripts of East Asia between them.
_OTHER_LETTERS = re.compile("[\u0250-\u2e7f\ua4d0-\uabff\ufb00-\ufdff\U00010000-\U0001ffff]")
# A shorter word is part of many languages, such as the Russian for "and".
_LEAST_IMITATED = 3
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


_UNREADABLE = "there are too many keys, or too long ones, for a person to read"


class TooMuch(ValueError):
    """A value can't be shown without leaving out keys."""


class _Layout(NamedTuple):
    """Limits on how much of each value is shown.

    Attributes:
        text: most characters of a text, or of an object or list that stays on one line.
        items: most items of a list.
        depth: most levels of objects and lists that are opened.
    """

    text: int
    items: int
    depth: int


# From the widest to the tightest; the first that fits is used.
_LAYOUTS = tuple(
    _Layout(*each)
    for each in ((1000, 200, 20), (300, 100, 20), (100, 50, 12), (100, 20, 8), (60, 10, 6), (40, 5, 4), (40, 3, 3), (40, 3, 2), (24, 0, 1))
)


def visible(text: str) -> str:
    """Return the text on one line, with every character that could hide, move or imitate other text written as a JSON escape.

    Letters imitate when they look like ASCII ones and stand in a word with Latin letters, as in ``paypal`` with two Cyrillic ones,
    or when a whole word looks like ASCII and no other word shows that the text is in their language. Which look alike is told by
    Unicode's table of confusable characters (https://www.unicode.org/reports/tr39/).
    """
    if text.isascii() and text.isprintable():
        return text
    if _OTHER_LETTERS.search(text) is not None:
        text = _WORD.sub(functools.partial(_unmasked, _tells_its_language(text)), text)
    made: list[str] = []
    marks = _MOST_MARKS  # full from the start: a leading mark would join the text before it
    for character in text:
        if unicodedata.category(character)[0] == "M" and not _BLANK.match(character):
            marks += 1
            made.append(character if marks <= _MOST_MARKS else _escaped(character))
            continue
        marks = 0 if character.isalnum() else _MOST_MARKS
        made.append(character if character.isprintable() and not _BLANK.match(character) else _escaped(character))
    return "".join(made)


@functools.lru_cache(4096)
def _imitates(letter: str) -> bool:
    from confusable_homoglyphs import confusables  # noqa: PLC0415 - its tables are only needed for text in other alphabets

    found = confusables.is_confusable(letter, preferred_aliases=[]) or ()
    return any(similar["c"].isascii() for each in found for similar in each["homoglyphs"])


def _is_cased(letter: str) -> bool:
    return unicodedata.category(letter) in {"Ll", "Lu"}


def _tells_its_language(text: str) -> bool:
    """Return whether a cased letter of another alphabet looks like no ASCII one."""
    return any(_is_cased(letter) and not _imitates(letter) for letter in _OTHER_LETTERS.findall(text))


def _unmasked(in_language: bool, word: re.Match[str]) -> str:
    """Return a word with the letters that imitate ASCII written as escapes."""
    letters = word[0]
    others = _OTHER_LETTERS.findall(letters)
    if not others:
        return letters
    if len(others) == len(letters):
        imitated = len(letters) >= _LEAST_IMITATED and not in_language
        masked = imitated and all(_is_cased(each) and _imitates(each) for each in others)
    else:
        masked = any("a" <= each.lower() <= "z" for each in letters)
    return _OTHER_LETTERS.sub(lambda each: _escaped(each[0]) if _imitates(each[0]) else each[0], letters) if masked else letters


def harmless(text: str) -> str:
    """Return a text of any length and language with what could command a terminal, or reorder or hide text, written as JSON escapes.

    Unlike ``visible``, it keeps line breaks, tabs, marks and joiners, and so pieces of a text can be shown one by one.
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.replace("\r\n", "\n")
    if text.isascii() and _CONTROLS.search(text) is None:
        return text
    return "".join(each if each in _KEPT or unicodedata.category(each) not in _HARMFUL else _escaped(each) for each in text)


def visible_lines(text: str) -> str:
    """Return the text like ``visible``, but keep its line breaks."""
    return "\n".join(map(visible, text.split("\n")))


def shortened(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` characters with a note of its length; lone surrogates, which can't travel, are replaced."""
    text = text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters, shortened)"
    return text.encode("utf-8", "replace").decode()


def one_line(text: str, most: int) -> str:
    """Return the text in one line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def readable(value: Any) -> tuple[str, bool]:
    """Return a JSON value as text for a person, and whether parts of it were shortened.

    Each note about shortening stands outside quotation marks, where no value can imitate it. Keys are never cut, but those of
    an object below the top level may be counted instead of shown.

    Raises:
        TooMuch: there are too many keys, or keys that are too long.
    """
    # A character takes at most four bytes.
    document = msgspec.json.encode(value)
    if len(document) <= 4 * _MOST:
        # What ``pretty`` writes, by a quicker writer.
        whole = visible_lines(msgspec.json.format(document, indent=2).decode())
        if len(whole) <= _MOST:
            return whole, False
    for layout in _LAYOUTS:
        with contextlib.suppress(TooMuch):
            return _Writer(layout, _MOST).written(value), True
    return _Writer(_LAYOUTS[-1], _MOST_KEPT).written(value), True


def pretty(value: Any) -> str:
    """Return a whole JSON value as text for a person."""
    return visible_lines(json.dumps(value, ensure_ascii=False, indent=2))


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _line(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False))


class _Writer:
    """Writes one value in one layout.

    Args:
        room: most characters before it raises ``TooMuch``.
    """

    def __init__(self, layout: _Layout, room: int) -> None:
        self._layout = layout
        self._room = room
        self._parts: list[str] = []

    def written(self, value: Any) -> str:
        """Return the text of ``value``.

        Raises:
            TooMuch: the text is too long.
        """
        self._write(value, 0)
        return "".join(self._parts)

    def _add(self, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise TooMuch(_UNREADABLE)
        self._parts.append(text)

    def _write(self, value: Any, level: int) -> None:
        layout = self._layout
        if isinstance(value, str):
            self._add(_text(value, layout.text))
        elif not isinstance(value, (dict, list)):
            self._add(_scalar(_line(value), layout.text))
        elif level and (size := len(msgspec.json.encode(value))) <= layout.text:
            self._add(_line(value))
        elif level >= layout.depth and level:
            self._add(f"{'{…}' if isinstance(value, dict) else '[…]'} ({_counted(value)}, {size:,} bytes, shortened)")
        else:
            self._write_parts(value, level)

    def _write_parts(self, value: dict[str, Any] | list[Any], level: int) -> None:
        is_object = isinstance(value, dict)
        brackets, margin = "{}" if is_object else "[]", f"\n{'  ' * (level + 1)}"
        # Keys are never left out.
        shown = [*value.items()] if isinstance(value, dict) else [("", part) for part in value[: self._layout.items]]
        opening = brackets[0]
        for key, part in shown:
            if len(key) > self._room:
                raise TooMuch(_UNREADABLE)
            self._add(f"{opening}{margin}{f'{_line(key)}: ' if is_object else ''}")
            self._write(part, level + 1)
            opening = ","
        if len(shown) < len(value):
            self._add(f"{opening}{margin}… ({len(shown):,} of {_counted(value)} shown, shortened)")
        self._add(f"\n{'  ' * level}{brackets[1]}" if value else brackets)


def _text(value: str, limit: int) -> str:
    if len(value) <= limit:
        return _line(value)
    tail = limit // 4
    return f"{_line(value[: limit - tail])} … {_line(value[-tail:])} ({len(value):,} characters, shortened)"


def _scalar(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit]}… ({len(line):,} digits, shortened)"


def _counted(value: dict[str, Any] | list[Any]) -> str:
    what = "key" if isinstance(value, dict) else "item"
    return f"{len(value):,} {what}{'' if len(value) == 1 else 's'}"
