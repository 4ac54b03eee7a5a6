"""Recognise images and documents by their bytes, and tell whether a model's endpoint can read them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

UNKNOWN = "application/octet-stream"
"""The media type of bytes that are of no known kind."""

MOST_PIXELS = 8_000
"""Most pixels of an image's width and height that every provider takes."""

_PNG = b"\x89PNG\r\n\x1a\n"
# Bytes at both ends of a document in which its marks are.
_MARGIN = 1024
# The JPEG segments that say how large the image is; the others of their row are tables.
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def media_type_of(data: bytes) -> str:
    """Return the media type that the first bytes say, or ``UNKNOWN``."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    return UNKNOWN


def is_readable(media_type: str, data: bytes) -> bool:
    """Return whether these are whole bytes of an image or document that models' endpoints read.

    An endpoint refuses a conversation for one image that it can't read, and so all that would follow.
    """
    check = _CHECKS.get(media_type)
    return check is not None and media_type_of(data) == media_type and check(data)


def _fits(width: int, height: int) -> bool:
    return 0 < width <= MOST_PIXELS and 0 < height <= MOST_PIXELS


def _is_png(data: bytes) -> bool:
    place, seen = len(_PNG), False
    while place + 12 <= len(data):
        length, kind = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8]
        end = place + 8 + length
        body = data[place + 4 : end]
        if len(data) < end + 4 or zlib.crc32(body) != int.from_bytes(data[end : end + 4]):
            return False
        if place == len(_PNG) and (kind != b"IHDR" or not _fits(int.from_bytes(body[4:8]), int.from_bytes(body[8:12]))):
            return False
        if kind == b"IEND":
            return seen
        seen = seen or kind == b"IDAT"
        place = end + 4
    return False


def _is_jpeg(data: bytes) -> bool:
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        kind = data[place + 1]
        if kind == 0xFF:
            # Bytes that fill up.
            place += 1
            continue
        if kind in _JPEG_SIZES:
            height, width = int.from_bytes(data[place + 5 : place + 7]), int.from_bytes(data[place + 7 : place + 9])
            return _fits(width, height) and data.rfind(b"\xff\xd9", place) > 0
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False


def _is_gif(data: bytes) -> bool:
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    # Endpoints take no animations, which this extension repeats.
    return _fits(width, height) and data[-1:] == b";" and b"NETSCAPE2.0" not in data


def _is_webp(data: bytes) -> bool:
    if int.from_bytes(data[4:8], "little") + 8 != len(data) or len(data) < 30:
        return False
    kind = data[12:16]
    if kind == b"VP8 ":
        return _fits(int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF)
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return _fits((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    animated = data[20] & 2
    return kind == b"VP8X" and not animated and _fits(int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)


_CHECKS: Mapping[str, Callable[[bytes], bool]] = {
    "image/png": _is_png,
    "image/jpeg": _is_jpeg,
    "image/gif": _is_gif,
    "image/webp": _is_webp,
    "application/pdf": lambda data: b"%%EOF" in data[-_MARGIN:] and b"/Encrypt" not in data,
}

READABLE: frozenset[str] = frozenset(_CHECKS)
"""The media types that models' endpoints read."""
