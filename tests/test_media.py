"""Recognising images and documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pictures import gif, jpeg, pdf, png, webp
from toolbus.bus.values.media import MOST_PIXELS, READABLE, UNKNOWN, is_readable, media_type_of

WHOLE = {"image/png": png(), "image/jpeg": jpeg(), "image/gif": gif(), "image/webp": webp(), "application/pdf": pdf()}
TOO_WIDE = MOST_PIXELS + 1


def test_every_readable_kind_is_recognised() -> None:
    """There is an example of each readable media type, and its bytes tell the type."""
    assert WHOLE.keys() == READABLE
    for kind, data in WHOLE.items():
        assert media_type_of(data) == kind
        assert is_readable(kind, data)


@pytest.mark.parametrize("kind", sorted(WHOLE))
def test_cut_bytes_are_not_readable(kind: str) -> None:
    """An image or document that ends too early is not readable, wherever it was cut."""
    data = WHOLE[kind].rstrip()
    assert not [length for length in range(len(data)) if is_readable(kind, data[:length])]


@pytest.mark.parametrize("kind", sorted(WHOLE))
def test_the_media_type_must_be_that_of_the_bytes(kind: str) -> None:
    """An image is not readable under the media type of another kind."""
    assert not [other for other in (*WHOLE, "image/svg+xml", "text/plain", "") if other != kind and is_readable(other, WHOLE[kind])]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image/png", png(TOO_WIDE, 1)),
        ("image/png", png(1, TOO_WIDE)),
        ("image/png", png(0, 1)),
        ("image/png", png().replace(b"IDAT", b"IDAX")),
        ("image/jpeg", jpeg(TOO_WIDE, 1)),
        ("image/jpeg", jpeg(1, 0)),
        ("image/gif", gif(TOO_WIDE, 1)),
        ("image/gif", gif(more=b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0")),
        ("image/webp", webp(b"VP8L", TOO_WIDE, 1)),
        ("image/webp", webp(b"VP8 ", TOO_WIDE, 1)),
        ("image/webp", webp(b"VP8X", 1, TOO_WIDE)),
        ("image/webp", webp(b"VP8X", animated=True)),
        ("application/pdf", pdf(b"/Encrypt 2 0 R")),
    ],
)
def test_what_endpoints_refuse_is_not_readable(kind: str, data: bytes) -> None:
    """Images that are too large, empty, broken or animated, and encrypted documents, are not readable."""
    assert media_type_of(data) == kind
    assert not is_readable(kind, data)


@pytest.mark.parametrize("kind", [b"VP8L", b"VP8 ", b"VP8X"])
def test_every_kind_of_webp_is_read(kind: bytes) -> None:
    """The size of a WebP image is found in each of its three forms."""
    assert is_readable("image/webp", webp(kind, MOST_PIXELS, 3))


@given(st.sampled_from(sorted(WHOLE)), st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_are_answered(kind: str, more: bytes, kept: int) -> None:
    """No bytes make it raise, or take long."""
    data = WHOLE[kind][:kept] + more
    assert media_type_of(data) in {*READABLE, UNKNOWN}
    assert is_readable(kind, data) in {True, False}
