"""Decode bytes to text when no declaration of their encoding can be trusted."""

from __future__ import annotations

import codecs
import re

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
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# In these charsets every sequence of bytes is valid, so successful decoding proves nothing.
_SINGLE_BYTE = ("cp12", "cp8", "iso8859", "koi8", "mac")
# In these every even number of bytes is valid; but a document has spaces or line ends, which contain zero bytes here.
_WIDE = ("utf-16", "utf-32")
_DECLARED = re.compile(
    rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]{1,40})|<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""", re.IGNORECASE
)
_SEARCHED = 4_096
_FEW = 1_000


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
    return body.decode("cp1252", "replace")


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
