"""Shared calls on a connection that is played by hand: what is published, what each answer means, and how callers leave."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from tests.broker.fakes import KEYS, FakeLink, request
from toolbus.bus.broker import publish
from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.broker.publish import ABSENT, SharedCalls
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.envelope import Frame, share_digest, work_digest
from toolbus.bus.values.results import ErrorInfo


class Calling:
    """One caller with a key; it is its own sender, and knows whether the server is surely the master."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.sure, self.done, self.wakes = True, False, 0
        self.asked: list[bool] = []
        self.verdicts: list[Verdict] = []
        self.calls = SharedCalls(cast("Any", self.link), KEYS, "agent", 60.0, self.wake, cast("Any", self))
        self.request = request(b"1-0", idempotency_key="key", shared=True)

    def wake(self) -> None:
        """Count."""
        self.wakes += 1

    def admits(self, *, once: bool) -> bool:
        """Return whether the server is the master."""
        self.asked.append(once)
        return self.sure

    def settle(self, verdict: Verdict) -> None:
        """Take in a verdict."""
        self.verdicts.append(verdict)

    def publish(self, answer: Any, *, entry: bytes = b"1-0", left: float = 30.0, **fields: Any) -> Verdict | None:
        """Publish with some seconds left; the verdict."""
        self.link.answers["share"] = answer
        wanted = request(entry, idempotency_key="key", shared=True, **fields)
        self.calls.publish(wanted, "pool", 10, time.monotonic() + left, b"document", cast("Any", self))
        return self.verdicts[-1] if self.verdicts else None

    @property
    def published(self) -> list[tuple[Any, ...]]:
        """Return the published words, without the time that is left."""
        sent = zip(self.link.keys("share"), self.link.args("share"), strict=True)
        return [(keys, args[:4], args[5:]) for keys, args in sent]


@pytest.mark.parametrize(("effect", "server"), [("read", ""), ("once", "run-one")])
def test_a_shared_call_is_published_under_its_key(effect: str, server: str) -> None:
    """With everything that a worker and the next caller need; ``once`` work only by the server that accepted it."""
    calling = Calling()
    calling.publish([b"queued", b"1-1"], effect=effect)
    sent = request(b"1-0", idempotency_key="key", shared=True, effect=effect)
    assert calling.link.keys("share") == [(KEYS.shared(share_digest(sent)), KEYS.queue("pool"), KEYS.call("call-1-0"))]
    [(call, digest, agent, limit, left, *rest)] = calling.link.args("share")
    assert (call, digest, agent, limit) == ("call-1-0", work_digest(sent), "agent", 10)
    assert 25_000 < left <= 30_000
    assert rest == [b"document", 60_000, server, KEYS.prefix, KEYS.wake("pool")]
    assert calling.link.options == [(True, effect == "once")]
    assert calling.asked == [effect == "once"]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ([b"queued", b"1-1"], Verdict("queued", entry="1-1")),
        ([b"joined", b"1-1", b"first"], Verdict("queued", entry="1-1")),
        ([b"conflict"], Verdict("conflict")),
        ([b"absent"], ABSENT),
        ([b"full", 7], Verdict("full", depth=7)),
    ],
)
def test_each_answer_has_its_verdict(answer: Any, verdict: Verdict) -> None:
    """A call that is queued or joined is read from then on, in the stream of the call that runs."""
    calling = Calling()
    assert calling.publish(answer) == verdict
    runs = {b"queued": "call-1-0", b"joined": "first"}.get(answer[0])
    assert calling.calls.positions() == ([(KEYS.call(runs).encode(), b"0")] if runs else [])
    assert calling.wakes == (1 if runs else 0)


def test_an_answer_that_can_not_be_read_leaves_the_outcome_open() -> None:
    """Another client wrote the record; an error of the server is a failure of the call alone."""
    calling = Calling()
    unread = calling.publish([b"joined", b"1-1", b"no id!"])
    assert unread is not None
    assert unread.status == "unknown"
    assert "idempotency key" in unread.message
    failed = calling.publish(ReplyError("OOM no memory"))
    assert failed == Verdict("failed", message="OOM no memory")


def test_a_caller_that_is_gone_by_the_answer_is_read_for_no_more() -> None:
    """Its call has ended meanwhile."""
    calling = Calling()
    calling.done = True
    calling.publish([b"queued", b"1-1"])
    assert calling.calls.positions() == []


def test_calls_wait_for_a_server_that_is_surely_the_master() -> None:
    """They are published when it is, unless they were cancelled by then."""
    calling, fates = Calling(), []
    calling.sure = False
    assert calling.publish([b"queued", b"1-1"]) is None
    calling.calls.release()
    assert calling.link.names == []
    calling.calls.cancel(calling.request, "pool", "", fates.append, 0.0)
    calling.sure = True
    calling.calls.release()
    assert (fates, calling.link.names) == (["removed"], [])
    calling.sure = False
    calling.publish([b"queued", b"1-1"])
    calling.sure = True
    calling.calls.release()
    assert calling.verdicts == [Verdict("queued", entry="1-1")]


def test_what_was_kept_is_published_as_it_was_asked_for() -> None:
    """Nothing of it is lost meanwhile; what ended meanwhile is not published."""
    calling = Calling()
    calling.publish([b"queued", b"1-1"])
    calling.sure = False
    calling.publish([b"queued", b"1-1"])
    calling.publish([b"queued", b"1-2"], entry=b"2-0")
    calling.calls.forget("call-2-0")
    calling.sure = True
    calling.calls.release()
    first, second = calling.published
    assert first == second


def test_calls_that_are_kept_are_bounded() -> None:
    """One more fails, certainly not queued."""
    calling = Calling()
    calling.sure = False
    for number in range(10_000):
        calling.publish(None, entry=f"{number}-0".encode())
    assert calling.verdicts == []
    beyond = calling.publish(None, entry=b"10000-0")
    assert beyond is not None
    assert (beyond.status, "10000 calls already wait" in beyond.message) == ("failed", True)


@pytest.mark.parametrize("leave", ["cancel", "forget"])
def test_calls_that_were_given_up_without_a_connection_take_no_room(monkeypatch: pytest.MonkeyPatch, leave: str) -> None:
    """They are not written, and make room for others, whose bytes are bounded."""
    monkeypatch.setattr(publish, "_MOST_WAITING_BYTES", 2 * len(b"document"))
    calling = Calling()
    calling.link.connected = False
    for number in range(5):
        calling.publish([b"queued", b"1-1"], entry=f"{number}-0".encode())
        assert calling.verdicts == []
        if number and leave == "forget":
            calling.calls.forget(f"call-{number}-0")
        elif number:
            calling.calls.cancel(request(f"{number}-0".encode(), idempotency_key="key", shared=True), "pool", "", None, 0.0)
    assert calling.link.names == []
    calling.publish([b"queued", b"1-1"], entry=b"6-0")
    beyond = calling.publish([b"queued", b"1-1"], entry=b"7-0")
    assert beyond is not None
    assert (beyond.status, "2 calls already wait" in beyond.message) == ("failed", True)
    calling.link.connected = True
    calling.calls.release()
    assert [args[0] for args in calling.link.args("share")] == ["call-0-0", "call-6-0"]


@pytest.mark.parametrize(("left", "status"), [(-1.0, "late"), (0.0005, "late"), (30.0, "absent")])
def test_a_call_whose_time_is_up_is_not_published(left: float, status: str) -> None:
    """The server is given no time for it, and its answer is not taken for that of a service without a queue."""
    calling = Calling()
    verdict = calling.publish([b"absent"], left=left)
    assert verdict is not None
    assert (verdict.status, calling.link.args("share")[0][4] == 0) == (status, left < 1)


def test_only_known_calls_are_forgotten() -> None:
    """A call may end before it is published."""
    calling = Calling()
    calling.calls.forget("call-1-0")
    calling.publish([b"queued", b"1-1"])
    calling.calls.forget("call-2-0")
    assert len(calling.calls.positions()) == 1


NOT_BEGUN = ErrorInfo("cancelled", "not_begun")


def ending(error: ErrorInfo | None = NOT_BEGUN, **fields: Any) -> Frame:
    """Return the last frame of a call that all of its callers had left before it began."""
    return Frame(**{"id": "first", "run": "run", "kind": "end", "end_of_stream": True, "error": error, **fields})


@pytest.mark.parametrize("sure", [True, False])
def test_who_joined_a_call_that_never_began_publishes_it_as_before(sure: bool) -> None:
    """At once, or when the server is surely the master. When its key still stands for that call, its end is this caller's end."""
    calling = Calling()
    calling.publish([b"joined", b"1-1", b"first"])
    calling.calls.positions()
    calling.sure = sure
    stream = KEYS.call("first").encode()
    assert calling.calls.addressed(stream, [ending()]) == []
    assert len(calling.published) == (2 if sure else 1)
    calling.sure = True
    calling.calls.release()
    first, second = calling.published
    assert first == second
    calling.calls.positions()
    assert [frame.id for frame in calling.calls.addressed(stream, [ending()])] == ["call-1-0"]
    assert len(calling.published) == 2


@pytest.mark.parametrize("error", [ErrorInfo("deadline_exceeded", "not_finished"), NOT_BEGUN])
def test_a_joined_call_that_ends_when_its_caller_s_own_time_is_up_is_not_published_again_for_it(error: ErrorInfo) -> None:
    """Its end says what became of the work; work that was given up before it began came too late for this caller."""
    calling = Calling()
    calling.publish([b"joined", b"1-1", b"first"], left=0.0)
    calling.calls.positions()
    calling.link.answers["share"] = [b"absent"]
    passed = [frame.error for frame in calling.calls.addressed(KEYS.call("first").encode(), [ending(error)])]
    assert (passed, calling.verdicts[-1].status) == (([error], "queued") if error.type == "deadline_exceeded" else ([], "late"))


@pytest.mark.parametrize(
    "frame",
    [
        ending(None),
        ending(ErrorInfo("tool_error", "not_begun")),
        ending(ErrorInfo("cancelled")),
        ending(end_of_stream=False),
        Frame("first", "run"),
    ],
)
def test_any_other_frame_is_passed_on(frame: Frame) -> None:
    """It says that the work began, or that it failed."""
    calling = Calling()
    calling.publish([b"joined", b"1-1", b"first"])
    calling.calls.positions()
    passed = calling.calls.addressed(KEYS.call("first").encode(), [frame])
    assert [each.id for each in passed] == ["call-1-0"]
    assert len(calling.published) == 1


def test_frames_of_another_call_are_nobodys() -> None:
    """Any client may have written them."""
    calling = Calling()
    calling.publish([b"joined", b"1-1", b"first"])
    calling.calls.positions()
    assert calling.calls.addressed(KEYS.call("first").encode(), [Frame("second", "run")]) == []
    assert calling.calls.addressed(b"another stream", [ending()]) == []


@pytest.mark.anyio
@pytest.mark.parametrize(("effect", "once"), [("read", 0), ("once", 1)])
async def test_a_caller_leaves_the_call_that_runs_for_it(effect: str, once: int) -> None:
    """By its key, so that the last caller's leaving cancels it; the workers hear of it on the service's channel."""
    calling, fates = Calling(), []
    calling.publish([b"joined", b"1-1", b"first"], effect=effect)
    calling.link.answers["cancel"] = b"signalled"
    sent = request(b"1-0", idempotency_key="key", shared=True, effect=effect)
    calling.calls.cancel(sent, "pool", "1-1", fates.append, 5.0)
    calling.calls.forget("call-1-0")
    calling.calls.cancel(sent, "pool", "", None, -60.0, "deadline_exceeded")
    assert calling.link.keys("cancel")[0] == (KEYS.queue("pool"), KEYS.cancelled("pool"), KEYS.shared(share_digest(sent)))
    assert calling.link.args("cancel") == [
        ("1-1", "first", 35_000, KEYS.wake("pool"), "cancelled", "call-1-0", KEYS.prefix, once),
        ("0-1", "call-1-0", 1, KEYS.wake("pool"), "deadline_exceeded", "call-1-0", KEYS.prefix, once),
    ]
    assert fates == ["signalled"]
    assert calling.calls.positions() == []
