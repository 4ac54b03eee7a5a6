"""The publisher alone: what goes in which flush, what waits, and what becomes of answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from tests.broker.fakes import KEYS, FakeLink, Times
from tests.servers import elapse
from tests.virtual_time import VirtualLoop
from toolbus.bus.broker.protocols import Fate, Verdict
from toolbus.bus.broker.publish import ABSENT, Publish, Publisher, Requests, SharedCalls, failure, read_verdicts, report_fate
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.broker.transport.command import ReplyError, UnwrittenError
from toolbus.bus.values.envelope import Request, encode_request
from toolbus.bus.values.results import BrokerUnavailable, EnvelopeError

pytestmark = pytest.mark.anyio


MIB = 1024 * 1024


class Call:
    """A call that waits for its verdict."""

    def __init__(self) -> None:
        self.done = False
        self.verdict: Verdict | None = None

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""
        assert self.verdict is None
        self.verdict = verdict


class Publishing:
    """A publisher, and a mastership that admits what the test says."""

    unquestioned = False

    def __init__(self) -> None:
        self.link = FakeLink()
        self.times = Times()
        self.admitted = {True, False}
        self.link.answers["publish"] = lambda keys, args: b" ".join([b"1-1"] * ((len(args) - 3) // 4))
        self.publisher = Publisher(cast("Any", self.link), KEYS, "agent", cast("Any", self), self.times)
        self.calls: dict[str, Call] = {}

    def admits(self, *, once: bool) -> bool:
        """Return whether work may be published now."""
        return once in self.admitted

    def publish(
        self, name: str, *, once: bool = False, size: int = 2, queue: str = "pool", deadline: float = 105.0, session: str = ""
    ) -> Call:
        """Publish a call."""
        made = self.calls[name] = Call()
        self.publisher.publish(Publish(name, queue, 10, deadline, b"x" * size, made, once, session))
        return made

    async def turn(self) -> None:
        """Let this tick end."""
        await asyncio.sleep(0)

    @property
    def statuses(self) -> list[str]:
        """Return the status of each call's verdict, or ``waits``."""
        return ["waits" if call.verdict is None else call.verdict.status for call in self.calls.values()]


@pytest.fixture
def anyio_backend() -> Any:
    """Run each test on a loop whose time passes at once."""
    return ("asyncio", {"loop_factory": VirtualLoop})


@pytest.fixture
async def publishing() -> Publishing:
    """A publisher of the test's own."""
    return Publishing()


async def test_calls_of_one_tick_are_one_script(publishing: Publishing) -> None:
    """Each names its stream, bound, time left and document; streams are named once."""
    for name, queue in (("one", "pool"), ("two", "other"), ("three", "pool")):
        publishing.publish(name, queue=queue)
    assert publishing.link.names == []
    await publishing.turn()
    assert publishing.link.keys("publish") == [(KEYS.flushes("agent"), KEYS.queue("pool"), KEYS.queue("other"))]
    assert publishing.link.args("publish") == [(0, 600_000, "", 2, 10, 5_000, b"xx", 3, 10, 5_000, b"xx", 2, 10, 5_000, b"xx")]
    assert publishing.link.options == [(True, False)]
    assert publishing.link.flushes == 1
    assert publishing.statuses == ["queued"] * 3
    assert publishing.publisher.published == 3


async def test_the_call_of_a_caller_that_was_just_woken_leaves_in_its_turn(publishing: Publishing) -> None:
    """The publisher flushes after callers that were just woken; a flush of nothing is none."""
    loop = asyncio.get_running_loop()
    for name in ("one", "two"):
        loop.call_soon(publishing.publish, name)
    publishing.publisher.flush_soon()
    await publishing.turn()
    assert publishing.link.names == ["publish"]
    publishing.publisher.flush_soon()
    await publishing.turn()
    assert publishing.statuses == ["queued"] * 2
    assert publishing.link.names == ["publish"]


async def test_what_its_caller_gave_up_is_not_published(publishing: Publishing) -> None:
    """A flush of nothing else is none."""
    publishing.publish("one").done = True
    await publishing.turn()
    assert publishing.link.names == []
    publishing.publish("two").done = True
    publishing.publish("three")
    await publishing.turn()
    assert publishing.publisher.published == 1
    assert publishing.link.args("publish")[0][0] == 0, "the number of the first flush"


async def test_a_call_whose_time_is_up_has_a_millisecond(publishing: Publishing) -> None:
    """Its worker says that it came too late."""
    publishing.publish("late", deadline=99.0)
    await publishing.turn()
    assert publishing.link.args("publish")[0][5] == 1


@pytest.mark.parametrize(("deadline", "status"), [(99.0, "late"), (100.0005, "late"), (105.0, "absent")])
async def test_a_call_that_came_too_late_is_not_taken_for_one_without_a_queue(publishing: Publishing, deadline: float, status: str) -> None:
    """The server answers both alike."""
    publishing.link.answers["publish"] = lambda keys, args: b"-"
    publishing.publish("late", deadline=deadline)
    await publishing.turn()
    assert publishing.statuses == [status]


HALF = 524_288
"""Half of the bytes that one script publishes at most."""


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize(
    ("sizes", "parts"),
    [([2] * 513, [256, 256, 1]), ([HALF] * 4, [2, 2]), ([500_000] * 3, [2, 1]), ([2 * HALF + 1, 1], [1, 1]), ([1, 2 * HALF], [1, 1])],
)
async def test_scripts_are_bounded(publishing: Publishing, sizes: list[int], parts: list[int], once: bool) -> None:
    """256 requests, or 1 MiB, are one script; each of ``once`` work names the server that it is for."""
    for number, size in enumerate(sizes):
        publishing.publish(str(number), size=size, once=once)
    await publishing.turn()
    assert [(len(args) - 3) // 4 for args in publishing.link.args("publish")] == parts
    assert [args[:3] for args in publishing.link.args("publish")] == [(n, 600_000, "run-one" if once else "") for n in range(len(parts))]
    assert publishing.link.options == [(True, once)] * len(parts)
    assert publishing.publisher.published == len(sizes)
    assert set(publishing.statuses) == {"queued"}


async def test_each_flush_names_the_one_before_it_that_is_unanswered(publishing: Publishing) -> None:
    """So the server keeps the order of the calls, and a flush that it refused is sent again behind what is still open."""
    publishing.link.holding = True
    for name in ("one", "two", "three"):
        publishing.publish(name)
        await publishing.turn()
    assert [args[7:] for args in publishing.link.args("publish")] == [(), (0,), (1,)]
    publishing.link.release()
    publishing.link.answers["publish"] = lambda keys, args: ReplyError("NOTYET flush 0 was not carried out")
    publishing.link.release()
    assert publishing.statuses == ["queued", "waits", "waits"]
    assert [args[0] for args in publishing.link.args("publish")] == [0, 1, 2, 1]
    assert publishing.link.args("publish")[3][7:] == (), "nothing before it is open"
    publishing.link.release()
    assert publishing.link.args("publish")[4][7:] == (1,)
    publishing.link.answers["publish"] = lambda keys, args: b"1-1"
    publishing.link.release()
    publishing.link.release()
    assert publishing.statuses == ["queued"] * 3


@pytest.mark.parametrize("session", ["", "s"])
async def test_no_more_flushes_are_open_than_the_server_remembers(publishing: Publishing, session: str) -> None:
    """Beyond, one that is written again after a lost connection would be carried out again; later calls wait, in their order."""
    publishing.link.holding = True
    for number in range(66):
        publishing.publish(str(number), session=session)
        await publishing.turn()
    assert len(publishing.link.args("publish")) == 64
    assert not publishing.publisher._writes(Publish("x", "pool", 1, 1.0, b"", Call(), once=False)), "they count as waiting ones"
    publishing.link.release()
    await publishing.turn()
    documents = [args[6] for args in publishing.link.args("publish")[64:]]
    assert len(documents) == 1, "both waited, and leave together"
    for _ in range(64):
        publishing.link.release()
    assert publishing.statuses == ["queued"] * 66


async def test_without_a_connection_calls_wait(publishing: Publishing) -> None:
    """Calls wait for a connection, and one that is cancelled meanwhile was certainly never published."""
    publishing.link.connected = False
    publishing.publish("one")
    publishing.publish("two")
    await publishing.turn()
    assert publishing.link.names == []
    fates: list[str] = []
    publishing.publisher.cancel("one", "pool", "", 1_000, fates.append)
    publishing.publisher.cancel("none", "pool", "", 1_000, fates.append)
    assert fates == ["removed", "unknown"]
    publishing.link.connected = True
    publishing.publisher.flush()
    assert publishing.statuses == ["waits", "queued"]


async def test_calls_that_wait_are_bounded(publishing: Publishing) -> None:
    """Calls beyond the bound end as failed, certainly not queued; those that were written do not count."""
    publishing.link.connected = False
    for number in range(10_001):
        publishing.publish(str(number))
    await publishing.turn()
    assert publishing.statuses == ["waits"] * 10_000 + ["failed"]
    beyond = publishing.calls["10000"].verdict
    assert beyond is not None
    assert "10000 calls already wait" in beyond.message
    publishing.link.connected = True
    publishing.publisher.flush()
    assert "waits" not in publishing.statuses


async def test_bytes_that_wait_are_bounded(publishing: Publishing) -> None:
    """Calls that were refused take no room, and neither do those that were written."""
    for _ in range(2):
        publishing.calls.clear()
        publishing.link.connected = False
        for name, size in (("large", 64 * MIB - 3), ("beyond", 4), ("fits", 2), ("beyond, too", 2), ("last", 1), ("none", 1)):
            publishing.publish(name, size=size)
        await publishing.turn()
        assert publishing.statuses == ["waits", "failed", "waits", "failed", "waits", "failed"]
        publishing.link.connected = True
        publishing.publisher.flush()
        assert publishing.statuses == ["queued", "failed", "queued", "failed", "queued", "failed"]


@pytest.mark.parametrize(("calls", "size", "asked"), [(10_000, 1, False), (1, 64 * MIB, False), (1, 64 * MIB, True)])
async def test_calls_that_were_given_up_take_no_room(publishing: Publishing, calls: int, size: int, asked: bool) -> None:
    """A caller that leaves while there is no connection makes room for others, in calls and in bytes."""
    publishing.link.connected = False
    for turn in range(3):
        for number in range(calls):
            publishing.publish(f"{turn} {number}", size=size)
        await publishing.turn()
        assert set(publishing.statuses) == {"waits"}
        for name, call in publishing.calls.items():
            call.done = True
            if asked:
                publishing.publisher.cancel(name, "pool", "", 1_000, None)
        publishing.calls.clear()
    publishing.publish("wanted", size=size)
    publishing.link.connected = True
    publishing.publisher.flush()
    assert publishing.publisher.published == 1


@pytest.mark.parametrize("connected", [False, True])
async def test_a_flood_of_calls_is_no_flood_of_looks(publishing: Publishing, connected: bool) -> None:
    """Calls that wait are not looked through for each one that finds no room, or that is written at once."""
    looks = 0

    class Looked:
        verdict: Verdict | None = None
        settle = Call.settle

        @property
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return False

    publishing.link.connected = connected
    for number in range(11_000):
        publishing.publisher.publish(Publish(str(number), "pool", 10, 105.0, b"xx", cast("Any", Looked()), False))
    assert looks < 200_000


async def test_calls_that_are_kept_for_a_master_count_too(publishing: Publishing) -> None:
    """Of either kind; others that can be written now are not held up by them."""
    publishing.admitted = set()
    publishing.publish("pay", once=True, size=40 * MIB)
    publishing.publish("read", size=24 * MIB)
    await publishing.turn()
    assert publishing.link.flushes == 1
    publishing.admitted = {False}
    publishing.publish("pay more", once=True, size=1)
    publishing.publish("read more", size=1)
    await publishing.turn()
    assert publishing.statuses == ["waits", "queued", "failed", "queued"]
    publishing.admitted = {True}
    publishing.publish("pay again", once=True, size=1)
    await publishing.turn()
    assert publishing.statuses == ["queued", "queued", "failed", "queued", "queued"]


async def test_work_that_must_not_happen_twice_waits_for_a_sure_master(publishing: Publishing) -> None:
    """Other work goes on; when it is published it names the server, and goes to no other."""
    publishing.admitted = {False}
    publishing.publish("pay", once=True)
    publishing.publish("given up", once=True).done = True
    publishing.publish("read")
    await publishing.turn()
    assert publishing.statuses == ["waits", "waits", "queued"]
    publishing.admitted = {True, False}
    publishing.publisher.flush()
    assert publishing.statuses == ["queued", "waits", "queued"]
    assert publishing.link.args("publish")[1][2] == "run-one"
    assert publishing.link.options == [(True, False), (True, True)]


async def test_a_master_that_is_being_replaced_gets_nothing(publishing: Publishing) -> None:
    """It would lose what it acknowledges."""
    publishing.admitted = set()
    publishing.publish("one")
    publishing.publish("two", once=True)
    await publishing.turn()
    assert publishing.link.names == []
    assert publishing.statuses == ["waits", "waits"]
    publishing.admitted = {True, False}
    publishing.publisher.flush()
    assert publishing.statuses == ["queued", "queued"]


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (BrokerUnavailable("lost"), "unknown", "lost"),
        (ReplyError("OOM command not allowed"), "failed", "OOM command not allowed"),
        (b"1-1", "queued", ""),
        (b"-", "absent", "no request stream"),
        (b"!7", "full", ""),
        (b"1-1 1-2", "unknown", "2 verdicts for 1 requests"),
        (b"!x", "unknown", "no whole number"),
    ],
)
async def test_each_answer_is_a_verdict(publishing: Publishing, answer: Any, status: str, says: str) -> None:
    """A lost answer says nothing; an error says that nothing was written."""
    publishing.link.answers["publish"] = lambda keys, args: answer
    call = publishing.publish("one")
    await publishing.turn()
    assert call.verdict is not None
    assert call.verdict.status == status
    assert says in call.verdict.message
    assert call.verdict.depth == (7 if status == "full" else 0)
    assert call.verdict.entry == ("1-1" if status == "queued" else "")
    publishing.link.answers["publish"] = lambda keys, args: b"1-2"
    publishing.publish("two")
    await publishing.turn()
    assert publishing.link.args("publish")[1][7:] == (), "the first one is answered"


async def test_a_call_is_cancelled_where_it_is_queued(publishing: Publishing) -> None:
    """The workers hear of it for as long as it could run."""
    fates: list[str] = []
    for answer in (b"removed", b"signalled", b"gone", b"shared", b"nonsense", BrokerUnavailable("lost")):
        publishing.link.answers["cancel"] = lambda keys, args, answer=answer: answer
        publishing.publisher.cancel("call", "pool", "1-1", 0, fates.append)
    assert fates == ["removed", "signalled", "gone", "shared", "unknown", "unknown"]
    assert publishing.link.keys("cancel")[0] == (KEYS.queue("pool"), KEYS.cancelled("pool"))
    assert publishing.link.args("cancel")[0] == ("1-1", "call", 1, KEYS.wake("pool"), "cancelled")
    publishing.publisher.cancel("call", "pool", "1-1", 500, None)
    assert publishing.link.args("cancel")[-1][2] == 500
    publishing.publisher.cancel("call", "pool", "1-1", 500, None, once=True)
    assert publishing.link.args("cancel")[-1][4:] == ("cancelled", "call", KEYS.prefix, 1)


async def test_calls_that_keep_their_places_leave_in_their_order(publishing: Publishing) -> None:
    """Calls behind one that may not be written yet wait for it; calls without a place do not."""
    publishing.admitted = {False}
    for name, once in (("a", False), ("b", False), ("c", True), ("d", False)):
        publishing.publish(name, once=once, session=f"s-{name}")
    publishing.publish("other")
    await publishing.turn()
    assert publishing.statuses == ["queued", "queued", "waits", "waits", "queued"]
    order = KEYS.order("pool")
    memo = KEYS.flushes("agent")
    assert publishing.link.keys("publish") == [(memo, KEYS.queue("pool"), order), (memo, KEYS.queue("pool"))]
    assert publishing.link.args("publish")[0] == (0, 600_000, "", 2, "10 3 s-a", 5_000, b"xx", 2, "10 3 s-b", 5_000, b"xx")
    publishing.admitted = {True, False}
    publishing.publisher.flush()
    assert publishing.statuses == ["queued"] * 5
    assert [args[2] for args in publishing.link.args("publish")[2:]] == ["run-one", ""]
    assert [args[4] for args in publishing.link.args("publish")[2:]] == ["10 3 s-c", "10 3 s-d"]


def refused(code: str, *, repeated: bool = False) -> ReplyError:
    """A refusal of every write; repeated, the answer to an earlier one was lost."""
    error = ReplyError(f"{code} for a while")
    error.repeated = repeated
    return error


class Refusing:
    """The server's answers to scripts of one name, one after the other, and when it was asked, in seconds from the beginning."""

    def __init__(self, link: FakeLink, name: str, *answers: Any) -> None:
        self.answers = [*answers]
        self.began = asyncio.get_running_loop().time()
        self.times: list[float] = []
        self.asked: list[tuple[Any, ...]] = []
        link.answers[name] = self.answer

    def answer(self, keys: Any, args: Any) -> Any:
        """Say the next one; the last one again and again."""
        self.times.append(round(asyncio.get_running_loop().time() - self.began, 2))
        self.asked.append(args)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("code", ["MISCONF", "OOM"])
async def test_what_may_have_been_published_is_written_until_the_server_says(publishing: Publishing, code: str) -> None:
    """A flush whose answer was lost, and which is refused then, is written again after 50 ms, and later and later, up to once a second."""
    refusing = Refusing(publishing.link, "publish", *[refused(code, repeated=True)] * 7, b"1-1")
    publishing.publish("call")
    await elapse(3.0)
    assert publishing.statuses == ["waits"]
    await elapse(1.0)
    assert publishing.statuses == ["queued"]
    assert refusing.times == [0.0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55]
    assert refusing.asked == [refusing.asked[0]] * 8
    assert publishing.link.options == [(True, False)] * 8


@pytest.mark.parametrize("refusal", [refused("MISCONF"), refused("READONLY", repeated=True)])
async def test_a_refusal_of_which_no_answer_was_lost_is_told_at_once(publishing: Publishing, refusal: ReplyError) -> None:
    """A refused flush is not written again when no answer was lost, or when the refusal does not pass by itself."""
    refusing = Refusing(publishing.link, "publish", refusal)
    publishing.publish("call")
    await elapse(1.0)
    assert publishing.statuses == ["unknown" if refusal.repeated else "failed"]
    assert len(refusing.times) == 1


async def test_what_may_have_been_published_stays_unknown_when_it_can_not_be_written_again(publishing: Publishing) -> None:
    """A flush in doubt of which no further try is written may have been carried out all the same."""
    Refusing(publishing.link, "publish", refused("OOM", repeated=True), UnwrittenError("the connection was closed"))
    publishing.publish("call")
    await elapse(1.0)
    assert publishing.statuses == ["unknown"]


async def test_what_nobody_waits_for_any_more_is_not_written_again(publishing: Publishing) -> None:
    """When all of its calls are given up, a flush in doubt ends as unknown."""
    refusing = Refusing(publishing.link, "publish", refused("OOM", repeated=True))
    call = publishing.publish("call")
    await elapse(0.1)
    call.done = True
    await elapse(1.0)
    assert call.verdict is not None
    assert call.verdict == Verdict(
        "unknown", message="an answer was lost with its connection, and then the server refused: OOM for a while"
    )
    assert refusing.times == [0.0, 0.05, 0.15]


async def test_what_is_given_up_meanwhile_is_written_again_without_time(publishing: Publishing) -> None:
    """A flush stays as it was, so that the server knows it; one that it has not carried out publishes no call that nobody waits for."""
    times: list[list[int]] = []

    def answer(keys: Any, args: Any) -> Any:
        times.append([args[5], args[9]])
        return refused("OOM", repeated=True) if len(times) < 3 else b"- 1-1"

    publishing.link.answers["publish"] = answer
    given_up, wanted = publishing.publish("given up"), publishing.publish("wanted")
    await elapse(0.1)
    given_up.done = True
    await elapse(1.0)
    assert [[time > 0 for time in both] for both in times] == [[True, True], [True, True], [False, True]]
    assert (given_up.verdict, wanted.verdict) == (ABSENT, Verdict("queued", "1-1"))


async def test_a_flush_behind_one_in_doubt_waits_for_it(publishing: Publishing) -> None:
    """A flush names the one before it while that has no answer, and is written again every 50 ms until it may be known."""
    link, loop = publishing.link, asyncio.get_running_loop()
    began, first, asked = loop.time(), [refused("OOM", repeated=True), refused("OOM"), b"1-1"], list[tuple[Any, ...]]()

    def answer(keys: Any, args: Any) -> Any:
        asked.append((args[0], round(loop.time() - began, 2), args[7:]))
        if args[0] == 0:
            return first.pop(0)
        return refused("NOTYET") if first else b"1-2"

    link.answers["publish"] = answer
    link.holding = True
    for name in ("one", "two"):
        publishing.publish(name)
        await publishing.turn()
    link.holding = False
    link.release()
    link.release()
    await elapse(1.0)
    assert publishing.statuses == ["queued", "queued"]
    assert [each for each in asked if each[0] == 0] == [(0, 0.0, ()), (0, 0.05, ()), (0, 0.15, ())]
    *behind, (_, at, earlier) = [each for each in asked if each[0] == 1]
    assert behind == [(1, pytest.approx(0.05 * number), (0,)) for number in range(len(behind))]
    assert (at, earlier) == (pytest.approx(0.05 * len(behind)), ())
    assert 0.15 <= at <= 0.2


async def test_a_cancellation_that_is_refused_is_sent_again_while_the_call_may_run(publishing: Publishing) -> None:
    """A cancellation that is refused for now is repeated for the time that the call has, and a lasting refusal is told at once."""
    fates: list[Fate] = []
    for answers, times, fate in (
        ([refused("OOM"), refused("NOTYET"), b"removed"], [0.0, 0.05, 0.15], "removed"),
        ([refused("MISCONF")], [0.0, 0.05, 0.15, 0.35, 0.75], "unknown"),
        ([refused("READONLY")], [0.0], "unknown"),
    ):
        refusing = Refusing(publishing.link, "cancel", *answers)
        publishing.publisher.cancel("call", "pool", "1-1", 500, fates.append)
        await elapse(2.0)
        assert (refusing.times, fates.pop()) == (times, fate)


@pytest.mark.parametrize("session", ["", "s"])
async def test_a_shared_call_that_may_have_been_published_is_written_again(publishing: Publishing, session: str) -> None:
    """A shared call in doubt is written again; one that keeps its place names the order of its queue, too."""
    shared = SharedCalls(cast("Any", publishing.link), KEYS, "agent", 60.0, lambda: None, cast("Any", publishing))
    refusing = Refusing(publishing.link, "share", refused("OOM", repeated=True), refused("OOM"), [b"queued", b"1-1"])
    call = Call()
    request = Request("c", "agent", "pool", "t", idempotency_key="k", shared=True)
    shared.publish(request, "pool", 10, 1e9, b"{}", cast("Any", call), session)
    await elapse(1.0)
    assert call.verdict == Verdict("queued", entry="1-1")
    assert refusing.times == [0.0, 0.05, 0.15]
    [keys] = set(publishing.link.keys("share"))
    assert keys[1:] == (KEYS.queue("pool"), KEYS.call("c"), *([KEYS.order("pool")] if session else []))
    assert refusing.asked[0][7:] == ("", KEYS.prefix, KEYS.wake("pool"), *([session] if session else []))


async def test_a_shared_call_that_is_given_up_meanwhile_is_written_again_without_time(publishing: Publishing) -> None:
    """Its first try may not have come to the server, and then it begins for nobody."""
    shared, call = SharedCalls(cast("Any", publishing.link), KEYS, "agent", 60.0, lambda: None, cast("Any", publishing)), Call()
    publishing.link.holding = True
    deadline = asyncio.get_running_loop().time() + 1e9
    shared.publish(Request("c", "agent", "pool", "t", idempotency_key="k", shared=True), "pool", 10, deadline, b"{}", cast("Any", call))
    renew = publishing.link.renewals["publish/share"]
    assert renew()[4] > 0
    call.done = True
    assert renew()[4] == 0


class Steps:
    """Takes note of what a publisher, and what shares calls, is asked for."""

    def __init__(self, name: str, seen: list[tuple[Any, ...]]) -> None:
        self.name, self.seen = name, seen

    def __getattr__(self, step: str) -> Any:
        return lambda *args, **options: self.seen.append((self.name, step, *args, *options.values()))


@pytest.mark.parametrize(("ordered", "session"), [(False, ""), (True, session_digest("u", "s"))])
@pytest.mark.parametrize("shared", [False, True])
async def test_requests_are_published_alone_or_shared(shared: bool, ordered: bool, session: str) -> None:
    """The publisher has requests of one caller, and the shared calls the others; a shared one in order flushes what came before it."""
    seen: list[tuple[Any, ...]] = []
    requests = Requests(cast("Any", Steps("own", seen)), cast("Any", Steps("shared", seen)), 200)
    request = Request("c", "a", "pool", user="u", session="s", shared=shared, ordered=ordered, effect="once", timeout=2.0)
    document, sender = encode_request(request, limit=200), Call()
    requests.publish(request, "pool", 10, 105.0, sender)
    requests.cancel(request, "pool", "1-1", seen.append, waited=0.5, why="why")
    requests.cancel(request, "pool", "1-1")
    requests.forget(request)
    alone = [
        ("own", "publish", Publish("c", "pool", 10, 105.0, document, sender, True, session)),
        ("own", "cancel", "c", "pool", "1-1", 2_500, seen.append, "why", True),
        ("own", "cancel", "c", "pool", "1-1", 2_000, None, "cancelled", True),
    ]
    together = [
        *([("own", "flush")] if ordered else []),
        ("shared", "publish", request, "pool", 10, 105.0, document, sender, session),
        ("shared", "cancel", request, "pool", "1-1", seen.append, 0.5, "why"),
        ("shared", "cancel", request, "pool", "1-1", None, 0.0, "cancelled"),
        ("shared", "forget", "c"),
    ]
    assert seen == (together if shared else alone)
    with pytest.raises(EnvelopeError, match="200"):
        requests.publish(msgspec.structs.replace(request, arguments={"x": "x" * 200}), "pool", 10, 105.0, sender)


def test_verdicts_are_read_in_order() -> None:
    """One word for each request, or the answer can't be read."""
    assert read_verdicts(b"1-1 - !3", 3) == [Verdict("queued", "1-1"), ABSENT, Verdict("full", depth=3)]
    for answer, why in ((b"1-1", "^1 verdicts for 2 requests$"), (b"1-1\n1-2", "^1 verdicts"), (b"1-1 what", "^'what' is no verdict$")):
        with pytest.raises(EnvelopeError, match=why):
            read_verdicts(answer, 2)
    with pytest.raises(EnvelopeError):
        read_verdicts(b"1" * 42, 1)
    assert failure(ReplyError("OOM")).message == "OOM"
    fates: list[Fate] = []
    report_fate("call", fates.append, b"removed")
    assert fates == ["removed"]
