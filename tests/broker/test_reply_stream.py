"""Reply streams: how long they live without their agents, and what workers do about one that is gone."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import redis

from tests.broker.conftest import ScriptPlace
from tests.broker.fakes import KEYS, SETTINGS, Bench
from tests.servers import eventually
from toolbus import Settings
from toolbus.bus.broker.lease.recover import AbandonedCalls
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import BrokerUnavailable, ErrorInfo

pytestmark = pytest.mark.anyio


class Listening:
    """A reader whose server says that the stream was missing, as often as ``missing`` says."""

    def __init__(self, settings: Settings = SETTINGS, missing: int = 0) -> None:
        self.bench = Bench()
        self.missing = missing
        self.lost = 0
        self.bench.link.answers["listen"] = self._listened
        nothing = cast("Any", None)
        self.reader = ReplyReader(
            self.bench.as_link,
            self.bench.as_link,
            KEYS,
            settings,
            "agent",
            listener=cast("Any", self),
            shared=nothing,
            confirmations=nothing,
            follower=nothing,
            handed_over=nothing,
        )

    def on_replies_lost(self) -> None:
        """Count."""
        self.lost += 1

    def _listened(self, keys: Any, args: Any) -> Any:
        if self.missing < 0:
            return BrokerUnavailable("down")
        self.missing, gone = max(0, self.missing - 1), self.missing > 0
        return int(gone)


@pytest.mark.parametrize("lease", [22.5, 30.0, 60.0, 3600.0])
def test_the_work_of_a_dead_agent_ends_within_a_lease(lease: float) -> None:
    """The life of its reply stream, and the time until workers look again, are one lease together; with short leases it lives 15 s."""
    life = Listening(Settings.load(base=SETTINGS, lease=lease)).reader.ttl_ms / 1000
    assert 15.0 <= life <= lease - lease / 3
    assert Listening(Settings.load(base=SETTINGS, lease=1.0)).reader.ttl_ms == 15_000


async def test_a_reply_stream_is_renewed_and_made_anew() -> None:
    """It is renewed several times in its life; when it was gone calls may miss frames; a server that is away is asked again."""
    listening = Listening(Settings.load(base=SETTINGS, lease=0.2), missing=-1)
    task = asyncio.create_task(listening.reader.keep())
    await eventually(lambda: len(listening.bench.link.args("listen")) >= 2)
    assert (listening.lost, listening.reader.resync) == (0, False)
    listening.missing = 1
    await eventually(lambda: listening.lost == 1)
    assert listening.reader.resync
    before = len(listening.bench.link.args("listen"))
    await eventually(lambda: len(listening.bench.link.args("listen")) >= before + 2)
    assert listening.lost == 1
    task.cancel()


def test_frames_for_a_stream_that_is_gone_make_it_anew(script_place: ScriptPlace) -> None:
    """For a moment, and so that its reader sees that it was lost; the worker hears of it once."""
    replies, client = script_place.keys.replies("agent"), script_place.redis

    def send(frames: str) -> Any:
        return client.eval(scripts.SEND.source, 1, script_place.keys.live, replies, frames)

    assert send("[1]") == [1]
    assert send("[2]") == []
    assert [fields for _, fields in client.xrange(replies)] == [{b"o": b"lost"}, {b"f": b"[1]"}, {b"f": b"[2]"}]
    assert 0 < client.pttl(replies) <= 5_000


def test_a_stream_that_nobody_could_hear_is_told_from_others(script_place: ScriptPlace) -> None:
    """A stream that is missing or has no ids left is made anew; one that ends before what was read is left to be read again."""
    replies, client = script_place.keys.replies("agent"), script_place.redis

    def listen(*read: str) -> Any:
        return client.eval(scripts.LISTEN.source, 1, replies, 15_000, *read)

    assert (listen(), listen(), listen("0-0")) == (1, 0, 0)
    [(first, _)] = client.xrange(replies)
    behind = first.decode().partition("-")[0] + "-18446744073709551615"
    assert (listen(first.decode()), listen(behind)) == (0, 3)
    assert client.xlen(replies) == 1
    client.xadd(replies, {"f": "[]"}, id="99999999999999-1")
    assert (listen(behind), listen("99999999999999-1"), listen("99999999999999-2")) == (0, 0, 3)
    for left in (0, 1):
        last = client.xadd(replies, {"f": "[]"}, id="9999999999999999-0")
        client.xtrim(replies, maxlen=left, approximate=False)
        assert listen(last.decode()) == 2
        assert [fields for _, fields in client.xrange(replies)] == [{b"o": b"1"}]
        assert 0 < client.pttl(replies) <= 15_000


def test_what_is_no_reply_stream_is_gone(server: str, namespace: str) -> None:
    """A key of another type is left to who mends keys."""
    replies = Keys(namespace).replies("agent")
    with redis.Redis.from_url(server) as client:
        client.set(replies, "x", ex=60)
        assert client.eval(scripts.SEND.source, 1, Keys(namespace).live, replies, "[1]") == [1]
        assert client.eval(scripts.LISTEN.source, 1, replies, 15_000) == 0
        assert client.get(replies) == b"x"


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
async def test_nobody_is_gone_just_because_the_clock_was_set_forward(ahead: float) -> None:
    """Streams whose lives ended with it come back, so workers look at the clock before they stop what runs, or drop what waited."""
    bench = Bench()
    bench.times.now += 2 * SETTINGS.lease
    bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
    assert bench.clock.trusted
    server = bench.times.now + ahead
    bench.link.answers |= {"EXISTS": 0, "TIME": [int(server), 0], "finish": [b"", b"", [], [], 0]}
    finished: list[Any] = []
    bench.finish = lambda *said: finished.append(said)  # type: ignore[attr-defined]
    abandoned = AbandonedCalls(*bench.own, outbox=cast("Any", bench))
    bench.hold(b"1-0")
    bench.listener.sessions.callers = {"agent"}
    await abandoned.stop_calls()
    await abandoned.stop_calls_of(KEYS.replies("other"), ErrorInfo("cancelled"))
    await abandoned.end_sessions()
    old = bench.hold(b"2-0")
    kept = await abandoned.without([old])
    stopped = [replies for replies, _ in bench.listener.replies_gone]
    assert stopped == ([] if ahead else [KEYS.replies("agent"), KEYS.replies("other")])
    assert bool(bench.listener.sessions.said) is bool(finished) is (ahead == 0.0)
    assert kept == ([] if ahead == 0.0 else [old])
