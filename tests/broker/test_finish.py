"""The ends of calls: which script finishes them, what is lost, what frees a key, and what becomes a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.broker.fakes import FENCE, KEYS
from tests.broker.finishing import Finishing
from tests.servers import eventually
from toolbus.bus.broker.lease.dead_letters import FreedKey
from toolbus.bus.broker.take.requests import UNSURE, Fence
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.envelope import join_frames
from toolbus.bus.values.results import BrokerError, BrokerUnavailable

pytestmark = pytest.mark.anyio


@pytest.fixture
async def finishing() -> AsyncIterator[Finishing]:
    """An outbox of the test's own."""
    made = Finishing()
    yield made
    made.bench.forget()


async def test_frames_and_ends_of_one_tick_are_one_script(finishing: Finishing) -> None:
    """Under a fence that proves that all are ours: frames first, then the ends, one entry for each caller."""
    one, two = finishing.bench.hold(b"1-0"), finishing.bench.hold(b"2-0")
    finishing.outbox.send(one, b"frame")
    finishing.outbox.finish(one, b"end one")
    finishing.outbox.finish(two, b"end two")
    assert finishing.bench.link.names == []
    await finishing.turn()
    replies = KEYS.replies("agent")
    joined = join_frames([b"frame", b"end one", b"end two"])
    assert finishing.bench.link.args("finish") == [("mine", *FENCE, 2, b"1-0", b"2-0", replies, joined)]
    assert finishing.bench.link.keys("finish") == [(finishing.bench.stream.key, finishing.bench.stream.fence)]
    assert finishing.bench.stream.held == {}
    assert (finishing.outbox.frames_sent, finishing.outbox.calls_finished) == (3, 2)
    assert finishing.bench.stream.depth == 3


async def test_unequal_fences_are_finished_entry_by_entry(finishing: Finishing) -> None:
    """No counter proves that all of them are ours, so each is looked at in its attempt."""
    one, two = finishing.bench.hold(b"1-0"), finishing.bench.hold(b"2-0", attempt=2, fence=Fence(FENCE.generation, b"6"))
    finishing.outbox.finish(one, b"end one")
    finishing.outbox.finish(two, b"end two")
    await finishing.turn()
    replies = KEYS.replies("agent")
    [args] = finishing.bench.link.args("finish_each")
    assert args == ("mine", FENCE.generation, UNSURE, 2, b"1-0", 1, b"2-0", 2, replies, 2, 1, b"end one", 2, b"end two")
    assert "finish" not in finishing.bench.link.names


async def test_a_fence_that_has_moved_makes_the_script_look_at_each(finishing: Finishing) -> None:
    """Frames that went before are sent again: the script that finishes all or nothing wrote nothing."""
    one = finishing.bench.hold(b"1-0")
    finishing.bench.link.answers["finish"] = lambda keys, args: [FENCE.generation, b"9"]
    finishing.lost_indexes = [1]
    finishing.outbox.send(one, b"frame")
    finishing.outbox.finish(one, b"end")
    await finishing.turn()
    assert finishing.bench.link.names == ["finish", "send", "finish_each"]
    assert finishing.lost == [one]
    assert (finishing.outbox.lost, finishing.outbox.frames_sent) == (1, 1)


async def test_what_was_lost_meanwhile_is_not_finished(finishing: Finishing) -> None:
    """A later delivery of the same entry is another one."""
    old = finishing.bench.hold(b"1-0")
    finishing.outbox.finish(old, b"end")
    del finishing.bench.stream.held[b"1-0"]
    await finishing.turn()
    assert finishing.bench.link.names == []
    assert finishing.outbox.lost == 1
    first = finishing.bench.hold(b"2-0")
    finishing.outbox.finish(first, b"end")
    finishing.bench.hold(b"2-0")
    await finishing.turn()
    assert finishing.bench.link.names == []
    assert set(finishing.bench.stream.held) == {b"2-0"}


async def test_one_flush_is_in_flight_at_a_time(finishing: Finishing) -> None:
    """Answers that are produced during a flush go out together in the next one, and drained() returns after the last."""
    link = finishing.bench.link
    link.holding = True
    deliveries = [finishing.bench.hold(f"{number}-0".encode()) for number in range(1, 4)]
    for delivery in deliveries:
        finishing.outbox.finish(delivery, b"end")
        await finishing.turn()
    assert len(link.names) == 1
    link.release()
    assert [args[3] for args in link.args("finish")] == [1, 2]
    drained = asyncio.ensure_future(finishing.outbox.drained())
    await finishing.turn()
    assert not drained.done()
    link.release()
    await drained


async def test_batches_are_bounded_by_ids_and_bytes(finishing: Finishing) -> None:
    """A script of many ids, or bytes, would hold the server up."""
    for number in range(257):
        finishing.outbox.finish(finishing.bench.hold(f"{number}-0".encode()), b"end")
    await finishing.turn()
    assert [args[3] for args in finishing.bench.link.args("finish")] == [256, 1]
    for number in range(2):
        finishing.outbox.finish(finishing.bench.hold(f"{number}-1".encode()), b"x" * 200_000)
    await finishing.turn()
    assert [args[3] for args in finishing.bench.link.args("finish")[2:]] == [1, 1]


async def test_indexes_of_nothing_are_left_out(finishing: Finishing) -> None:
    """A number that stands for no call of the batch ends none, and the next batch goes out."""
    finishing.lost_indexes = [0, -1, 2, 10**30]
    finishing.bench.link.answers["send"] = [5, 0]
    finishing.outbox.send(finishing.bench.hold(b"1-0"), b"frame")
    finishing.outbox.finish(finishing.bench.hold(b"2-0"), b"end")
    await finishing.turn()
    assert finishing.lost == []
    assert finishing.gone == []
    assert finishing.drained()


async def test_a_worker_whose_results_are_refused_gives_up(finishing: Finishing) -> None:
    """After half a minute. A success begins anew."""
    error = "TRYAGAIN the slot is being moved"
    answers = finishing.bench.link.answers
    right = answers["finish"]

    async def finish(number: int) -> None:
        finishing.outbox.finish(finishing.bench.hold(f"{number}-0".encode()), b"end")
        await finishing.turn()

    for number, (seconds, refused) in enumerate([(0, True), (29, True), (29, False), (29, True), (29, True), (2, True)]):
        finishing.bench.times.now += seconds
        answers["finish"] = ReplyError(error) if refused else right
        assert finishing.given_up == []
        await finish(number)
    assert [str(each) for each in finishing.given_up] == [f"no calls could be finished for 31 s: {error}"]


async def test_a_script_that_is_refused_leaves_the_calls_to_others(finishing: Finishing) -> None:
    """They stay pending without renewal, and are recovered."""
    finishing.bench.link.answers["finish"] = lambda keys, args: ReplyError("NOPERM")
    finishing.outbox.finish(finishing.bench.hold(b"1-0"), b"end")
    await finishing.turn()
    assert finishing.bench.stream.held == {}
    assert finishing.lost == []
    assert finishing.drained()
    assert finishing.outbox.calls_finished == 0


@pytest.mark.parametrize("error", ["MISCONF", "OOM"])
@pytest.mark.parametrize("script", ["send", "finish", "finish_each"])
async def test_what_the_server_refuses_for_a_while_is_written_then(finishing: Finishing, script: str, error: str) -> None:
    """Frames and ends keep their order, and nothing is counted before it is written."""
    link, outbox, bench = finishing.bench.link, finishing.outbox, finishing.bench
    one, two = bench.hold(b"1-0"), bench.hold(b"2-0", agent="other")
    right, link.answers[script] = link.answers[script], ReplyError(f"{error} no writes")
    frees = FreedKey("record", "call", "mark", one.run) if script == "finish_each" else None
    outbox.send(two, b"running")
    outbox.send(one, b"x" * (300_000 if script == "send" else 1))
    outbox.finish(one, b"end", frees)
    await eventually(lambda: link.names.count(script) >= 3)
    assert script == "finish_each" or outbox.frames_sent == 0
    assert outbox.calls_finished == 0
    assert one.entry in bench.stream.held
    outbox.send(two, b"later")
    link.answers[script] = right
    await outbox.drained()
    assert (outbox.frames_sent, outbox.calls_finished) == (4, 1)
    assert link.names[-1] == "send"
    assert link.args("send")[-1] == (KEYS.replies("other"), join_frames([b"later"]))
    if frees is not None:
        assert link.args("finish_each")[-1][-5:-3] == ("!3", 2) or b"call" in link.args("finish_each")[-1]
    assert one.entry not in bench.stream.held


@pytest.mark.parametrize("error", [ReplyError("NOPERM"), BrokerUnavailable("the connection was closed")], ids=["refused", "closed"])
async def test_calls_whose_frames_are_refused_end_with_the_reason(finishing: Finishing, error: BrokerError) -> None:
    """Their callers would wait for the frames; an end is not written behind a hole, and what went along with it is not counted."""
    link, outbox, bench = finishing.bench.link, finishing.outbox, finishing.bench
    running, ending = bench.hold(b"1-0"), bench.hold(b"2-0", agent="other")
    link.answers["send"] = link.answers["finish"] = error
    outbox.send(running, b"frame")
    outbox.finish(ending, b"end")
    await finishing.turn()
    assert (outbox.frames_sent, outbox.calls_finished) == (0, 0)
    [(replies, reason)] = finishing.gone
    assert (replies, reason.type, reason.code) == (KEYS.replies("agent"), "unavailable", "frames_refused")
    assert str(error) in reason.message
    outbox.send(ending, b"x" * 300_000)
    outbox.finish(ending, b"end")
    await finishing.turn()
    assert link.names.count("finish") == 1
    assert finishing.drained()


async def test_frames_go_before_ends_that_are_looked_at_one_by_one(finishing: Finishing) -> None:
    """They are not lost with the step that would have taken them along."""
    one, two = finishing.bench.hold(b"1-0"), finishing.bench.hold(b"2-0", fence=Fence(FENCE.generation, b"6"))
    finishing.outbox.send(one, b"frame")
    for delivery in (one, two):
        finishing.outbox.finish(delivery, b"end")
    finishing.bench.link.holding = True
    await finishing.turn()
    assert finishing.bench.link.names == ["send"]
    finishing.bench.link.release()
    assert finishing.bench.link.names == ["send", "finish_each"]
    assert not finishing.drained()
    finishing.bench.link.release()
    assert finishing.drained()


async def test_everything_is_drained_with_the_last_answer(finishing: Finishing) -> None:
    """Parts of a batch, and batches of several streams, are in flight together."""
    link, bench = finishing.bench.link, finishing.bench
    link.holding = True
    for number in range(257):
        finishing.outbox.finish(bench.hold(f"{number}-0".encode()), b"end")
    for service in ("second", "third"):
        bench.streams[service] = bench.stream = bench.new_stream(service)
        for entry, counter in ((b"1-0", b"5"), (b"2-0", b"6")):
            finishing.outbox.finish(bench.hold(entry, fence=Fence(FENCE.generation, counter)), b"end")
    await finishing.turn()
    assert link.names == ["finish", "finish", "finish_each", "finish_each"]
    for _ in range(4):
        assert not finishing.drained()
        link.release()
    assert finishing.drained()
    assert finishing.outbox.calls_finished == 261


@pytest.mark.parametrize(
    ("sizes", "parts"), [([131_072] * 4, [2, 2]), ([100_000] * 4, [2, 2]), ([262_144, 1, 262_144], [1, 1, 1]), ([1] * 256, [256])]
)
async def test_ends_of_one_tick_are_scripts_of_bounded_size(finishing: Finishing, sizes: list[int], parts: list[int]) -> None:
    """As many in each as the bound allows."""
    for number, size in enumerate(sizes):
        finishing.outbox.finish(finishing.bench.hold(f"{number}-0".encode()), b"x" * size)
    await finishing.turn()
    assert [args[3] for args in finishing.bench.link.args("finish")] == parts


async def test_each_lost_delivery_is_told_of(finishing: Finishing) -> None:
    """By its place in the script; the fence that the answer names is known from then on."""
    deliveries = [finishing.bench.hold(f"{number}-0".encode()) for number in range(1, 4)]
    newer = Fence(FENCE.generation, b"8")
    finishing.bench.link.answers["finish"] = lambda keys, args: [*newer, [1, 3], [], 0]
    for delivery in deliveries:
        finishing.outbox.finish(delivery, b"end")
    await finishing.turn()
    assert finishing.lost == [deliveries[0], deliveries[2]]
    assert finishing.outbox.lost == 2
    assert finishing.bench.stream.fence_known == newer


async def test_what_was_lost_meanwhile_is_counted_and_frees_no_key(finishing: Finishing) -> None:
    """The others of its batch free theirs; then ends go in one step again."""
    one, two, three = (finishing.bench.hold(entry, shared=True, idempotency_key="key") for entry in (b"1-0", b"2-0", b"3-0"))
    for delivery in (one, two, three):
        key = FreedKey(f"record {delivery.run}", delivery.request.id, f"mark {delivery.run}", delivery.run)
        finishing.outbox.finish(delivery, b"end", key)
    for delivery in (one, three):
        finishing.bench.stream.lose(delivery)
    await finishing.turn()
    assert finishing.outbox.lost == 2
    assert [keys[2:] for keys in finishing.bench.link.keys("finish_each")] == [(f"record {two.run}", f"mark {two.run}")]
    finishing.outbox.finish(finishing.bench.hold(b"4-0"), b"end")
    four = finishing.bench.hold(b"5-0")
    finishing.outbox.finish(four, b"end")
    finishing.bench.stream.lose(four)
    await finishing.turn()
    assert finishing.bench.link.names == ["finish_each", "finish"]
    assert finishing.outbox.lost == 3


@pytest.mark.parametrize("script", ["finish", "finish_each", "refused", "bury"])
async def test_calls_in_the_order_of_sessions_are_told_of_when_their_ends_are_accepted(finishing: Finishing, script: str) -> None:
    """The next call begins then; one whose end was refused or lost is waited for elsewhere, and others are told of to nobody."""
    link, bench = finishing.bench.link, finishing.bench
    one, two = bench.hold(b"1-0", ordered=True), bench.hold(b"2-0", ordered=True)
    beside = bench.hold(b"3-0", fence=Fence(FENCE.generation, b"6") if script == "finish_each" else FENCE)
    if script == "finish_each":
        finishing.lost_indexes = [2]
    if script == "refused":
        link.answers["finish"] = ReplyError("NOPERM")
    if script == "bury":
        answers = iter([1, 0])
        link.answers["bury"] = lambda keys, args: next(answers)
        for each in (one, two):
            finishing.endings.bury(each, "failed", "error", b"end")
    else:
        for each in (one, two, beside):
            finishing.outbox.finish(each, b"end")
    link.holding = True
    await finishing.turn()
    assert bench.listener.let_go == []
    link.holding = False
    while link.held:
        link.release()
    ended = {"finish": (True, True), "finish_each": (True, False), "refused": (False, False), "bury": (True, False)}[script]
    assert bench.listener.let_go == list(zip((one, two), ended, strict=True))


async def test_an_end_of_a_first_step_leaves_in_its_turn(finishing: Finishing) -> None:
    """A flush comes after the first steps of calls that have just begun, so a lone call's answer waits for no further turn of the loop."""
    loop = asyncio.get_running_loop()
    one = finishing.bench.hold(b"1-0")
    loop.call_soon(finishing.outbox.finish, one, b"end")
    finishing.outbox.flush_soon()
    await asyncio.sleep(0)
    assert finishing.bench.link.names == ["finish"]
    assert finishing.drained()
