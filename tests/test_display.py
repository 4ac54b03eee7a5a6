"""A person is shown every key, no more than can be read, and nothing that hides or imitates."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from toolbus.bus.support.display import TooMuch, harmless, pretty, readable, shortened, visible, visible_lines

MARK = "shortened)"


def test_what_is_short_is_json() -> None:
    """A value that can be read at a glance is shown unchanged."""
    value = {"a": [1, None, {"é": "猫"}], "b": "x\ny"}
    text, cut = readable(value)
    assert (json.loads(text), cut) == (value, False)
    assert text == pretty(value)


def test_values_are_shortened_and_keys_are_not() -> None:
    """With a long text before and a long one behind, what matters is there whole, and each shortened value says how long it is."""
    value = {"memo": "m" * 12_345, "account": "DE02 1203 0000 0000 2020 51", "amount": 99_999, "footer": "f" * 9_876}
    text, cut = readable(value)
    assert cut
    assert '\n  "account": "DE02 1203 0000 0000 2020 51",\n  "amount": 99999,\n' in text
    assert "(12,345 characters, shortened),\n" in text
    assert "(9,876 characters, shortened)\n}" in text
    assert len(text) <= 4_000


@pytest.mark.parametrize(
    "value",
    [
        {"a": "long " * 1000, "list": list(range(10_000)), "last": "seen"},
        {"rows": [{"id": number, "text": "t" * 300} for number in range(500)], "last": "seen"},
        {"deep": {"a": {"b": {"c": {f"k{number}": "v" * 99 for number in range(400)}}}}, "last": "seen"},
        {**{f"key{number}": "v" * 1000 for number in range(100)}, "last": "seen"},
        {"number": 10**18, "digits": [10**18] * 1000, "last": "seen"},
        {"hidden": "\u202e" * 5000, "last": "seen"},
    ],
    ids=["list", "objects", "deep", "many", "digits", "escapes"],
)
def test_every_argument_is_there(value: dict[str, Any]) -> None:
    """Each argument stands on its own line, within a limit, however large and deep the others are."""
    text, cut = readable(value)
    assert cut
    lines = text.split("\n")
    for key in value:
        assert sum(line.startswith(f'  "{key}": ') for line in lines) == 1, key
    assert lines[-2] == '  "last": "seen"'
    assert len(text) <= 16_000
    assert MARK in text


def test_what_is_left_out_of_a_list_or_an_object_is_counted() -> None:
    """A list says how many of its items are shown, and an object that is not opened how many keys it has."""
    assert "of 10,000 items shown, shortened)" in readable({"list": list(range(10_000))})[0]
    deep: dict[str, Any] = {f"k{number}": {f"n{number}": "v" * 90 for number in range(60)} for number in range(60)}
    assert "{…} (60 keys, " in readable({"deep": deep})[0]


@pytest.mark.parametrize(
    "value",
    [{f"key{number}": 1 for number in range(5_000)}, {"k" * 50_000: 1}, {f"{number}{'k' * 200}": 1 for number in range(200)}],
    ids=["many", "long", "many-long"],
)
def test_too_many_keys_are_refused(value: dict[str, Any]) -> None:
    """Keys that a person can't be shown are an error, never left out."""
    with pytest.raises(TooMuch):
        readable(value)


def test_a_value_can_not_imitate_the_mark() -> None:
    """The mark stands outside of the quotation marks, where no value can put it."""
    fake = 'Lorem" … "end" (12,345 characters, shortened)'
    text, _ = readable({"fake": fake, "long": "x" * 9000})
    [line] = [line for line in text.split("\n") if line.startswith('  "fake"')]
    assert json.loads(f"{{{line.rstrip(',')}}}") == {"fake": fake}
    [line] = [line for line in text.split("\n") if line.startswith('  "long"')]
    assert line.endswith('" (9,000 characters, shortened)')


def test_deep_values_are_opened_so_far() -> None:
    """Nesting is followed for some levels, and then counted."""
    value: Any = "x" * 5000
    for _ in range(500):
        value = {"a": value}
    text, cut = readable({"deep": value, "last": 1})
    assert cut
    assert "{…} (1 key, " in text
    assert '\n  "last": 1\n' in text


HIDING = ["\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x1b", "\x9b", "\x07", "\x7f", "\r", "\n", "\t", "\u2028", "\u0085"]
HIDING += ["\u3164", "\u2800", "\u115f", "\ufe0f", "\U000e0041", "\U000e0100", "\u034f", "\u3000", "\u00a0", "\ud800"]


@pytest.mark.parametrize("hiding", HIDING, ids=lambda hiding: f"{ord(hiding):x}")
def test_nothing_hides(hiding: str) -> None:
    """Text that commands a terminal, reverses text, ends the line, or can't be seen becomes an escape that JSON reads as the same."""
    shown = visible(f"a{hiding}b")
    assert hiding not in shown
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == f"a{hiding}b"
    if hiding != "\ud800":  # it can't travel
        assert hiding not in readable({"v": f"a{hiding}b"})[0].replace("\n", "", 2)


def test_marks_stay_on_their_character() -> None:
    """Accents are text; heaps of marks, and marks that would sit on a quotation mark, are written out."""
    for text in ("é", "e\u0301", "ễ", "नमस्ते", "ที่", "한국어", "日本"):
        assert visible(text) == text
    assert visible("\u0338a").startswith("\\u0338")
    assert '"\\u0338' in readable({"v": "\u0338"})[0]
    zalgo = visible("a" + "\u0301" * 50)
    assert sum(unicodedata.combining(character) > 0 for character in zalgo) <= 4


def test_lines_stay_lines() -> None:
    """Of a text of several lines each is made visible, and its end stays."""
    assert visible_lines("a\nb\u202e") == "a\nb\\u202e"


def test_what_is_cut_says_how_long_it_was() -> None:
    """A text that is too long for its place ends with its length."""
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 300, 256) == f"{'a' * 256}… (300 characters, shortened)"
    assert shortened("\ud800", 3) == "?"


def test_prose_stays_prose() -> None:
    """A text in any language is shown as it is, piece by piece; what commands a terminal or turns text is written out."""
    for text in ("a\n\tb", "e", "\u0301", "می\u200cخواهم", "नमस्ते", "👩\u200d💻", "日本"):
        assert harmless(text) == text
    assert harmless("a\r\nb") == "a\nb"
    for each in "\x00\x07\x1b\r\x7f\x9b\u202e\u2066\u200b\u2028\ufeff\ud800\U000e0041":
        assert harmless(f"ä{each}b") == f"ä{visible(each)}b" != f"ä{each}b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("p\u0430yp\u0430l", "p\\u0430yp\\u0430l"),
        ("pay@p\u0430ypal.example", "pay@p\\u0430ypal.example"),
        ("get_\u0440\u0430ul", "get_\\u0440\\u0430ul"),
        ("\u03a1AYPAL", "\\u03a1AYPAL"),
        ("p\u0251ypal", "p\\u0251ypal"),
        ("\u0440\u0430\u0443\u0440\u0430", "\\u0440\\u0430\\u0443\\u0440\\u0430"),
        ("\U0001d5c9\U0001d5ba\U0001d5d2", "\\ud835\\uddc9\\ud835\\uddba\\ud835\\uddd2"),
    ],
)
def test_letters_that_imitate_others_are_written_out(text: str, shown: str) -> None:
    """Cyrillic, Greek and other letters among Latin ones, and whole words that look like ASCII, in texts, values and keys."""
    assert visible(text) == shown
    assert visible_lines(f"a\n{text}") == f"a\n{shown}"
    for value in ({"to": text}, {text: 1}, [text], {"to": text, "memo": "m" * 12_345}):
        assert f'"{shown}"' in readable(value)[0]
    assert text not in pretty({text: text})


@pytest.mark.parametrize(
    "text",
    [
        "Оплатить счёт: сосна, оса и раса", "и", "Привет world", "iPhone-а", "Яndex", "支払いtool", "bezahlen_zurück_支払い",
        "ΔE, Ωm and αβγ", "μm", "kırmızı", "naïve", "سلام hello", "עברית", "ภาษาไทย", "한국어", "Հայերեն",
    ],
)  # fmt: skip
def test_words_of_every_language_are_kept(text: str) -> None:
    """Text that no reader takes for something else is shown as it is."""
    assert visible(text) == text
