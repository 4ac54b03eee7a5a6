"""Charsets: text from bytes that are encoded otherwise than they say."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolbus_workers.web.charset import decode

WORDS = "Grüße aus Köln, façade, 100 €"


@pytest.mark.parametrize("charset", ["utf-8", "windows-1252", "utf-16", "utf-16-le", "iso-8859-15", "gb18030"])
def test_what_is_declared_rightly_is_read(charset):
    """An honest header is all it takes."""
    assert decode(WORDS.replace("ö", "ä").encode(charset), charset) == WORDS.replace("ö", "ä")


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        ("Привет, мир", "windows-1251"),
        ("Привет, мир", "koi8-r"),
        ("こんにちは世界", "shift_jis"),
        ("こんにちは世界", "iso-2022-jp"),
        ("你好，世界", "gbk"),
        ("안녕하세요", "euc-kr"),
        ("你好", "big5"),
        ("αβγ", "iso-8859-7"),
    ],
)
def test_markup_may_declare_it(text, charset):
    """The charset may stand in a meta element, near the top."""
    page = f'<html><head><meta http-equiv="Content-Type" content="text/html; charset={charset}"></head><body>{text}'
    assert text in decode(page.encode(charset))


@pytest.mark.parametrize(
    "declared", ["iso-8859-1", "ascii", "windows-1251", "utf-16", "utf-8", "x-unknown", "", None, "punycode", "zlib", "undefined"]
)
def test_utf_8_is_recognised_under_any_name(declared):
    """Bytes that decode as UTF-8 are UTF-8, since other text hardly ever does."""
    assert decode(WORDS.encode(), declared) == WORDS


def test_latin_text_that_claims_to_be_utf_8_is_read_all_the_same():
    """The most frequent wrong encoding of all."""
    assert decode(WORDS.encode("windows-1252"), "utf-8") == WORDS


def test_a_few_broken_bytes_do_not_change_the_charset():
    """A long UTF-8 text with a broken character keeps all others."""
    text = decode((WORDS * 200).encode() + b"\xff" + b"Ende", "utf-8")
    assert text == WORDS * 200 + "\ufffdEnde"


def test_a_byte_order_mark_wins():
    """A byte order mark wins over the header, and is no part of the text."""
    for charset in ("utf-8-sig", "utf-16"):
        assert decode(WORDS.encode(charset), "windows-1251") == WORDS


@given(
    st.binary(max_size=300),
    st.none() | st.text(max_size=20) | st.sampled_from(["utf-8", "utf-16", "shift_jis", "iso-2022-jp", "gb18030", "cp1255"]),
)
def test_nothing_fails(body, declared):
    """Any bytes under any name are some text, which can be encoded again."""
    decode(body, declared).encode(errors="replace")


@pytest.mark.parametrize("body", [b"<meta " * 800_000, b"<meta charset=" * 300_000, b"\xff\x00" * 2_500_000, b"\x1b$B" * 1_600_000])
@pytest.mark.parametrize("declared", [None, "utf-8", "iso-2022-jp", "big5", "punycode"])
def test_hostile_bytes_take_no_time(body, declared):
    """Five megabytes of anything are read in about a second."""
    began = time.process_time()
    decode(body, declared)
    assert time.process_time() - began < 3
