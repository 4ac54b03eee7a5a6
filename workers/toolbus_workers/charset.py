"""Decode bytes to text when no declaration of their encoding can be trusted."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from toolbus import ToolError

# A codec is only looked up when its name has this form. Python has codecs that are no charsets, some of them extremely slow
# (punycode), and it remembers every name that it was asked for.
_KNOWN = re.compile(
    r"utf-?(?:8|16(?:-?[lb]e)?|32(?:-?[lb]e)?)|(?:us-)?ascii|latin-?1|iso-?8859-?(?:[1-9]|1[0134-6])|(?:windows-?|cp-?)(?:125[0-8]|874|866|932|936|949|950)"
    r"|koi8-?[ru]|gbk|gb-?2312|gb-?18030|big5(?:-?hkscs)?|shift-?jis|sjis|euc-?(?:jp|kr)|iso-2022-(?:jp|kr)|ks-c-5601-1987|tis-620|macintosh"
)
# Names that the Web uses and Python does not, or with another meaning; browsers also read these as the larger set.
_MEANT = {
    "ascii": "cp1252", "us-ascii": "cp1252", "latin1": "cp1252", "latin-1": "cp1252", "iso-8859-1": "cp1252", "iso8859-1": "cp1252",
    "gb2312": "gb18030", "gb-2312": "gb18030", "gbk": "gb18030", "windows-936": "gb18030", "cp936": "gb18030",
    "shift-jis": "cp932", "sjis": "cp932", "windows-932": "cp932", "ks-c-5601-1987": "cp949", "euc-kr": "cp949", "windows-949": "cp949",
    "windows-874": "cp874", "iso-8859-11": "cp874", "tis-620": "cp874", "macintosh": "mac-roman",
}  # fmt: skip
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
# In these charsets every sequence of bytes is valid, so successful decoding proves nothing.
_SINGLE_BYTE = ("cp12", "cp8", "iso8859", "koi8", "mac")
# In these every even number of bytes is valid; but a document has spaces or line ends, which contain zero bytes here.
_WIDE = ("utf-16", "utf-32")
_DECLARED = re.compile(
    rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""", re.IGNORECASE
)
_SEARCHED = 4_096
_FEW = 1_000
# What is looked for in bytes that name no encoding: those that are found in old files, one for each alphabet and system.
_LOOKED_FOR = (
    "gb18030", "big5", "cp932", "euc-jp", "cp949", "koi8-r", "cp866", "cp874", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255",
    "cp1256", "cp1257",
)  # fmt: skip
_LOOKED_AT = 1_000_000
# UTF-8 with one damaged character among so many others is still UTF-8.
_FEW_OF_THEM = 50
# Another reading this likely, relative to the best one, makes the best one no more than a guess.
_UNSURE = 0.75


class Text(NamedTuple):
    """Decoded text, and the encoding that was assumed because the bytes do not tell it; empty when they do."""

    text: str
    assumed: str = ""


def read_text(content: bytes, encoding: str = "") -> Text:
    """Return bytes as text, in the given encoding or in the first that fits: their byte order mark's, UTF-8, their markup's, the likeliest.

    Raises:
        ToolError: the encoding has no such name, the bytes are not text in it, or several encodings are as likely.
    """
    if encoding:
        try:
            return Text(content.decode(codec_of(encoding)).removeprefix("\ufeff"))
        except UnicodeDecodeError as error:
            raise _refused(f"byte {error.start} is no {encoding}; give another encoding") from None
    for mark, charset in _BOMS:
        if content.startswith(mark):
            return Text(content[len(mark) :].decode(charset, "replace"))
    try:
        return Text(content.decode())
    except UnicodeDecodeError:
        named = _codec(_in_markup(content))
    if named is not None and named != "utf-8":
        return Text(content.decode(named, "replace"))
    assumed = likeliest(content)
    return Text(content.decode(assumed, "replace"), "" if assumed == "utf-8" else assumed)


def codec_of(encoding: str) -> str:
    """Return Python's name of an encoding that a user names.

    Raises:
        ToolError: there is no such encoding.
    """
    codec = _codec(encoding)
    if codec is None:
        raise _refused(f"the encoding {encoding[:40]!r} is unknown; give a name such as utf-8, windows-1251, gbk or shift_jis")
    return codec


def likeliest(content: bytes) -> str:
    """Return the encoding in which bytes are most likely text.

    Raises:
        ToolError: several are as likely.
    """
    found = guess(content)
    if found is None:
        raise _refused("the text is not UTF-8, and its bytes do not tell what it is; give its encoding, for example windows-1252 or gbk")
    return found


def guess(content: bytes) -> str | None:
    """Return the encoding in which bytes are most likely text, or None when another one is nearly as likely.

    Bytes that are UTF-8 but for a few damaged characters are UTF-8.

    Raises:
        ToolError: the package that looks for encodings is not installed.
    """
    # ASCII says nothing, and much of it hides the little that does.
    sample = b"\n".join(line for line in content.split(b"\n") if not line.isascii())[:_LOOKED_AT]
    text = sample.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    if damaged * _FEW_OF_THEM <= sum(character > "\x7f" for character in text) - damaged:
        return "utf-8"
    try:
        import chardet  # noqa: PLC0415 - only text that is not UTF-8 needs it
    except ImportError:
        raise ToolError(
            "the text is not UTF-8; give its encoding, or install chardet in the worker", type="invalid_arguments", code="bad_encoding"
        ) from None
    readings = {
        name: each["confidence"] for each in chardet.detect_all(sample, include_encodings=_LOOKED_FOR) if (name := each["encoding"])
    }
    if not readings:
        return None
    best = max(readings, key=readings.__getitem__)
    text = sample.decode(best, "replace")
    for other, confidence in readings.items():
        if confidence > readings[best] * _UNSURE and sample.decode(other, "replace") != text:
            return None
    # Many encodings differ in few characters; the most usual one is named when it says the same.
    return "cp1252" if sample.decode("cp1252", "replace") == text else codecs.lookup(best).name


def decode(body: bytes, declared: str | None = None) -> str:
    """Return the text of a document; never fails, whatever its headers, markup and bytes contain.

    A byte order mark decides. Otherwise the first charset that decodes without an error is used, UTF-8 before single-byte charsets,
    in which every byte is valid. If a charset fails in a few places, those become U+FFFD.
    """
    for mark, charset in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(charset, "replace")
    named = _codec(declared) or _codec(_in_markup(body))
    if named and named.startswith(_WIDE) and b"\0" not in body[:_SEARCHED]:
        named = None
    candidates = [named, "utf-8"] if named and not named.startswith(_SINGLE_BYTE) else ["utf-8", named]
    for candidate in candidates:
        if candidate:
            try:
                return body.decode(candidate)
            except UnicodeDecodeError:
                continue
    text = body.decode(named or "utf-8", "replace")
    if text.count("\ufffd") * _FEW <= len(text) + _FEW or (named and named.startswith(_SINGLE_BYTE)):
        return text
    return body.decode(guess(body) or "cp1252", "replace")


def _refused(message: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code="bad_encoding")


def _in_markup(body: bytes) -> str | None:
    found = _DECLARED.search(body[:_SEARCHED])
    charset = (found[1] or found[2]).decode("ascii", "ignore") if found else None
    # A parser that could read the declaration was not reading UTF-16.
    return "utf-8" if charset and charset.lower().startswith(("utf-16", "utf-32")) else charset


def _codec(label: str | None) -> str | None:
    name = (label or "").strip().strip("\"'").lower().replace("_", "-")
    if not _KNOWN.fullmatch(name):
        return None
    try:
        return codecs.lookup(_MEANT.get(name, name).replace("windows-", "cp")).name
    except LookupError:
        return None
