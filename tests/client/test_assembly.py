"""Frames reassembled: in order, without loss or repeats, or with an explicit Reset; one end for every call."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import Blob, ErrorInfo, Progress, ToolResult
from toolbus.client.calls import assembly
from toolbus.client.calls.assembly import Assembly
from toolbus.client.calls.call import result_of_frame
from toolbus.envelope import Frame
from toolbus.events import Event, Finished, Reset, Started, Text

Item = str | Blob | Progress


def run(attempt: int, *items: Item, end: bool = True, token: str = "", **ending: Any) -> list[Frame]:
    """Return the frames of one run of a handler that yields ``items``."""
    frames: list[Frame] = []
    for item in items:
        frame = Frame("call", token or f"run-{attempt}", attempt, len(frames))
        if isinstance(item, str):
            frame.response = item
        elif isinstance(item, Blob):
            frame.kind, frame.blob = "blob", item
        else:
            frame.kind, frame.progress = "progress", item
        frames.append(frame)
    if end:
        frames.append(Frame("call", token or f"run-{attempt}", attempt, len(frames), "end", end_of_stream=True, **ending))
    if frames:
        frames[0].worker = f"worker-{attempt}"
    return frames


def fed(*frames: Frame) -> list[Event]:
    """Return the events of a new assembly that takes in these frames."""
    taken = Assembly()
    return [event for frame in frames for event in taken.feed(frame)]


def seen(events: list[Event]) -> tuple[str, list[Blob]]:
    """Return the text and blobs of a caller that obeys every Reset."""
    text, blobs = "", []
    for event in events:
        if isinstance(event, Reset):
            text, blobs = "", []
        elif isinstance(event, Text):
            text += event.text
        elif isinstance(event, Blob):
            blobs.append(event)
    return text, blobs


def result(events: list[Event]) -> ToolResult:
    """Return the result of the one Finished, which comes last."""
    assert [type(event) for event in events].count(Finished) == 1
    assert isinstance(events[-1], Finished)
    return events[-1].result


def kinds(events: list[Event]) -> list[type]:
    """Return the events' types."""
    return [type(event) for event in events]


ONE, TWO = Blob("a/b", b"one"), Blob("a/b", b"two")


# --- One run ---


def test_one_run_is_told_in_order() -> None:
    """Started comes first, then every item, then the result with the joined text."""
    events = fed(*run(1, "a", Progress(1), ONE, "b", data=[1]))
    assert kinds(events) == [Started, Text, Progress, Blob, Text, Finished]
    assert result(events) == ToolResult(output="ab", data=[1], content=(ONE,), meta=result(events).meta)
    assert (result(events).meta.attempts, result(events).meta.worker) == (1, "worker-1")


@pytest.mark.parametrize(
    ("ending", "output", "data"),
    [({"response": "x"}, "x", None), ({"response": ""}, "", None), ({"data": {"a": 1}}, None, {"a": 1}), ({}, "", None)],
)
def test_a_plain_value_is_its_only_piece(ending: dict[str, Any], output: str | None, data: Any) -> None:
    """An end frame alone is a whole answer: its text is delivered once, its data is the result's."""
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


def test_unreadable_data_is_an_error_that_keeps_the_text() -> None:
    """Data that is not JSON fails the call with a code of its own."""
    frames = [
        Frame("call", "r", 1, 0, "text", "kept"),
        Frame("call", "r", 1, 1, "data", "{"),
        Frame("call", "r", 1, 2, "end", end_of_stream=True),
    ]
    finished = result(fed(*frames))
    assert finished.error is not None
    assert (finished.success, finished.error.code, finished.output) == (False, "bad_data", "kept")


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


@pytest.mark.parametrize(("pieces", "size"), [(300, 1), (5, 300_000)])
def test_a_gap_is_waited_for_within_a_bound(pieces: int, size: int) -> None:
    """More frames, or larger ones, than are held back behind a gap end the call."""
    events = fed(*run(1, "a", *["x" * size] * pieces)[1:])
    finished = result(events)
    assert finished.error is not None
    assert finished.error.code == "frames_missing"


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


# --- Several runs ---


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


def test_too_long_to_compare_resets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit nothing is held back: the new run's text follows a Reset as it comes."""
    monkeypatch.setattr(assembly, "HOLD_BACK", 3)
    events = fed(*run(1, "abcd", end=False), *run(2, "ab", "cd", end=False))
    assert kinds(events) == [Started, Text, Reset, Text, Text]


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


# --- Anything ---

TEXTS = st.lists(st.sampled_from(["a", "b", "ab", "ba", "é"]), max_size=6)
ITEMS = st.lists(st.sampled_from(["a", "b", "ab", ONE, TWO, Progress(1)]), max_size=6)


def chunked(draw: st.DrawFn, text: str) -> list[str]:
    """Draw a way to cut the text into pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]


def mixed(draw: st.DrawFn, runs: list[list[Frame]]) -> list[Frame]:
    """Draw the runs' frames in an order in which a reader may see them: newer runs begin later, and frames may repeat."""
    order: list[Frame] = []
    places = [0] * len(runs)
    begun = 1
    while places[-1] < len(runs[-1]):
        choices = [number for number in range(begun) if places[number] < len(runs[number])]
        if begun < len(runs) and places[begun - 1] > 0:
            choices.append(begun)
        number = draw(st.sampled_from(choices))
        order.append(runs[number][places[number]])
        places[number] += 1
        begun = max(begun, number + 1)
        if draw(st.booleans()):
            order.append(draw(st.sampled_from(order)))
    return order


@st.composite
def identical_runs(draw: st.DrawFn) -> tuple[str, list[Frame]]:
    """Up to four runs of the same text, each cut in its own way, and the frames as a reader sees them."""
    text = "".join(draw(TEXTS))
    count = draw(st.integers(1, 4))
    return text, mixed(draw, [run(attempt, *chunked(draw, text)) for attempt in range(1, count + 1)])


@st.composite
def any_runs(draw: st.DrawFn) -> tuple[list[tuple[str, list[Blob]]], list[Frame]]:
    """Up to four runs that yield what they like; what each yields, and the frames as a reader sees them."""
    common, others = draw(ITEMS), draw(st.lists(ITEMS, min_size=1, max_size=4))
    # Runs that differ from the start are the simple case: most begin alike.
    yielded = [common[: draw(st.integers(0, len(common)))] + other[: draw(st.integers(0, 2))] for other in others]
    told = [("".join(i for i in items if isinstance(i, str)), [i for i in items if isinstance(i, Blob)]) for items in yielded]
    return told, mixed(draw, [run(attempt, *items) for attempt, items in enumerate(yielded, 1)])


@given(identical_runs())
def test_identical_runs_read_as_one(case: tuple[str, list[Frame]]) -> None:
    """Any interleaving of runs with the same text gives that text once, with no Reset."""
    text, frames = case
    events = fed(*frames)
    assert Reset not in kinds(events)
    assert seen(events)[0] == result(events).output == text


@given(any_runs(), st.sampled_from([0, 2, 1000]))
def test_any_runs_read_as_the_one_that_finished(case: tuple[list[tuple[str, list[Blob]]], list[Frame]], hold_back: int) -> None:
    """Whatever runs yield, a caller who obeys every Reset holds exactly what the finishing run yielded."""
    told, frames = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "HOLD_BACK", hold_back)
        events = fed(*frames)
    finished = result(events)
    assert seen(events)[0] == finished.output == told[finished.meta.attempts - 1][0]
    assert seen(events)[1] == list(finished.content) == told[finished.meta.attempts - 1][1]


@given(any_runs(), st.randoms(use_true_random=False))
def test_lost_frames_never_pass_unnoticed(case: tuple[list[tuple[str, list[Blob]]], list[Frame]], random: Any) -> None:
    """With frames missing at random, a success is still exactly what its run yielded, and there is at most one end."""
    told, frames = case
    events = fed(*(frame for frame in frames if random.random() < 0.8))
    ends = [event.result for event in events if isinstance(event, Finished)]
    assert len(ends) <= 1
    for finished in ends:
        if finished.success:
            assert (seen(events)[0], seen(events)[1]) == told[finished.meta.attempts - 1]
        else:
            assert finished.error is not None
            assert finished.error.code == "frames_missing"


@given(any_runs(), st.randoms(use_true_random=False))
def test_any_order_within_runs_is_put_right(case: tuple[list[tuple[str, list[Blob]]], list[Frame]], random: Any) -> None:
    """However the frames of each run are mixed up among themselves, the caller ends with what the last run yielded."""
    told, frames = case
    runs = [list(each) for _, each in itertools.groupby(frames, lambda frame: frame.run)]
    for each in runs:
        random.shuffle(each)
    events = fed(*itertools.chain.from_iterable(runs))
    finished = result(events)
    assert (seen(events)[0], list(finished.content)) == told[finished.meta.attempts - 1]


@given(
    response=st.none() | st.text(max_size=20),
    data=st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    error=st.none() | st.just(ErrorInfo("tool_error", "boom", "it failed")),
    attempt=st.integers(1, 5),
)
def test_the_only_frame_of_a_call_needs_no_assembly(response: str | None, data: Any, error: ErrorInfo | None, attempt: int) -> None:
    """A call whose first frame is its last has the result that an assembly would finish with."""
    frame = Frame("c", "r", attempt, kind="end", end_of_stream=True, response=response, data=data, error=error, worker="w1")
    *_, last = Assembly().feed(frame)
    assert isinstance(last, Finished)
    assert result_of_frame(frame, "", 0.0) == last.result
