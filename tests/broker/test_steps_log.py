"""Log events of taking, finishing, publishing and cancelling, with their fields."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.fakes import KEYS
from tests.broker.finishing import Finishing
from tests.broker.observing import Observed
from tests.broker.taking import Restless, Taking
from tests.broker.test_publisher import Publishing
from tests.broker.test_shared_calls import Calling
from tests.broker.test_wake_channel import Waking
from toolbus.bus.broker.publish import report_fate
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

GONE = BrokerUnavailable("gone")
REFUSED = ReplyError("NOPERM no rights")


async def test_ends_that_the_server_refused_are_counted_by_service(observed: Observed) -> None:
    """Other workers run the calls again."""
    finishing = Finishing()
    finishing.bench.link.answers["finish"] = REFUSED
    for entry in (b"1-0", b"2-0"):
        finishing.outbox.finish(finishing.bench.hold(entry), b"end")
    await finishing.turn()
    assert observed.events == [{"level": "ERROR", "event": "finish.refused", "service": "pool", "calls": 2, "error": "NOPERM no rights"}]


async def test_frames_that_the_server_refused_are_told_with_the_number_of_callers(observed: Observed) -> None:
    """Each of these callers lacks a frame."""
    finishing = Finishing()
    finishing.bench.link.answers["send"] = REFUSED
    for entry, agent in ((b"1-0", "first"), (b"2-0", "second")):
        finishing.outbox.send(finishing.bench.hold(entry, agent=agent), b"frame")
    await finishing.turn()
    assert observed.events == [{"level": "ERROR", "event": "frames.refused", "agents": 2, "error": "NOPERM no rights"}]


@pytest.mark.parametrize(
    ("error", "level", "event"),
    [("NOGROUP no such key", "WARNING", "requests.group_missing"), ("WRONGTYPE of the key", "ERROR", "requests.take_failed")],
)
async def test_a_read_that_fails_says_why(observed: Observed, error: str, level: str, event: str) -> None:
    """A group that is missing is made again; anything else needs an operator."""
    taking = Taking()
    taking.blocking.answers["XREADGROUP"] = ReplyError(error)
    taking.intake = taking.made(Restless)
    await taking.intake.take(10)
    assert observed.events == [{"level": level, "event": event, "error": error}]
    assert taking.did == ([] if level == "WARNING" else ["paused"])


async def test_a_read_that_fails_for_the_same_reason_is_told_once(observed: Observed) -> None:
    """A worker tries several times a second; another reason is news, and so is the same one after a read that went well."""
    taking = Taking()
    taking.intake = taking.made(Restless)
    for error in ("NOPERM no rights", "NOPERM no rights", "WRONGTYPE of the key", None, "WRONGTYPE of the key"):
        taking.blocking.answers["XREADGROUP"] = ReplyError(error) if error else None
        await taking.intake.take(10)
    assert [each["error"] for each in observed.events] == ["NOPERM no rights", "WRONGTYPE of the key", "WRONGTYPE of the key"]
    assert taking.did == ["paused"] * 4


async def test_requests_that_could_not_be_handed_back_are_told(observed: Observed) -> None:
    """Their leases run out, so it is a warning."""
    taking = Taking()
    taking.bench.listener.slots = 0
    taking.writing.answers["hand_back"] = GONE
    taking.found = [[[KEYS.queue("pool").encode(), taking.entries(1)]]]
    assert await taking.intake.take(10) == []
    await taking.bench.settle()
    assert observed.events == [{"level": "WARNING", "event": "requests.hand_back_failed", "error": "gone"}]


async def test_cancellations_that_can_not_be_read_are_told(observed: Observed) -> None:
    """All of them, or one that is no id, with its place."""
    waking = Waking()
    waking.bench.link.answers["ZREVRANGE"] = GONE
    await waking.channel.read_cancelled(waking.bench.stream)
    waking.bench.link.answers["ZREVRANGE"] = lambda keys, args: [b"!"]
    await waking.channel.read_cancelled(waking.bench.stream)
    unread, unreadable = observed.events
    assert unread == {"level": "WARNING", "event": "cancelled.unread", "service": "pool", "error": "gone"}
    assert unreadable["key"] == f"{KEYS.cancelled('pool')} !"
    assert "no id" in unreadable["error"]


async def test_a_message_that_can_not_be_read_is_told_with_its_channel(observed: Observed) -> None:
    """And with the word that it begins with."""
    await Waking().hear("cancel !")
    [event] = observed.events
    assert (event["event"], event["key"]) == ("value.unreadable", f"{KEYS.wake('pool')} cancel")
    assert "no id" in event["error"]


async def test_a_pause_and_its_end_are_told_once(observed: Observed) -> None:
    """By the service's name."""
    waking = Waking()
    for word in ("pause", "pause", "resume", "resume"):
        await waking.hear(f"{word} pool")
    assert observed.events == [
        {"level": "INFO", "event": "service.paused", "service": "pool"},
        {"level": "INFO", "event": "service.resumed", "service": "pool"},
    ]


@pytest.mark.parametrize(
    ("reply", "event"),
    [
        (b"removed", {"level": "DEBUG", "event": "cancel.done", "id": "call", "outcome": "removed"}),
        (b"nonsense", {"level": "DEBUG", "event": "cancel.done", "id": "call", "outcome": "unknown"}),
        (GONE, {"level": "WARNING", "event": "cancel.failed", "id": "call", "error": "gone"}),
    ],
)
def test_what_became_of_a_cancelled_call_is_told(observed: Observed, reply: Any, event: dict[str, Any]) -> None:
    """To developers, and to operators when the server could not be told."""
    report_fate("call", None, reply)
    assert observed.events == [event]


async def test_a_cancellation_names_its_call(observed: Observed) -> None:
    """Shared calls and others are named alike."""
    publishing, calling = Publishing(), Calling()
    publishing.link.answers["cancel"] = calling.link.answers["leave"] = b"gone"
    publishing.publisher.cancel("call", "pool", "1-1", 1_000, None)
    calling.calls.cancel(calling.request, "pool", "1-1", None, 0.0)
    assert [event["id"] for event in observed.events] == ["call", "call-1-0"]


async def test_an_answer_that_can_not_be_read_is_told_with_its_key(observed: Observed) -> None:
    """Something else wrote it."""
    publishing, calling = Publishing(), Calling()
    publishing.link.answers["publish"] = b"!x"
    publishing.publish("one")
    await publishing.turn()
    calling.publish([b"joined", b"1-1", b"no id!"])
    [flush], [record] = publishing.link.keys("publish")[0][:1], calling.link.keys("share")[0][:1]
    assert [event["key"] for event in observed.events] == [flush, record]
    assert ["no whole number" in observed.events[0]["error"], "no id" in observed.events[1]["error"]] == [True, True]
