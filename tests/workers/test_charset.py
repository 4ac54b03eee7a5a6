"""Charsets: text from bytes that are encoded otherwise than they say."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toolbus_workers.charset import codec_of, decode, guess, read_text

from toolbus import ToolError

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


@pytest.mark.few(5)
@pytest.mark.parametrize("body", [b"<meta " * 800_000, b"<meta charset=" * 300_000, b"\xff\x00" * 2_500_000, b"\x1b$B" * 1_600_000])
@pytest.mark.parametrize("declared", [None, "utf-8", "iso-2022-jp", "big5", "punycode"])
def test_hostile_bytes_take_no_time(body, declared):
    """Five megabytes of anything are read in about a second."""
    began = time.process_time()
    decode(body, declared)
    assert time.process_time() - began < 3


TABLES = {
    "gbk": "客户,金额\n北京,12\n上海,7\n",
    "big5": "客戶,金額\n台北,12\n高雄,7\n",
    "shift_jis": "顧客,金額\n東京,12\n大阪,7\n",
    "euc-jp": "顧客,金額\n東京タワー,12\nおおさか,7\n",
    "euc-kr": "고객,금액\n서울,12\n부산,7\n",
    "windows-1251": "клиент,сумма\nМосква,12\nКазань,7\n",
    "koi8-r": "клиент,сумма\nМосква,12\nКазань,7\n",
    "windows-1250": "zákazník,částka\nPříbram,12\n",
    "windows-1252": "Kunde,Größe\nMüller,12\nJäger,7\n",
    "windows-1253": "πελάτης,ποσό\nΑθήνα,12\n",
    "windows-1255": "לקוח,סכום\nירושלים,12\n",
    "windows-1256": "عميل,مبلغ\nالقاهرة,12\n",
    "windows-874": "ลูกค้า,จำนวน\nกรุงเทพ,12\n",
}


@pytest.mark.parametrize("encoding", TABLES)
def test_text_of_old_files_is_read_as_what_it_is_and_says_what_was_assumed(encoding):
    """Short tables of every alphabet are found out, alone and behind much ASCII."""
    codec, text = codec_of(encoding), TABLES[encoding]
    for whole in (text, "id,name\n" * 20_000 + text):
        found = read_text(whole.encode(codec))
        assert found.text == whole
        assert found.assumed
        assert read_text(whole.encode(codec), encoding) == (whole, "")


@pytest.mark.parametrize("content", ["José García".encode("cp1252"), b"a,b\xe9\n", bytes(range(128, 256)) * 3])
def test_text_that_may_be_several_things_is_refused(content):
    """Text that another encoding reads nearly as well is refused, and the error says what to give."""
    assert guess(content) is None or read_text(content).text
    if guess(content) is None:
        with pytest.raises(ToolError, match="give its encoding"):
            read_text(content)


@pytest.mark.parametrize(
    ("content", "encoding"), [("п".encode("cp1251"), "utf-8"), (b"a", "punycode"), (b"a", "nonsense"), (b"\xff", "gbk")]
)
def test_an_encoding_that_does_not_fit_is_refused(content, encoding):
    """A wrong or unknown name is an error that names it."""
    with pytest.raises(ToolError, match=encoding):
        read_text(content, encoding)
