"""The part that is kept of a program's output."""

from __future__ import annotations

from toolbus.platform.coding.workspace import Output, Unread


def test_the_beginning_and_the_end_are_kept() -> None:
    """The beginning is passed on at once; of the rest the end is kept, and the number of what is missing."""
    output = Output(40)
    assert output.add("a" * 20) == "a" * 20
    assert output.add("b" * 20) == "b" * 10
    assert output.add("c" * 50) == ""
    assert output.add("d" * 5) == ""
    assert str(output) == "a" * 20 + "b" * 10 + "\n[… 55 characters left out …]\n" + "c" * 5 + "d" * 5


def test_short_output_is_kept_whole() -> None:
    """Nothing is said of a gap where there is none."""
    output = Output(40)
    output.add("one\n")
    assert str(output) == "one\n"
    assert output.rest == ""


def test_what_is_not_read_in_time_is_left_out() -> None:
    """Each reading gets what is new, at most so much."""
    unread = Unread(10)
    unread.add("0123456789ab")
    assert unread.take() == "[… 2 characters left out …]\n23456789ab"
    assert unread.take() == ""
    unread.add("new")
    assert unread.take() == "new"
