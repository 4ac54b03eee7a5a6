"""The frames of several runs of one call reassembled: a rerun is invisible while it is the same, else a Reset precedes it."""

from __future__ import annotations

import itertools

import pytest

from tests.client.frames import ONE, TWO, Item, fed, kinds, result, run, seen
from toolbus import Blob, ErrorInfo, Progress
from toolbus.bus.values.envelope import Confirm, Frame
from toolbus.bus.values.events import Asked, Reset, Started, Text


@pytest.mark.parametrize("chunks", [("abc", "def"), ("a", "b", "c", "d", "e", "f"), ("abcdef",), ("ab", "cdef")])
def test_an_identical_rerun_is_invisible(chunks: tuple[str, ...]) -> None:
    """However the second run cuts its text, the caller reads on where the first one stopped."""
    events = fed(*run(1, "ab", "c", end=False), *run(2, *chunks))
    assert Reset not in kinds(events)
    assert kinds(events).count(Started) == 1
    assert seen(events)[0] == result(events).output == "abcdef"
    assert result(events).meta.attempts == 2


@pytest.mark.parametrize("second", ["abX", "a", "", "Xbcdef", "abX" * 9])
def test_a_different_or_shorter_rerun_resets(second: str) -> None:
    """A Reset precedes the whole text of a rerun whose text differs from the delivered one."""
    events = fed(*run(1, "abc", end=False), *run(2, *([second] if second else [])))
    assert kinds(events).count(Reset) == 1
    assert seen(events)[0] == result(events).output == second


@pytest.mark.parametrize("pieces", [(1_000_000, 900_000, 1_000_001), (2_900_001,), (1,) * 2_000 + (2_898_001,)])
def test_a_text_of_any_length_is_compared(pieces: tuple[int, ...]) -> None:
    """Millions of characters are said again without a reset, however they are cut, and a difference at their end is seen."""
    text = "".join(f"{number} " for number in range(500_000))[:2_900_001]
    cuts = [*itertools.accumulate(pieces, initial=0)]
    again = [text[start:end] for start, end in itertools.pairwise(cuts)]
    first = run(1, *(text[start : start + 70_000] for start in range(0, len(text), 70_000)), end=False)
    events = fed(*first, *run(2, *again, "more"))
    assert Reset not in kinds(events)
    assert seen(events)[0] == result(events).output == text + "more"
    events = fed(*first, *run(2, *again[:-1], again[-1][:-1] + "X"))
    assert kinds(events).count(Reset) == 1
    assert seen(events)[0] == result(events).output == text[:-1] + "X"


def test_late_frames_of_a_replaced_run_are_dropped() -> None:
    """A paused worker that goes on writing is not heard, whatever attempt its frames claim."""
    old, new = run(1, "a", "b", "c"), run(2, "a", "b")
    events = fed(old[0], new[0], old[1], new[1], *old[2:], new[2])
    assert (seen(events)[0], result(events).output) == ("ab", "ab")
    stale = run(1, "z", token="older")
    assert seen(fed(*new[:2], *stale, *new[2:]))[0] == "ab"


def test_a_failing_rerun_keeps_what_was_delivered() -> None:
    """The text of an earlier run stays as the partial output of a failure."""
    finished = result(fed(*run(1, "abc", ONE, end=False), *run(2, "ab", error=ErrorInfo("tool_error"))))
    assert (finished.success, finished.output, finished.content) == (False, "abc", (ONE,))


@pytest.mark.parametrize(
    ("first", "second", "resets"),
    [
        (("a", ONE), ("a", ONE, TWO), 0),
        (("a", ONE), ("a", TWO), 1),
        (("a", ONE), ("a",), 1),
        ((ONE,), (), 1),
        ((ONE, TWO), (ONE,), 1),
        ((ONE, "ab"), (ONE, "x"), 1),
        (("ab",), ("a", ONE, "b"), 0),
        (("ab", ONE), ("a", TWO, "b"), 1),
    ],
)
def test_blobs_are_compared_too(first: tuple[Item, ...], second: tuple[Item, ...], resets: int) -> None:
    """A rerun's blobs are delivered once when they are the same, and after a Reset when they are not."""
    events = fed(*run(1, *first, end=False), *run(2, *second))
    assert kinds(events).count(Reset) == resets
    text = "".join(item for item in second if isinstance(item, str))
    blobs = [item for item in second if isinstance(item, Blob)]
    assert seen(events) == (text, blobs)
    assert (result(events).output, list(result(events).content)) == (text, blobs)


def test_a_blob_cut_off_by_a_crash_starts_anew() -> None:
    """Half a blob of a dead run is not glued to the next run's."""
    half = Frame("call", "run-1", 1, 0, "blob", blob=Blob("a/b", b"ha"), more=True, worker="w")
    assert result(fed(half, *run(2, ONE))).content == (ONE,)


def test_a_workers_own_reset_voids_what_its_run_said() -> None:
    """A reset frame starts the text anew, also in a run that is still being compared."""
    second = run(2, "ab", "?", "new")
    second[1].kind = "reset"
    assert seen(fed(*run(1, "abc", end=False), *second))[0] == "new"


def test_progress_of_a_rerun_is_told_once_it_is_ahead() -> None:
    """Progress is not repeated while a rerun catches up."""
    events = fed(*run(1, Progress(1), "a", Progress(2), "b", end=False), *run(2, Progress(1), "a", Progress(2), "b", Progress(3)))
    assert [event.done for event in events if isinstance(event, Progress)] == [1, 2, 3]


def test_a_rerun_in_the_same_attempt_bans_the_run_before() -> None:
    """Of two runs with the same attempt the later one is heard, and nothing more of the earlier one."""
    old, new = run(1, "a", "b", "c", token="old"), run(1, "a", "x", "y", token="new")
    events = fed(*old[:2], *new[:2], old[2], *new[2:], old[3])
    assert (seen(events)[0], result(events).output) == ("axy", "axy")
    again = [Frame("call", "old", 1, 0, "text", "z", worker="w"), *old[1:]]
    assert fed(*old[:2], *new[:2], *again) == fed(*old[:2], *new[:2])


def test_a_newer_epoch_counts_attempts_anew() -> None:
    """A consumer group that was made anew counts attempts from 1: its runs replace those of the epoch before, and never the reverse."""
    before, after = run(3, "a", "b", token="before"), run(1, "a", "z", token="after")
    for frame in after:
        frame.epoch = 1
    assert result(fed(before[0], *after)).output == "az"
    assert fed(after[0], *before) == fed(after[0])
    assert result(fed(after[0], *before, *after[1:])).output == "az"


def test_texts_of_one_frame_are_compared_too() -> None:
    """A frame with several texts is held back and cut like frames of one text each."""
    second = run(2, "a", "", "e")
    second[1].response, second[1].texts = None, ["b", "cd"]
    events = fed(*run(1, "ab", "c", end=False), *second)
    assert kinds(events).count(Reset) == 0
    assert [event for event in events if isinstance(event, Text)] == [Text("ab"), Text("c"), Text("d"), Text("e")]
    assert result(events).output == "abcde"


def test_the_texts_of_one_frame_are_all_counted() -> None:
    """A rerun catches up with everything that was delivered, also by a frame with several texts."""
    first = run(1, "ab", "", end=False)
    first[1].response, first[1].texts = None, ["c", "de"]
    events = fed(*first, *run(2, "abc", "d", "e", "f"))
    assert kinds(events).count(Reset) == 0
    assert (seen(events)[0], result(events).output) == ("abcdef", "abcdef")


def test_a_shorter_rerun_in_pieces_is_told_whole() -> None:
    """Pieces that were held back until the end are one text after the Reset, which names the new attempt."""
    events = fed(*run(1, "abc", end=False), *run(2, "a", "b"))
    assert [event for event in events if isinstance(event, Reset)] == [Reset(2)]
    assert (seen(events)[0], result(events).output) == ("ab", "ab")


def test_a_run_after_a_reset_is_compared_with_what_followed_it() -> None:
    """A Reset makes the text before it forgotten: the next run is compared with the new text alone."""
    events = fed(*run(1, "abc", end=False), *run(2, "Xbc", end=False), *run(3, "X", "b", "c", "d"))
    assert kinds(events).count(Reset) == 1
    assert (seen(events)[0], result(events).output) == ("Xbcd", "Xbcd")


def test_a_question_of_a_run_that_is_held_back_is_told() -> None:
    """A rerun that asks is heard at once: somebody waits for the answer now."""
    asking = Frame("call", "run-2", 2, 0, "confirm", confirm=Confirm("q", "sure?", 30.0))
    assert fed(*run(1, "abc", end=False), asking)[-1:] == [Asked("q", "sure?", 30.0)]


def test_a_rerun_without_a_blob_that_was_told_keeps_its_text() -> None:
    """The text, which came in pieces, is told anew as it was, and the blob is gone."""
    events = fed(*run(1, "a", "b", ONE, end=False), *run(2, "a", "b"))
    assert Reset in kinds(events)
    assert seen(events) == ("ab", [])
    assert (result(events).output, result(events).content) == ("ab", ())


def test_a_rerun_says_less_than_a_run_whose_last_text_was_empty() -> None:
    """All that was told before counts, and not only the last piece."""
    first = [Frame("call", "run-1", 1, 0, texts=["told"], worker="w"), Frame("call", "run-1", 1, 1, texts=[""])]
    events = fed(*first, Frame("call", "run-2", 2, 0, "end", end_of_stream=True, worker="w"))
    assert Reset in kinds(events)
    assert (seen(events), result(events).output) == (("", []), "")
