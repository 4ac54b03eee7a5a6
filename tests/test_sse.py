"""The reader of server-sent events, on streams cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.outbound import EventReader


def read(*chunks: bytes) -> list[str]:
    """All data of a stream."""
    reader = EventReader()
    return [event.data for event in [*(each for chunk in chunks for each in reader.feed(chunk)), *reader.end()]]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_any_line_end_ends_a_line(end: bytes) -> None:
    """LF, CRLF and CR end lines alike, and an empty line ends an event."""
    assert read(end.join([b"data: a", b"", b"data: b", b"", b""])) == ["a", "b"]


def test_what_is_no_data_is_passed_over() -> None:
    """Comments, other fields, a byte order mark and events without data are no data."""
    assert read(b"\xef\xbb\xbfdata:a\n\n: ping\n\nevent: x\nid: 1\n\nretry: 5\ndata:  b\n\n") == ["a", " b"]


def test_lines_of_one_event_are_joined() -> None:
    """Several data lines of one event are one text with line breaks."""
    assert read(b"data: a\ndata\ndata: b\n\n") == ["a\n\nb"]


def test_the_end_completes_an_event() -> None:
    """An event whose empty line is missing at the end of the stream counts."""
    assert read(b"data: a\n\ndata: [DONE]") == ["a", "[DONE]"]


@given(st.lists(st.integers(1, 12), max_size=40))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """Wherever the stream is cut, within characters and line ends too, the events are the same."""
    stream = "data: grüß 茶\r\n\r\n: x\rdata: a\r\ndata: b\n\ndata: c\r\r".encode()
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(stream[at : at + cut])
        at += cut
    assert read(*chunks, stream[at:]) == ["grüß 茶", "a\nb", "c"]


@pytest.mark.parametrize("chunk", [b"x" * 10, b"data: x\n"])
def test_an_endless_event_is_refused(chunk: bytes) -> None:
    """An event above the limit is an error, whether of one line or of many."""
    reader = EventReader(limit=100)

    def endless() -> None:
        for _ in range(120):
            reader.feed(chunk)

    with pytest.raises(ValueError, match="more than 100 bytes"):
        endless()


def test_an_event_has_its_name() -> None:
    """The name of an event is its own, and the next one has none."""
    reader = EventReader()
    events = reader.feed(b"event: progress\ndata: 1\n\nevent: lost\n\ndata: 2\n\n")
    assert [(event.name, event.data) for event in events] == [("progress", "1"), ("", "2")]
