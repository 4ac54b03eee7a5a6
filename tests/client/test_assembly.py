"""The frames of one run reassembled: in order, without loss or repeats, with one end for every call."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.client.frames import ONE, TWO, fed, kinds, result, run, seen
from toolbus import Blob, ErrorInfo, Progress, ToolResult
from toolbus.bus.client.calls import assembly
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.values.envelope import Confirm, Frame
from toolbus.bus.values.events import Answered, Asked, Finished, Reset, Started, Text


def test_one_run_is_told_in_order() -> None:
    """Started comes first, then every item, then the result with the joined text."""
    events = fed(*run(1, "a", Progress(1), ONE, "b", data=[1]))
    assert kinds(events) == [Started, Text, Progress, Blob, Text, Finished]
    assert result(events) == ToolResult(output="ab", data=[1], content=(ONE,), meta=result(events).meta)
    assert (result(events).meta.attempts, result(events).meta.worker) == (1, "worker-1")


@pytest.mark.parametrize(
    ("ending", "output", "data"),
    [
        ({"response": "x"}, "x", None),
        ({"response": ""}, "", None),
        ({"data": {"a": 1}}, '{"a":1}', {"a": 1}),
        ({"response": "", "data": [1]}, "[1]", [1]),
        ({}, "", None),
    ],
)
def test_a_plain_value_is_its_only_piece(ending: dict[str, Any], output: str | None, data: Any) -> None:
    """An end frame alone is a whole answer: its text is delivered once, or its data as JSON when there is no text."""
    events = fed(*run(1, **ending))
    assert seen(events)[0] == (output or "")
    assert (result(events).output, result(events).data) == (output, data)


def test_a_last_output_replaces_the_text_in_the_result() -> None:
    """A ToolResult with an output of its own after text changes the result and not what was streamed."""
    events = fed(*run(1, "draft", response="final"))
    assert seen(events)[0] == "draft"
    assert result(events).output == "final"


def test_split_output_data_and_blobs_are_joined() -> None:
    """A value that is too large for one frame arrives whole."""
    encoded = msgspec.json.encode({"n": list(range(100))}).decode()
    frames = [
        Frame("call", "r", 1, 0, "text", "streamed", worker="w"),
        Frame("call", "r", 1, 1, "blob", blob=Blob("a/b", b"12"), more=True),
        Frame("call", "r", 1, 2, "blob", blob=Blob("a/b", b"34")),
        Frame("call", "r", 1, 3, "output", "long "),
        Frame("call", "r", 1, 4, "output", "text"),
        Frame("call", "r", 1, 5, "data", encoded[:50]),
        Frame("call", "r", 1, 6, "data", encoded[50:]),
        Frame("call", "r", 1, 7, "end", end_of_stream=True),
    ]
    finished = result(fed(*frames))
    assert (finished.output, finished.data, finished.content) == ("long text", {"n": list(range(100))}, (Blob("a/b", b"1234"),))


def test_data_in_pieces_is_the_text_of_an_answer_without_one() -> None:
    """It is told as it came, and not written anew."""
    encoded = '{"n": [1,   2]}'
    frames = [
        Frame("call", "r", 1, 0, "data", encoded[:5], worker="w"),
        Frame("call", "r", 1, 1, "data", encoded[5:]),
        Frame("call", "r", 1, 2, "end", end_of_stream=True),
    ]
    assert (result(fed(*frames)).output, result(fed(*frames)).data) == (encoded, {"n": [1, 2]})


def test_unreadable_data_is_an_error_that_keeps_the_text() -> None:
    """Data that is not JSON fails the call with a code of its own."""
    frames = [
        Frame("call", "r", 1, 0, "text", "kept"),
        Frame("call", "r", 1, 1, "data", "{"),
        Frame("call", "r", 1, 2, "end", end_of_stream=True),
    ]
    finished = result(fed(*frames))
    assert finished.error is not None
    assert (finished.success, finished.error.type, finished.error.code, finished.output) == (False, "tool_error", "bad_data", "kept")
    assert finished.error.message


def test_unknown_kinds_are_passed_over() -> None:
    """A newer worker's frame kinds take their place in the order and mean nothing here."""
    first = Frame("call", "r", 1, 0, "confirm")
    assert kinds(fed(first, Frame("call", "r", 1, 1, "end", end_of_stream=True))) == [Started, Finished]


@pytest.mark.parametrize("gap", [0, 1, 2, 3])
def test_a_gap_that_stays_ends_the_call_with_what_came_before(gap: int) -> None:
    """Missing frames are never passed over in silence: nothing behind them is told, and the outcome is unknown."""
    frames = run(1, "a", "b", "c", "d")
    taken = Assembly()
    events = [event for frame in (*frames[:gap], *frames[gap + 1 :]) for event in taken.feed(frame)]
    assert seen(events)[0] == "abcd"[:gap]
    assert taken.missing == ("run-1", gap)
    finished = taken.lose().result
    assert finished.error is not None
    assert (finished.error.type, finished.error.code) == ("outcome_unknown", "frames_missing")
    assert f"frames {gap} to {gap} of attempt 1" in finished.error.message
    assert (finished.output or "") == "abcd"[:gap]


def test_a_gap_that_closes_is_not_noticed() -> None:
    """Frames that came too early are told once, in order, as soon as those before them have come."""
    frames = run(1, "a", Progress(1), ONE, "b", "c")
    events = fed(*frames[2:4], *frames[3:], frames[1], frames[0], *frames)
    assert events == fed(*frames)


@pytest.mark.parametrize(("pieces", "size"), [(300, 1), (5, 300_000), (2, 600_000)])
def test_a_gap_is_waited_for_within_a_bound(pieces: int, size: int) -> None:
    """More frames, or larger ones, than are held back behind a gap end the call."""
    events = fed(*run(1, "a", *["x" * size] * pieces)[1:])
    finished = result(events)
    assert finished.error is not None
    assert finished.error.code == "frames_missing"


def test_gaps_close_one_after_another() -> None:
    """Frames that came too early are told as far as there is no gap before them, and the rest waits on."""
    frames = run(1, "a", "b", "c", "d")
    taken = Assembly()
    steps = [(place, "".join(event.text for event in taken.feed(frames[place]) if isinstance(event, Text))) for place in (3, 1, 0, 2)]
    assert steps == [(3, ""), (1, ""), (0, "ab"), (2, "cd")]
    assert taken.missing is None


def test_a_frame_that_comes_twice_is_told_once() -> None:
    """A repeated frame is dropped, whether it was taken in or waits behind a gap."""
    frames = run(1, "a", "b", "c")
    assert fed(*(frames[place] for place in (0, 0, 2, 2, 1, 1, 3))) == fed(*frames)


def test_a_newer_run_ends_the_wait_for_frames_of_the_old_one() -> None:
    """Missing frames of a replaced run do not matter any more, and its frames that were held back are dropped."""
    old, new = run(1, "a", "b", "c"), run(2, "a", "z")
    taken = Assembly()
    events = [event for frame in (old[0], old[2], new[0]) for event in taken.feed(frame)]
    assert taken.missing is None
    events += [event for frame in (*old[1:], *new[1:]) for event in taken.feed(frame)]
    assert result(events).output == "az"


def test_nothing_is_heard_after_the_end() -> None:
    """Frames after the terminal one are dropped, and a failure of our own ends the call as well."""
    taken = Assembly()
    for frame in run(1, "a"):
        taken.feed(frame)
    assert [event for frame in run(2, "b") for event in taken.feed(frame)] == []
    failed = Assembly()
    failed.feed(run(1, "a")[0])
    assert failed.fail(ErrorInfo("cancelled")).output == "a"
    assert failed.feed(run(1, "a")[1]) == []


def test_nothing_is_known_before_the_first_frame() -> None:
    """A call that fails unheard has no run, no worker and no output."""
    taken = Assembly()
    assert (taken.run.token, taken.worker, taken.attempt, taken.finished, taken.missing) == ("", "", 0, False, None)
    error = ErrorInfo("cancelled")
    assert taken.fail(error) == ToolResult(success=False, error=error)


def test_a_failure_of_our_own_keeps_what_was_delivered() -> None:
    """Text and blobs that were delivered, the attempt and the worker are part of the result of a call that is given up."""
    taken = Assembly()
    for frame in run(3, "a", ONE, "b", end=False):
        taken.feed(frame)
    error = ErrorInfo("cancelled")
    failed = taken.fail(error)
    assert (failed.success, failed.error, failed.output, failed.content) == (False, error, "ab", (ONE,))
    assert (failed.meta.attempts, failed.meta.worker) == (3, "worker-3")


def test_the_start_tells_who_runs_the_call() -> None:
    """Started has the worker, the attempt and the time in the queue."""
    first = run(2, "a")[0]
    first.queued_ms = 7.5
    assert fed(first)[0] == Started("worker-2", 2, 7.5)


def test_a_frame_may_carry_several_texts() -> None:
    """The texts of a frame are delivered as so many pieces, beside those that came alone."""
    frames = run(1, "a", "", "d", response="final")
    frames[1].response, frames[1].texts = None, ["b", "c"]
    events = fed(*frames)
    assert events[1:-1] == [Text("a"), Text("b"), Text("c"), Text("d")]
    assert result(events).output == "final"
    alone = [Frame("call", "r", 1, 0, texts=["a", "b"]), Frame("call", "r", 1, 1, "end", "final", end_of_stream=True)]
    assert (seen(fed(*alone))[0], result(fed(*alone)).output) == ("ab", "final")


def test_a_frame_without_content_adds_nothing() -> None:
    """Frames of text, output and data that carry no text are empty pieces."""
    frames = [
        Frame("call", "r", 1, 0, "text"),
        Frame("call", "r", 1, 1, "output"),
        Frame("call", "r", 1, 2, "output", "out"),
        Frame("call", "r", 1, 3, "data"),
        Frame("call", "r", 1, 4, "data", "[1]"),
        Frame("call", "r", 1, 5, "blob"),
        Frame("call", "r", 1, 6, "progress"),
        Frame("call", "r", 1, 7, "end", end_of_stream=True),
    ]
    events = fed(*frames)
    assert kinds(events) == [Started, Finished]
    assert (result(events).output, result(events).data, result(events).content) == ("out", [1], ())


def test_a_question_is_told_and_so_is_its_answer() -> None:
    """A confirm frame with a time asks, however short the time; one without says that nobody waits any more."""
    asked = Confirm("q1", "may I?", 0.5)
    answered = Confirm("q1", allowed=False)
    frames = [Frame("call", "r", 1, 0, "confirm", confirm=asked), Frame("call", "r", 1, 1, "confirm", confirm=answered)]
    assert fed(*frames)[1:] == [Asked("q1", "may I?", 0.5), Answered("q1", False)]


def test_a_workers_own_reset_voids_text_and_blobs() -> None:
    """The answer begins anew after a reset: a plain value is its text, and only later blobs are its content."""
    frames = run(1, "draft", ONE, "?", TWO, response="new")
    frames[2].kind = "reset"
    events = fed(*frames)
    assert Reset(1) in events
    assert seen(events) == ("new", [TWO])
    assert (result(events).output, result(events).content) == ("new", (TWO,))


@pytest.mark.parametrize(("limit", "ends"), [(0, False), (-1, True)])
def test_early_frames_are_held_up_to_a_size(monkeypatch: pytest.MonkeyPatch, limit: int, ends: bool) -> None:
    """The sizes of all early frames together may reach the limit, and not pass it."""
    early = run(1, "a", "bb", "ccc")[1:3]
    monkeypatch.setattr(assembly, "_MOST_EARLY_BYTES", sum(len(msgspec.json.encode(frame)) for frame in early) + limit)
    assert kinds(fed(*early)) == [Finished] * ends


def test_early_frames_are_held_up_to_a_number() -> None:
    """So many frames may wait behind a gap, and not one more."""
    frames = run(1, *["x"] * (assembly._MOST_EARLY + 2), end=False)
    assert fed(*frames[1:-1]) == []
    assert kinds(fed(*frames[1:])) == [Finished]


def test_a_closed_gap_makes_room_for_the_next() -> None:
    """Early frames count until their gap has closed."""
    large = "x" * 600_000
    frames = run(1, "a", large, "b", large, "c")
    events = fed(*(frames[place] for place in (1, 0, 3, 2, 4, 5)))
    assert result(events).output == f"a{large}b{large}c"


def test_a_long_stream_keeps_few_parts() -> None:
    """Pieces of a long text are joined on the way, in order, and a reset begins anew."""
    assembly, events = Assembly(), []
    for seq in range(1000):
        events += assembly.feed(Frame("c1", "r1", 1, seq, "text", f"{seq} "))
    assert len(assembly.text) < 100
    assert "".join(assembly.text) == "".join(f"{seq} " for seq in range(1000))
    assert sum(isinstance(event, Text) for event in events) == 1000
    events = assembly.feed(Frame("c1", "r1", 1, 1000, "reset"))
    for seq in range(1001, 1101):
        events += assembly.feed(Frame("c1", "r1", 1, seq, "text", f"{seq} "))
    events += assembly.feed(Frame("c1", "r1", 1, 1101, "end", None, True))
    assert events[-1].result.output == "".join(f"{seq} " for seq in range(1001, 1101))
