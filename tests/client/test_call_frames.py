"""A call that takes in frames: what its caller reads, missing frames, pauses of its deadline, and its bounds."""

from __future__ import annotations

import pytest

from tests.client.calling import Host, answer, answered, asking, made, told
from tests.client.frames import ONE, kinds, run
from toolbus import Blob, ConfigurationError, ErrorInfo, Progress
from toolbus.bus.client.calls import assembly
from toolbus.bus.client.calls.call import Pause
from toolbus.bus.values.events import Finished, Reset, Started, Text

pytestmark = pytest.mark.anyio


# --- Answers ---


@pytest.mark.parametrize("streaming", [False, True])
async def test_one_frame_is_a_whole_answer(streaming: bool) -> None:
    """A call that is answered by its first frame has ended, and a stream tells the answer's text as well."""
    host = Host()
    call = made(host, streaming=streaming)
    call.feed(answer(2, "all"), 1.0)
    result = await call.result()
    assert (result.success, result.output, result.meta.id, result.meta.attempts) == (True, "all", "c", 2)
    assert result.meta.worker == "worker-2"
    assert (host.forgotten, host.withdrawn) == ([call], [])
    assert kinds(await told(call)) == ([Started, Text, Finished] if streaming else [Finished])


@pytest.mark.parametrize("streaming", [False, True])
async def test_several_frames_are_one_answer(streaming: bool) -> None:
    """A call ends with the last frame of its run, and not before."""
    host = Host()
    call = made(host, streaming=streaming)
    *first, last = run(1, "a", ONE, "b", data=[1])
    for now, frame in enumerate(first, 1):
        call.feed(frame, float(now))
        assert (call.done, call.last_heard) == (False, now)
    call.feed(last, 9.0)
    assert call.done
    result = await call.result()
    assert (result.success, result.output, result.data, result.content) == (True, "ab", [1], (ONE,))
    assert (result.meta.id, result.meta.attempts, result.meta.worker) == ("c", 1, "worker-1")
    assert (await told(call))[-1] == Finished(result)
    assert (host.forgotten, host.withdrawn, host.gaps, host.rearmed) == ([call], [], [], [])


async def test_the_end_alone_is_no_answer_when_more_came_before() -> None:
    """A last frame that overtook the others waits for them."""
    host = Host()
    call = made(host)
    first, last = run(1, "a")
    call.feed(last, 1.0)
    assert not call.done
    call.feed(first, 2.0)
    assert (await call.result()).output == "a"
    assert host.withdrawn == []


async def test_a_late_answer_of_a_replaced_run_is_no_answer() -> None:
    """Once a newer run is heard, the one frame of an older one ends nothing."""
    call = made(Host())
    call.feed(run(2, "a")[0], 1.0)
    call.feed(answer(1, "old"), 2.0)
    assert not call.done
    call.feed(run(2, "a")[1], 3.0)
    assert (await call.result()).output == "a"


@pytest.mark.parametrize(("attempt", "waited"), [(1, 7.5), (2, 0.0)])
async def test_what_a_call_waited_is_what_its_first_attempt_waited(attempt: int, waited: float) -> None:
    """A later attempt waited for the earlier one, too, which was no wait for a worker."""
    call = made(Host())
    first = run(attempt, "a")[0]
    first.queued_ms = 7.5
    call.feed(first, 1.0)
    assert call.queued_ms == waited


# --- Missing frames ---


async def test_a_missing_frame_is_watched_for_once() -> None:
    """While one check is pending, further early frames ask for no other."""
    host = Host()
    call = made(host)
    first, _, *early = run(1, "a", "b", "c", "d")
    call.feed(first, 1.0)
    assert host.gaps == []
    for frame in early:
        call.feed(frame, 2.0)
    assert host.gaps == [(call, ("run-1", 1))]


async def test_a_frame_that_stays_away_ends_the_call() -> None:
    """The caller gets what came before the gap, and the worker, which still runs, is told."""
    host = Host()
    call = made(host)
    first, _, early, _ = run(1, "a", "b", "c")
    call.feed(first, 1.0)
    call.feed(early, 2.0)
    call.look_for(("run-1", 1))
    result = await call.result()
    assert result.error is not None
    assert (result.error.type, result.error.code, result.output) == ("outcome_unknown", "frames_missing", "a")
    assert (host.withdrawn, host.forgotten, host.gaps[1:]) == ([call], [call], [])
    assert call.withdrawn == "outcome_unknown"


async def test_another_missing_frame_is_checked_later() -> None:
    """When the first gap has closed and another one is there, that one gets its time too."""
    host = Host()
    call = made(host)
    frames = run(1, "a", "b", "c", "d", "e")
    for place in (1, 0, 3):
        call.feed(frames[place], 1.0)
    call.look_for(("run-1", 0))
    assert not call.done
    assert host.gaps == [(call, ("run-1", 0)), (call, ("run-1", 2))]


async def test_a_check_that_finds_nothing_missing_does_nothing() -> None:
    """After the gap has closed the call goes on, and its next gap is watched for again."""
    host = Host()
    call = made(host)
    frames = run(1, "a", "b", "c", "d")
    call.feed(frames[1], 1.0)
    call.feed(frames[0], 1.0)
    call.look_for(("run-1", 0))
    assert (call.done, call.gap_slot) == (False, 0)
    call.feed(frames[3], 1.0)
    assert host.gaps[1:] == [(call, ("run-1", 2))]


async def test_a_check_after_the_end_does_nothing() -> None:
    """A call that was given up keeps its result, also with a gap."""
    host = Host()
    call = made(host)
    call.feed(run(1, "a", "b")[1], 1.0)
    call.cancel()
    result = await call.result()
    call.look_for(("run-1", 0))
    assert await call.result() is result
    assert (host.withdrawn, host.forgotten) == ([call], [call])


@pytest.mark.parametrize("ended", [False, True])
async def test_too_many_early_frames_end_the_call(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    """The worker is told that nobody waits, unless its last frame was the one too many."""
    monkeypatch.setattr(assembly, "_MOST_EARLY", 1)
    host = Host()
    call = made(host)
    frames = run(1, "a", "b", "c")
    call.feed(frames[1], 1.0)
    call.feed(frames[3 if ended else 2], 1.0)
    result = await call.result()
    assert result.error is not None
    assert result.error.code == "frames_missing"
    assert host.withdrawn == ([] if ended else [call])
    assert call.withdrawn == ("" if ended else "outcome_unknown")


# --- Pauses ---


async def test_a_question_stops_the_clock_until_its_answer() -> None:
    """The deadline moves by the time that the handler waited; until the answer, by all that it may wait."""
    host = Host()
    call = made(host, deadline=100.0)
    assert (call.ends, call.waited_in_all) == (100.0, 0.0)
    call.feed(asking(1, seconds=30.0), 10.0)
    assert call.pause == Pause("run-1", 10.0, 40.0)
    assert (call.ends, call.waited_in_all, host.rearmed) == (130.0, 30.0, [(call, 10.0)])
    call.feed(answered(1), 10.5)
    assert call.pause is None
    assert (call.deadline, call.ends, call.waited, call.waited_in_all) == (100.5, 100.5, 0.5, 0.5)
    assert host.rearmed[1:] == [(call, 10.5)]


async def test_an_answer_after_the_time_counts_no_more_than_the_time() -> None:
    """The deadline goes on when the time for the answer is over, whenever the handler says so."""
    call = made(Host(), deadline=100.0)
    call.feed(asking(1, seconds=30.0), 10.0)
    call.feed(answered(1), 70.0)
    assert (call.deadline, call.waited) == (130.0, 30.0)


async def test_pauses_add_up_to_a_bound() -> None:
    """A second question, also one before the answer to the first, gets what is left of the time that a call may wait."""
    call = made(Host(), deadline=100.0)
    call.feed(asking(1, seconds=60.0), 10.0)
    call.feed(asking(1, 1, seconds=60.0), 50.0)
    assert call.pause == Pause("run-1", 50.0, 110.0)
    assert (call.deadline, call.waited, call.ends, call.waited_in_all) == (140.0, 40.0, 200.0, 100.0)
    call.feed(answered(1, 2), 80.0)
    assert (call.deadline, call.waited) == (170.0, 70.0)
    call.feed(asking(1, 3, seconds=60.0), 90.0)
    assert call.pause == Pause("run-1", 90.0, 120.0)
    assert call.waited_in_all == Host.most_waiting


async def test_a_rerun_ends_the_pause_of_the_dead_run() -> None:
    """The clock goes on with the first frame of the run that replaces the one that asked, and stops when that one asks."""
    host = Host()
    call = made(host, deadline=100.0)
    call.feed(asking(1, seconds=30.0), 10.0)
    frames = run(2, "a", "?", "b")
    call.feed(frames[0], 15.0)
    assert call.pause is None
    assert (call.deadline, call.ends, call.waited, host.rearmed[1:]) == (105.0, 105.0, 5.0, [(call, 15.0)])
    call.feed(asking(2, 1, seconds=30.0), 20.0)
    assert call.pause == Pause("run-2", 20.0, 50.0)


async def test_other_frames_leave_a_pause_alone() -> None:
    """Text and progress of the run that waits, and frames of replaced runs, do not start the clock."""
    host = Host()
    call = made(host, deadline=100.0)
    call.feed(run(1, "a")[0], 5.0)
    call.feed(asking(2), 10.0)
    for frame in (*run(2, "?", "a", Progress(1), end=False)[1:], *run(1, "a", "b")[1:]):
        call.feed(frame, 15.0)
    assert call.pause == Pause("run-2", 10.0, 40.0)
    assert host.rearmed == [(call, 10.0)]


# --- A caller that attaches again ---


async def test_text_that_was_received_before_is_left_out() -> None:
    """A caller that attaches again reads on where it stopped, also within a piece; everything else is told."""
    call = made(Host(), streaming=True)
    call.resume_from(4)
    for frame in run(1, "ab", ONE, "cd", "ef", "gh"):
        call.feed(frame, 1.0)
    events = await told(call)
    assert [event for event in events if isinstance(event, (Text, Blob))] == [ONE, Text("ef"), Text("gh")]
    assert (await call.result()).output == "abcdefgh"
    call = made(Host(), streaming=True)
    call.resume_from(3)
    for frame in run(1, "ab", "cd", "ef"):
        call.feed(frame, 1.0)
    assert [event.text for event in await told(call) if isinstance(event, Text)] == ["d", "ef"]


async def test_after_a_reset_everything_is_new() -> None:
    """The text that the caller received before is void after a Reset, so nothing of the new text is left out."""
    call = made(Host(), streaming=True)
    call.resume_from(100)
    for frame in (*run(1, "abc", end=False), *run(2, "xyz")):
        call.feed(frame, 1.0)
    events = await told(call)
    assert [event for event in events if isinstance(event, (Text, Reset))] == [Reset(2), Text("xyz")]


@pytest.mark.parametrize("position", [-1, True, 1.5, "3", None])
async def test_a_position_is_a_number_of_characters(position: object) -> None:
    """Anything else is refused, and names the option."""
    with pytest.raises(ConfigurationError, match="resume_from"):
        made(Host()).resume_from(position)


@pytest.mark.parametrize("position", [0, 1])
async def test_a_position_may_be_the_start(position: int) -> None:
    """From 0 everything is read."""
    call = made(Host(), streaming=True)
    call.resume_from(position)
    for frame in run(1, "ab"):
        call.feed(frame, 1.0)
    assert [event.text for event in await told(call) if isinstance(event, Text)] == ["ab"[position:]]


# --- Bounds ---


@pytest.mark.parametrize(("room", "ends"), [(0, False), (-1, True)])
async def test_events_that_wait_are_bounded(room: int, ends: bool) -> None:
    """A stream whose events, beside the newest one, are more bytes than the limit ends, and the worker is told; what it had is kept."""
    host = Host()
    # Started and Progress count 64 bytes each, text and blobs what they have.
    call = made(host, streaming=True, limit=64 + 5 + 64 + room)
    for frame in run(1, "abcde", Progress(1), ONE, end=False):
        call.feed(frame, 1.0)
    assert (call.done, host.withdrawn) == (ends, [call] * ends)
    if ends:
        result = await call.result()
        assert result.error is not None
        assert (result.error.type, result.output, result.content) == ("slow_consumer", "abcde", (ONE,))
        assert f"{64 + 5 + 64 + room} bytes" in result.error.message


async def test_what_nobody_reads_is_not_kept() -> None:
    """A call of which only the result is awaited may have any number of pieces."""
    call = made(Host(), limit=10)
    for frame in run(1, *["abcdefgh"] * 9):
        call.feed(frame, 1.0)
    assert (await call.result()).output == "abcdefgh" * 9
    assert kinds(await told(call)) == [Finished]


async def test_frames_of_a_call_that_ended_leave_no_trace() -> None:
    """A frame behind the end neither changes the result nor adds an event."""
    call = made(Host(), streaming=True)
    call.feed(run(1, "a")[0], 1.0)
    call.complete_with(ErrorInfo("cancelled"))
    result = await call.result()
    call.feed(run(1, "a", "b")[1], 2.0)
    assert kinds(await told(call)) == [Started, Text, Finished]
    assert await call.result() is result
