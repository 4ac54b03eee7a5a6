"""Small images and documents of the kinds that models' endpoints read."""

from __future__ import annotations

import zlib


def png(width: int = 2, height: int = 2, colour: int = 200) -> bytes:
    """Return a grey PNG image."""
    rows = zlib.compress((b"\0" + bytes([colour]) * min(width, 64)) * min(height, 64))
    header = width.to_bytes(4) + height.to_bytes(4) + b"\x08\0\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)


def gif(width: int = 1, height: int = 1, more: bytes = b"") -> bytes:
    """Return a GIF image."""
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little") + b"\0\0\0" + more + b",\0\0\0\0\1\0\1\0\0\2\2D\1\0;"


def jpeg(width: int = 1, height: int = 1) -> bytes:
    """Return the segments of a JPEG image that tell its size, and its end."""
    table = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
    size = b"\xff\xc0\0\x0b\x08" + height.to_bytes(2) + width.to_bytes(2) + b"\1\1\x11\0"
    return b"\xff\xd8" + table + b"\xff" + size + b"\xff\xda\0\x08\1\1\0\0\x3f\0\xd2\xcf\xff\xd9"


def webp(kind: bytes = b"VP8L", width: int = 1, height: int = 1, *, animated: bool = False) -> bytes:
    """Return the head of a WebP image of one of the three kinds, filled up."""
    if kind == b"VP8L":
        body = b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
    elif kind == b"VP8 ":
        body = b"\x30\1\0\x9d\x01\x2a" + width.to_bytes(2, "little") + height.to_bytes(2, "little")
    else:
        body = (2 if animated else 0).to_bytes(4, "little") + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    inner = b"WEBP" + kind + len(body).to_bytes(4, "little") + body + bytes(16)
    return b"RIFF" + len(inner).to_bytes(4, "little") + inner


def pdf(more: bytes = b"") -> bytes:
    """Return an empty PDF document."""
    return b"%PDF-1.4\n1 0 obj\n<</Type/Catalog" + more + b">>\nendobj\ntrailer\n<</Root 1 0 R>>\nstartxref\n0\n%%EOF\n"
