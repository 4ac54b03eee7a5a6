"""The events that a client that comes back has not seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.values.events import Event, Finished, Reset, Started, Text
from toolbus.bus.values.results import Blob, Progress, ToolResult
from toolbus.edges.gateway.calls import Position, Replay, read_id

KINDS = st.one_of(
    st.text(min_size=1, max_size=5).map(Text),
    st.integers(0, 9).map(Progress),
    st.binary(max_size=3).map(lambda data: Blob("x/y", data)),
    st.just(Reset(2)),
)
ENDED = Finished(ToolResult())


def held(events: list[Event]) -> tuple[str, list[Event]]:
    """The state of a client once it has read these events: text, and the others."""
    text, others = "", []
    for event in events:
        if isinstance(event, Reset):
            text, others = "", []
        elif isinstance(event, Text):
            text += event.text
        elif isinstance(event, (Progress, Blob)):
            others.append(event)
    return text, others


@given(st.lists(KINDS, max_size=12), st.integers(0, 13))
def test_a_client_that_comes_back_has_everything_once(happened: list[Event], cut: int) -> None:
    """Wherever the connection was lost, the rest makes the whole."""
    everything: list[Event] = [Started("w", 1, 0.0), *happened, ENDED]
    first, position = everything[:cut], Position()
    for event in first:
        position.pass_(event)
    position, key = read_id(position.id("k"))
    replay = Replay(position)
    rest = [unseen for event in everything for unseen in replay.unseen(event)]
    assert key == "k"
    assert held([*first, *rest]) == held(everything)
    assert rest[-1] is ENDED


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5), st.lists(st.integers(1, 4), max_size=8))
def test_pieces_may_be_cut_differently_the_second_time(pieces: list[str], sizes: list[int]) -> None:
    """Workers send text in other pieces than it is read."""
    whole = "".join(pieces)
    position = Position()
    position.pass_(Text(pieces[0]))
    again, at = [], 0
    for size in [*sizes, len(whole)]:
        if whole[at : at + size]:
            again.append(Text(whole[at : at + size]))
        at += size
    replay = Replay(position)
    rest = [unseen for event in again for unseen in replay.unseen(event)]
    assert pieces[0] + held(rest)[0] == whole


def test_an_execution_that_is_not_kept_any_more_begins_anew() -> None:
    """A client that has more than there is hears of a reset, and gets the text."""
    replay = Replay(Position(characters=10))
    done = Finished(ToolResult(output="short"))
    found = [unseen for event in (Text("short"), done) for unseen in replay.unseen(event)]
    assert held(found) == ("short", [])
    assert isinstance(found[0], Reset)
    assert found[-1] is done
