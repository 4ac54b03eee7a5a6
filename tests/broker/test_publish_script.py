"""The scripts that publish: what each answers, and that running them again changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.broker.conftest import FakeServer, ScriptPlace
from tests.contract import Place
from toolbus.bus.broker.server import scripts


class Publishing:
    """An agent's flushes, written by hand, to a queue that one worker serves."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys
        self.memo, self.queue = self.keys.flushes("agent"), self.keys.queue("pool")
        self.redis.xgroup_create(self.queue, "g", "0", mkstream=True)
        self.redis.expire(self.queue, 60)

    def flush(self, number: int, *documents: str, limit: int = 10, server: str = "", earlier: int | None = None, queue: str = "") -> str:
        """Publish some documents in one flush; the server's verdicts."""
        words = [word for document in documents for word in (2, limit, 5_000, document)]
        last = () if earlier is None else (earlier,)
        answer: Any = self.redis.eval(scripts.PUBLISH.source, 2, self.memo, queue or self.queue, number, 60_000, server, *words, *last)
        return str(answer.decode())

    def share(self, call: str, digest: str = "work", limit: int = 10) -> list[bytes]:
        """Publish a call with the one idempotency key."""
        keys = (self.keys.shared("key"), self.queue, self.keys.call(call))
        args = (call, digest, "agent", limit, 5_000, "{}", 60_000, "", self.keys.prefix, self.keys.wake("pool"))
        answer: list[bytes] = self.redis.eval(scripts.SHARE.source, 3, *keys, *args)
        return answer

    def leave(self, caller: str, call: str, *, once: int = 0) -> bytes:
        """Stop waiting for a shared call."""
        keys = (self.queue, self.keys.cancelled("pool"), self.keys.shared("key"))
        args = ("0-1", call, 5_000, "wake", "cancelled", caller, self.keys.prefix, once)
        answer: bytes = self.redis.eval(scripts.CANCEL.source, 3, *keys, *args)
        return answer

    def cancel(self, entry: str, *, once: bool = False) -> bytes:
        """Cancel a call."""
        keys = (self.queue, self.keys.cancelled("pool"))
        last = ("cancelled", "call", self.keys.prefix, 1) if once else ()
        answer: bytes = self.redis.eval(scripts.CANCEL.source, 2, *keys, entry, "call", 5_000, "wake", *last)
        return answer

    def waiting(self) -> list[bytes]:
        """The documents in the queue."""
        return [fields[b"r"] for _, fields in self.redis.xrange(self.queue)]


@pytest.fixture
def publishing(script_place: ScriptPlace) -> Publishing:
    """A queue of the test's own."""
    return Publishing(script_place)


def test_a_flush_publishes_in_order_and_names_the_entries(publishing: Publishing) -> None:
    """Each request gets the id of its entry, a deadline by the server's clock, and no server when it may happen twice."""
    entries = publishing.flush(0, "one", "two").split()
    found = publishing.redis.xrange(publishing.queue)
    assert [entry.decode() for entry, _ in found] == entries
    assert publishing.waiting() == [b"one", b"two"]
    for entry, fields in found:
        assert int(fields[b"d"]) - int(entry.partition(b"-")[0]) in range(4_900, 5_101)
        assert b"s" not in fields


def test_a_flush_that_is_written_again_gets_the_same_verdicts(publishing: Publishing) -> None:
    """After a lost connection nothing is published twice; another flush in the same slot is a new one."""
    first = publishing.flush(3, "one")
    assert publishing.flush(3, "one") == first
    assert publishing.waiting() == [b"one"]
    assert publishing.flush(67, "two") != first
    assert publishing.waiting() == [b"one", b"two"]


@pytest.mark.parametrize("once", [0, 1])
def test_a_call_whose_group_is_gone_may_have_run(publishing: Publishing, once: int) -> None:
    """Its cancellation is passed on to the worker that may run it, and its entry stays for the next group."""
    server = publishing.redis
    entry = publishing.flush(0, "one")
    queued = publishing.share("call")
    server.xreadgroup("g", "worker", {publishing.queue: ">"})
    server.xgroup_destroy(publishing.queue, "g")
    with server.pubsub() as heard:
        heard.subscribe("wake")
        assert publishing.cancel(entry) == b"signalled"
        assert publishing.leave("call", "call", once=once) == b"signalled"
        words = [message["data"] for _ in range(3) if (message := heard.get_message(timeout=5.0)) is not None]
    assert words[1:] == [b"cancel call", b"cancel call"]
    assert server.zrange(publishing.keys.cancelled("pool"), 0, -1) == [b"call"]
    assert [entry for entry, _ in server.xrange(publishing.queue)] == [entry.encode(), queued[1]]
    # Work that must not happen twice keeps its key.
    assert server.exists(publishing.keys.shared("key")) == once
    server.xdel(publishing.queue, entry)
    assert publishing.cancel(entry) == b"gone"


def test_once_work_that_another_server_process_accepted_may_have_run(publishing: Publishing) -> None:
    """A server that was restored may have forgotten who had it, so that only one which accepted it itself says that it never ran."""
    server = publishing.redis
    # One that does not say which process it is may be another.
    here, known = ("e" * 40, b"signalled") if isinstance(server, FakeServer) else (server.info("server")["run_id"], b"removed")
    ours, theirs, any_work = (publishing.flush(number, "one", server=by) for number, by in enumerate((here, "f" * 40, "")))
    assert [publishing.cancel(entry) for entry in (ours, theirs, any_work)] == [known, b"signalled", b"removed"]


def test_once_work_that_began_under_another_group_keeps_its_key(publishing: Publishing) -> None:
    """Before a new group has delivered it, the mark of its start decides whether its idempotency key is kept."""
    server, mark = publishing.redis, publishing.keys.started("call")
    server.set(mark, "run", px=60_000)
    publishing.share("call")
    assert publishing.leave("call", "call", once=1) == b"signalled"
    assert server.exists(publishing.keys.shared("key"))
    server.delete(mark)
    assert publishing.leave("call", "call", once=1) == b"removed"
    assert not server.exists(publishing.keys.shared("key"))


def test_a_memo_that_another_client_wrote_is_no_verdict(publishing: Publishing) -> None:
    """An answer with the wrong number of words, or with other words, is not repeated."""
    for foreign in ("3 nonsense", "3 1-1 1-2", "4 1-1"):
        publishing.redis.hset(publishing.memo, "3", foreign)
        publishing.redis.expire(publishing.memo, 60)
        before = len(publishing.waiting())
        publishing.flush(3, "one")
        assert len(publishing.waiting()) == before + 1


def test_a_flush_waits_for_the_one_before_it(publishing: Publishing) -> None:
    """It is refused until the earlier one was carried out, so that calls keep their order."""
    with pytest.raises(Exception, match="NOTYET"):
        publishing.flush(1, "two", earlier=0)
    assert publishing.waiting() == []
    publishing.flush(0, "one")
    publishing.flush(1, "two", earlier=0)
    assert publishing.waiting() == [b"one", b"two"]


def test_a_full_queue_takes_no_more(publishing: Publishing) -> None:
    """The bound counts what was published by the same flush."""
    words = publishing.flush(0, "one", "two", "three", limit=2).split()
    assert words[2] == "!2"
    assert publishing.waiting() == [b"one", b"two"]


def test_a_queue_that_is_not_served_is_absent(publishing: Publishing) -> None:
    """No stream is made for it."""
    assert publishing.flush(0, "one", queue=publishing.keys.queue("none")) == "-"
    assert not publishing.redis.exists(publishing.keys.queue("none"))


def test_a_key_of_another_type_is_no_queue(place: Place) -> None:
    """It concerns its own requests alone. Only on real servers: fakeredis gives a script no error table for XLEN."""
    with redis.Redis.from_url(place.settings.url) as client:
        publishing = Publishing(ScriptPlace(client, place.settings.namespace))
        publishing.redis.set(publishing.keys.queue("text"), "x", ex=60)
        assert publishing.flush(1, "one", queue=publishing.keys.queue("text")) == "-"


def test_work_that_must_not_happen_twice_names_its_server(publishing: Publishing) -> None:
    """A worker tells by it that another server may have forgotten that the work began."""
    publishing.flush(0, "one", server="run-id")
    [(_, fields)] = publishing.redis.xrange(publishing.queue)
    assert fields[b"s"] == b"run-id"


def test_calls_with_one_key_are_one_call(publishing: Publishing) -> None:
    """The first is queued, others join it, and other work under the key is a conflict."""
    word, entry = publishing.share("first")
    assert word == b"queued"
    assert publishing.share("second") == [b"joined", entry, b"first"]
    assert publishing.share("third", digest="other") == [b"conflict"]
    assert len(publishing.waiting()) == 1


def test_releases_with_other_digests_share_a_call(publishing: Publishing) -> None:
    """Whichever of them publishes first, each knows the call by its own digest, and other work is a conflict for both."""
    record = publishing.keys.shared("key")
    for first, second in (("old", "new old"), ("new old", "old"), ("new", "new old"), ("new old", "new"), ("new old", "new other")):
        publishing.redis.delete(record, publishing.keys.call("first"))
        word, entry = publishing.share("first", digest=first)
        assert word == b"queued"
        assert publishing.share("second", digest=second) == [b"joined", entry, b"first"], (first, second)
        assert publishing.share("third", digest="work else") == [b"conflict"]
        # Earlier releases compare this field alone.
        assert publishing.redis.hget(record, "digest") == first.split()[-1].encode()


def test_a_call_whose_failure_has_freed_its_key_is_not_published_again(publishing: Publishing) -> None:
    """Its publication is written again after a lost answer, when nobody has the key, and when another call has it: it reads its own end."""
    publishing.share("first")
    publishing.redis.delete(publishing.queue, publishing.keys.shared("key"))
    assert publishing.share("first") == [b"joined", b"0-1", b"first"]
    assert publishing.share("second")[0] == b"absent"
    publishing.redis.xgroup_create(publishing.queue, "g", "0", mkstream=True)
    publishing.redis.expire(publishing.queue, 60)
    word, entry = publishing.share("second")
    assert word == b"queued"
    assert publishing.share("first") == [b"joined", b"0-1", b"first"]
    assert publishing.share("second") == [b"joined", entry, b"second"]
    assert len(publishing.waiting()) == 1


def test_a_digest_of_an_earlier_call_is_forgotten(publishing: Publishing) -> None:
    """An earlier release that takes over a key writes its own digest alone, beside which the other one means nothing."""
    record = publishing.keys.shared("key")
    publishing.share("first", digest="new old")
    publishing.redis.hset(record, "digest", "of other work")
    assert publishing.share("second", digest="new old") == [b"conflict"]
    publishing.redis.hdel(record, "digest")
    assert publishing.share("second", digest="new old") == [b"conflict"]


def test_a_key_whose_call_is_gone_stands_for_a_new_one(publishing: Publishing) -> None:
    """Its old callers are not callers of the new call."""
    publishing.share("first")
    publishing.redis.delete(publishing.keys.call("first"))
    assert publishing.share("second")[0] == b"queued"
    record = publishing.redis.hgetall(publishing.keys.shared("key"))
    assert b"c:first" not in record
    assert record[b"id"] == b"second"


def test_a_shared_call_is_full_or_absent_as_others_are(publishing: Publishing) -> None:
    """Nothing of the key stays then."""
    assert publishing.share("first", limit=0) == [b"full", 0]
    publishing.redis.delete(publishing.queue)
    assert publishing.share("first") == [b"absent"]
    assert not publishing.redis.exists(publishing.keys.shared("key"))


def test_a_shared_call_is_cancelled_when_its_last_caller_leaves(publishing: Publishing) -> None:
    """Callers of dead agents do not count."""
    publishing.share("first")
    publishing.share("second")
    publishing.redis.xadd(publishing.keys.replies("agent"), {"o": "1"})
    publishing.redis.expire(publishing.keys.replies("agent"), 60)
    assert publishing.leave("first", "first") == b"shared"
    publishing.redis.delete(publishing.keys.replies("agent"))
    assert publishing.leave("another", "first") == b"removed"
    assert publishing.waiting() == []
    assert not publishing.redis.exists(publishing.keys.shared("key"))


@pytest.mark.parametrize(("once", "kept"), [(0, 0), (1, 1)])
def test_once_work_that_runs_keeps_its_key_when_it_is_left(publishing: Publishing, once: int, kept: int) -> None:
    """It may have had its effect, so the next caller must not start it again."""
    publishing.share("first")
    publishing.redis.xreadgroup("g", "worker", {publishing.queue: ">"})
    assert publishing.leave("first", "first", once=once) == b"signalled"
    assert publishing.redis.exists(publishing.keys.shared("key")) == kept


def test_work_that_has_begun_is_not_removed_where_a_new_group_has_not_delivered_it(publishing: Publishing) -> None:
    """The mark of work that must not happen twice says that it had begun; its caller may not be told that it never ran."""
    fates = []
    for number, mark in enumerate(("other", "call")):
        publishing.redis.set(publishing.keys.started(mark), "run", px=60_000)
        fates.append(publishing.cancel(publishing.flush(number, "{}"), once=True))
        publishing.redis.delete(publishing.keys.started(mark))
    assert fates == [b"removed", b"signalled"]


def test_a_queued_call_is_removed_and_a_running_one_signalled(publishing: Publishing) -> None:
    """A call that was answered is gone."""
    running, queued = publishing.flush(0, "one", "two").split()
    publishing.redis.xreadgroup("g", "worker", {publishing.queue: ">"}, count=1)
    assert publishing.cancel(queued) == b"removed"
    assert publishing.cancel(running) == b"signalled"
    assert publishing.redis.zcard(publishing.keys.cancelled("pool")) == 1
    publishing.redis.xack(publishing.queue, "g", running)
    publishing.redis.xdel(publishing.queue, running)
    assert publishing.cancel(running) == b"gone"


def test_a_reply_stream_is_made_once(publishing: Publishing) -> None:
    """A script that finds it says so, and keeps it alive."""
    stream = publishing.keys.replies("agent")
    assert publishing.redis.eval(scripts.LISTEN.source, 1, stream, 60_000) == 1
    assert publishing.redis.eval(scripts.LISTEN.source, 1, stream, 90_000) in {0, None}
    assert publishing.redis.pttl(stream) > 60_000


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("why", ["", "cancelled", "deadline_exceeded"])
def test_workers_hear_why_a_call_is_over(publishing: Publishing, shared: bool, why: str) -> None:
    """Beside the word that every worker knows, unless that says it all."""
    redis, keys = publishing.redis, publishing.keys
    entry = publishing.share("call")[1].decode() if shared else publishing.flush(0, "one")
    redis.xreadgroup("g", "worker", {publishing.queue: ">"})
    with redis.pubsub() as heard:
        heard.subscribe("wake")
        heard.get_message(timeout=1)
        if shared:
            of_call = (publishing.queue, keys.cancelled("pool"), keys.shared("key"))
            redis.eval(scripts.CANCEL.source, 3, *of_call, "0-1", "call", 5_000, "wake", why or "cancelled", "call", keys.prefix, 0)
        else:
            redis.eval(
                scripts.CANCEL.source, 2, publishing.queue, keys.cancelled("pool"), entry, "call", 5_000, "wake", *([why] if why else [])
            )
        words = [heard.get_message(timeout=1)["data"]]
        if why == "deadline_exceeded":
            words.append(heard.get_message(timeout=1)["data"])
    assert words == [*([b"over call deadline_exceeded"] if why == "deadline_exceeded" else []), b"cancel call"]
