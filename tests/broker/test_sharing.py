"""Reading of shared calls: the reads and the joins in the order that matters, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.broker.publish import SharedCalls
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.mastership import Mastership
from toolbus.bus.values.envelope import Frame, Request
from toolbus.bus.values.results import ErrorInfo

KEYS = Keys("sharing")
STREAM = KEYS.call("first").encode()


class Caller:
    """A call that waits for its verdict and is not over."""

    done = False

    def settle(self, verdict: Verdict) -> None:
        """Take in what became of the publication."""
        assert verdict.status == "queued"


class Answering:
    """A link on which every call is published, or joins the first one."""

    server = None
    connected = True

    def __init__(self) -> None:
        self.joined = False

    def run(self, _script: object, _keys: object, _args: object, done: Callable[[Any], None], **_: object) -> None:
        """Answer as share.lua would."""
        done([b"joined", b"1-1", b"first"] if self.joined else [b"queued", b"1-1"])
        self.joined = True


class Sure:
    """A mastership that is always certain."""

    def admits(self, *, once: bool) -> bool:
        """Everything."""
        return True


class Reader:
    """Shared calls of one process, and its reads played by hand."""

    def __init__(self) -> None:
        self.wakes = 0
        self.calls = SharedCalls(cast("Link", Answering()), KEYS, "agent", 60.0, self.woken, cast("Mastership", Sure()))

    def woken(self) -> None:
        """Count what makes a waiting read return."""
        self.wakes += 1

    def publish(self, call: str) -> None:
        """Make a call with the one key."""
        request = Request(call, "agent", "s", "t", idempotency_key="k", shared=True)
        self.calls.publish(request, "s", 10, 1e9, b"", cast("Any", Caller()))

    def read(self, entry: bytes, seq: int) -> list[tuple[str, int]]:
        """Read one frame, and return the calls that get it, each with the frame's number."""
        self.calls.passed(STREAM, entry)
        return [(frame.id, frame.seq) for frame in self.calls.addressed(STREAM, [Frame("first", "run", seq=seq)])]


def test_who_joins_during_a_read_gets_nothing_of_it() -> None:
    """A caller that joins during a read gets nothing of it; the next read begins at the start of the stream, for both callers."""
    reader = Reader()
    reader.publish("first")
    assert reader.calls.positions() == [(STREAM, b"0")]
    assert reader.read(b"1-0", 0) == [("first", 0)]
    assert reader.calls.positions() == [(STREAM, b"1-0")]
    reader.publish("second")
    assert reader.wakes == 2
    assert reader.read(b"2-0", 1) == [("first", 1)]
    assert reader.calls.positions() == [(STREAM, b"0")]
    assert reader.read(b"1-0", 0) == [("first", 0), ("second", 0)]
    assert reader.calls.positions() == [(STREAM, b"1-0")]


def test_a_stream_is_read_until_its_last_caller_is_over() -> None:
    """Also when the last one has joined and not been read for yet."""
    reader = Reader()
    reader.publish("first")
    reader.calls.positions()
    reader.publish("second")
    reader.calls.forget("first")
    assert reader.calls.positions() == [(STREAM, b"0")]
    reader.publish("third")
    reader.calls.forget("second")
    reader.calls.forget("third")
    assert reader.calls.positions() == []


def test_who_joined_a_call_that_never_began_starts_it_anew() -> None:
    """Its callers had left it, which says nothing about the work; when the key still stands for that call, the joiner is told so."""
    reader = Reader()
    reader.publish("first")
    reader.publish("second")
    reader.calls.forget("first")
    reader.calls.positions()
    error = ErrorInfo("cancelled", "not_begun", "cancelled by the caller before the tool began")
    ended = Frame("first", "run", kind="end", end_of_stream=True, error=error)
    assert reader.calls.addressed(STREAM, [ended]) == []
    assert reader.calls.positions() == [(STREAM, b"0")]
    assert [(frame.id, frame.error, frame.attempt) for frame in reader.calls.addressed(STREAM, [ended])] == [("second", error, 2)]


def test_who_comes_back_during_a_read_begins_at_the_start() -> None:
    """The stream was left and is followed again while an old read of it is on its way."""
    reader = Reader()
    reader.publish("first")
    reader.calls.positions()
    reader.read(b"1-0", 0)
    reader.calls.forget("first")
    reader.publish("second")
    assert reader.read(b"2-0", 1) == []
    assert reader.calls.positions() == [(STREAM, b"0")]
    assert reader.read(b"1-0", 0) == [("second", 0)]
