"""The messages that reach a worker on the wake channels of its services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.broker.fakes import KEYS, Bench
from toolbus.bus.broker.take.requests import RequestStream
from toolbus.bus.broker.take.wake_channel import WakeChannel
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


class Waking:
    """The wake channels of one worker; ``said`` has what was passed on."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.said: list[Any] = []
        self.channel = WakeChannel(
            *bench.own,
            confirmations=cast("Any", self),
            upkeep=cast("Any", self),
            intake=cast("Any", self),
            repeat=lambda work, *args: bench.start(work(*args)),
            asked=lambda question: self.said.append(("asked", question)),
        )

    async def take_back(self, stream: RequestStream) -> None:
        """Take note."""
        self.said.append(("back", stream.service))

    async def recover(self) -> None:
        """Take note."""
        self.said.append("recover")

    def interrupt(self) -> None:
        """Take note."""
        self.said.append("interrupt")

    def answered(self, id: str) -> None:
        """Take note."""
        self.said.append(("confirmed", id))

    async def hear(self, text: str, channel: str = KEYS.wake("pool")) -> list[Any]:
        """Push a message; what came of it."""
        self.said.clear()
        self.bench.listener.sessions.said.clear()
        self.channel.receive([b"message", channel.encode(), text.encode()])
        await self.bench.settle()
        return [*self.said, *self.bench.listener.sessions.said]


@pytest.fixture
async def waking() -> AsyncIterator[Waking]:
    """A worker that hears messages."""
    made = Waking()
    yield made
    made.bench.forget()


async def test_messages_reach_those_whom_they_concern(waking: Waking) -> None:
    """Messages for other services and workers are ignored, and so are those that can't be read."""
    await waking.hear("cancel call-1")
    assert waking.bench.listener.cancelled == ["call-1"]
    await waking.hear("over call-2 deadline_exceeded")
    assert waking.bench.listener.cancelled.pop() == "call-2 deadline_exceeded"
    assert await waking.hear("confirm id-1") == [("confirmed", "id-1")]
    assert await waking.hear("back pool") == [("back", "pool")]
    assert await waking.hear("back other") == []
    assert (await waking.hear("dead pool"), await waking.hear("dead other")) == (["recover"], [])
    waking.bench.clock.observe(1_000_000.0, 100.0, 100.0)
    assert await waking.hear("extend call-3 1002500") == []
    assert waking.bench.listener.extended == [("call-3", 102.5)]
    assert await waking.hear("to mine pool") == [("back", "pool")]
    assert await waking.hear("to another pool") == []
    assert await waking.hear("to mine other") == []
    assert await waking.hear("left agent") == [("left", "pool", "agent")]
    assert await waking.hear('end ["user","session"]') == [("closed", "pool", "user", "session")]
    assert await waking.hear("left agent", channel=KEYS.wake("other")) == []
    for nonsense in (
        "cancel !",
        "end nonsense",
        "left !",
        "confirm",
        "pause other",
        "what",
        "over call-1",
        "over ! cancelled",
        "extend call-1",
        "extend ! 5",
    ):
        assert await waking.hear(nonsense) == []
    waking.channel.receive([b"message", b"\xff", b"cancel \xff"])
    waking.channel.receive([b"subscribe", b"channel", 1])
    waking.channel.receive([b"message"])
    assert (waking.bench.listener.cancelled, len(waking.bench.listener.extended)) == (["call-1"], 1)


@pytest.mark.parametrize("part", [-5, 3_000_000_000, None, True, 1.5, [b"cancel call-1"], {}, "text"])
async def test_messages_of_other_types_are_ignored(waking: Waking, part: Any) -> None:
    """A number is no message, though it could be taken for the length of one."""
    wake = KEYS.wake("pool").encode()
    for message in ([b"message", wake, part], [b"message", part, b"cancel"], [part, wake, b"cancel call-1"]):
        waking.channel.receive(message)
    assert waking.bench.listener.cancelled == []


async def test_a_lease_that_is_lost_or_there_again_is_known_once(waking: Waking) -> None:
    """A read that waits ends, since it is for other streams than the next one; what was handed back meanwhile is taken."""
    for why, said in (("lost", ["interrupt"]), ("OOM", []), ("", ["interrupt", ("back", "pool")]), ("", [])):
        waking.said.clear()
        waking.channel.listed("pool", why)
        waking.channel.listed("other", why)
        await waking.bench.settle()
        assert (waking.bench.stream.unlisted, waking.said) == (why, said)


async def test_a_pause_is_known_once_and_lifted_by_later_news_alone(waking: Waking) -> None:
    """Taking stops and starts at once; what was handed back during the pause is taken then."""
    assert await waking.hear("pause pool") == ["interrupt"]
    assert waking.bench.stream.paused
    assert await waking.hear("pause pool") == []
    waking.channel.pause("pool", False, waking.bench.times.now - 1.0)
    assert waking.bench.stream.paused, "asked before the pause was known"
    assert await waking.hear("resume pool") == ["interrupt", ("back", "pool")]
    assert not waking.bench.stream.paused


async def test_a_new_stream_hears_of_earlier_cancellations(waking: Waking) -> None:
    """Subscribed first, so that none falls in between; what is no id is left out."""
    waking.bench.link.answers["ZREVRANGE"] = lambda keys, args: [b"call-1", b"!", b"call-2"]
    await waking.channel.follow(waking.bench.stream)
    assert waking.bench.link.channels == [KEYS.wake("pool")]
    assert waking.bench.listener.cancelled == ["call-1", "call-2"]
    assert waking.bench.link.args("ZREVRANGE") == [(KEYS.cancelled("pool"), 0, 9_999)]
    waking.bench.link.answers["ZREVRANGE"] = BrokerUnavailable("gone")
    await waking.channel.read_cancelled(waking.bench.stream)
    waking.channel.leave(waking.bench.stream)
    assert waking.bench.link.channels == []


async def test_after_a_reconnect_what_was_published_meanwhile_is_looked_up(waking: Waking) -> None:
    """Cancellations, and what was handed back."""
    waking.bench.link.answers["ZREVRANGE"] = lambda keys, args: [b"call-1"]
    waking.channel.catch_up()
    await waking.bench.settle()
    assert waking.bench.listener.cancelled == ["call-1"]
    assert waking.said == [("back", "pool")]


async def test_the_channel_of_all_services_carries_questions_alone(waking: Waking) -> None:
    """A process that may only ask for statistics can't cancel a call."""
    await waking.hear("cancel call-1", channel=KEYS.wake_all)
    assert waking.bench.listener.cancelled == []
    assert await waking.hear("back pool", channel=KEYS.wake_all) == []
    assert await waking.hear("stats q-1", channel=KEYS.wake_all) == [("asked", "q-1")]
