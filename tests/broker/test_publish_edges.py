"""Edge cases of publishing: what a flush's memo remembers, for how long, and what stands in the way of publishing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.broker.conftest import FakeServer, ScriptPlace
from tests.broker.test_publish_script import Publishing
from toolbus.bus.broker.server import scripts


@pytest.fixture
def publishing(script_place: ScriptPlace) -> Publishing:
    """A queue of the test's own."""
    return Publishing(script_place)


def test_a_memo_remembers_the_last_64_flushes(publishing: Publishing) -> None:
    """An agent never has more of them unanswered."""
    verdicts = [publishing.flush(number, "x", limit=1_000) for number in range(70)]
    assert publishing.redis.hlen(publishing.memo) == 64
    assert [publishing.flush(number, "x", limit=1_000) for number in range(6, 70)] == verdicts[6:]
    assert publishing.redis.xlen(publishing.queue) == 70
    assert publishing.flush(5, "x", limit=1_000) != verdicts[5]


def test_the_earlier_flush_is_looked_up_where_it_was_remembered(publishing: Publishing) -> None:
    """Also when the numbers have gone round, and when a later one has taken its place."""
    for number in range(65):
        publishing.flush(number, "x", limit=1_000)
    publishing.flush(65, "x", limit=1_000, earlier=64)
    publishing.flush(66, "x", limit=1_000, earlier=1)
    with pytest.raises(Exception, match="NOTYET flush 67 was not carried out"):
        publishing.flush(68, "x", limit=1_000, earlier=67)
    assert publishing.redis.xlen(publishing.queue) == 67


def test_a_flush_that_waited_for_another_gets_its_verdicts_again(publishing: Publishing) -> None:
    """A repeated flush gets its first verdicts and publishes nothing twice, whatever it waited for and however many requests it has."""
    publishing.flush(0, "zero")
    first = publishing.flush(1, "one", "two", "three", earlier=0)
    assert publishing.flush(1, "one", "two", "three", earlier=0) == first
    assert publishing.redis.xlen(publishing.queue) == 4
    alone = publishing.flush(2, "four", "five", "six")
    assert publishing.flush(2, "four", "five", "six") == alone
    assert publishing.redis.xlen(publishing.queue) == 7


def test_a_memo_lives_on_while_its_agent_publishes(publishing: Publishing) -> None:
    """Its TTL is set with each flush that is new in it, and with every sixteenth; the others need not pay for that."""
    renewed = []
    for number in range(64 + 49):
        publishing.flush(number, "x", limit=1_000)
        if publishing.redis.pttl(publishing.memo) > 0:
            renewed.append(number)
            assert 50_000 < publishing.redis.pttl(publishing.memo) <= 60_000
        publishing.redis.persist(publishing.memo)
    publishing.redis.expire(publishing.memo, 60)
    assert renewed == [*range(64), 64, 80, 96, 112]


def test_a_key_of_another_type_concerns_its_own_requests_alone(publishing: Publishing) -> None:
    """They are told that nobody serves them; the others of the flush are published."""
    text = publishing.keys.queue("text")
    publishing.redis.set(text, "x", ex=60)
    words = [word for index, document in ((2, "one"), (3, "two"), (2, "three"), (3, "four")) for word in (index, 10, 5_000, document)]
    answer: Any = publishing.redis.eval(scripts.PUBLISH.source, 3, publishing.memo, text, publishing.queue, 0, 60_000, "", *words)
    first, second, third, fourth = answer.decode().split()
    assert (first, third) == ("-", "-")
    assert [second.encode(), fourth.encode()] == [entry for entry, _ in publishing.redis.xrange(publishing.queue)]


@pytest.mark.parametrize("server", ["", "run-id"])
def test_a_queue_whose_ids_are_used_up_is_absent(publishing: Publishing, server: str) -> None:
    """Its workers make it anew; until then nothing can be added, and that is no error of the flush."""
    other = publishing.keys.queue("other")
    publishing.redis.xgroup_create(other, "g", "0", mkstream=True)
    publishing.redis.expire(other, 60)
    publishing.redis.xadd(publishing.queue, {"r": "last"}, id="18446744073709551615-18446744073709551615")
    words = [word for index, document in ((2, "one"), (3, "two")) for word in (index, 10, 5_000, document)]
    answer: Any = publishing.redis.eval(scripts.PUBLISH.source, 3, publishing.memo, publishing.queue, other, 0, 60_000, server, *words)
    first, second = answer.decode().split()
    assert first == "-"
    assert [second.encode()] == [entry for entry, _ in publishing.redis.xrange(other)]


def test_once_work_is_published_with_its_document(publishing: Publishing) -> None:
    """And with the server that is to know of it."""
    publishing.flush(0, "one", "two", server="run-id")
    assert publishing.waiting() == [b"one", b"two"]


def test_a_deadline_is_exact_to_the_millisecond_on_fakeredis(monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    """By the clock that gives the entry its id, also right before a second begins."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.999999)
    publishing = Publishing(ScriptPlace(FakeServer(), namespace))
    publishing.flush(0, "one")
    [(entry, fields)] = publishing.redis.xrange(publishing.queue)
    assert entry == b"1800000000999-0"
    assert fields[b"d"] == b"1800000005999"
