"""Made-up runs of one call reassembled, in every order in which a reader may see their frames."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.client.frames import ONE, TWO, fed, kinds, result, run, seen
from toolbus import Blob, ErrorInfo, Progress
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.values.envelope import Frame, result_of_frame
from toolbus.bus.values.events import Finished, Reset

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


@given(any_runs())
def test_any_runs_read_as_the_one_that_finished(case: tuple[list[tuple[str, list[Blob]]], list[Frame]]) -> None:
    """A caller who obeys every Reset holds exactly what the finishing run yielded, whatever the runs yield."""
    told, frames = case
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
