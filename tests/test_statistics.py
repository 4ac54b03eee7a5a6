"""Statistics of workers and recent calls, on a real server: what is counted, told and asked, and what strangers write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolError, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.statistics import recent as recent_calls
from toolbus.bus.broker.statistics.answers import BUCKETS, MOST_CALLS, InstanceAnswer, RunningCall, ToolStatistics
from toolbus.bus.broker.statistics.asking import Statistics
from toolbus.bus.broker.statistics.recent import MOST_RECORDS, RecentCall
from toolbus.bus.watch.watch import running_calls
from toolbus.bus.worker.service import Retry

pytestmark = pytest.mark.anyio

SECRET = "the secret argument"


@tool(service="counted", effect="read")
async def succeed(text: str = "") -> str:
    """Give a text back."""
    return text


@tool(service="counted", effect="read")
async def stream(count: int) -> AsyncIterator[str]:
    """Stream."""
    for _ in range(count):
        yield "x"


@tool(service="counted", effect="read")
async def fail() -> str:
    """Fail."""
    raise ToolError("no luck", code="luck")


@tool(service="counted", effect="read")
async def hold() -> str:
    """Wait to be cancelled."""
    await asyncio.Event().wait()
    return ""


@tool(service="counted", effect="idempotent", retry=Retry(attempts=2, delay=0.01))
async def fail_twice() -> str:
    """Fail at each attempt."""
    raise ToolError("try again", retryable=True)


@tool(service="other_counted", effect="read")
async def elsewhere() -> str:
    """Be of another service."""
    return "there"


TOOLS = (succeed, stream, fail, hold, fail_twice)


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on a real server."""
    return Place(server, namespace)


@asynccontextmanager
async def admin_of(place: Place) -> AsyncIterator[Admin]:
    """An operator's connection."""
    async with Admin(place.settings) as admin:
        yield admin


def tool_of(answer: InstanceAnswer, name: str) -> ToolStatistics:
    """Return the counts of one tool."""
    return next(each for each in answer.tools if each.tool == name)


async def recent(place: Place, count: int) -> list[RecentCall]:
    """Return the recent calls, the oldest first, once there are so many."""

    async def enough() -> list[RecentCall]:
        async with Admin(place.settings) as admin:
            found = await admin.recent()
        return found[::-1] if len(found) >= count else []

    return await eventually(enough, timeout=20.0)


async def test_a_worker_tells_what_it_has_counted(place: Place) -> None:
    """Results, failures by type, cancellations, what runs, latencies, the last error, and the process itself."""
    async with place.worker(*TOOLS, concurrency=7) as worker, place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("hold")
        for _ in range(3):
            await bus.call("succeed")
        await bus.call("fail")
        held = [asyncio.create_task(bus.call("hold")) for _ in range(2)]
        await eventually(lambda: worker.statistics()["running"] == 2)
        held[0].cancel()
        await asyncio.gather(held[0], return_exceptions=True)
        await eventually(lambda: worker.statistics()["running"] == 1)
        found = await admin.statistics(patience=20.0)
        held[1].cancel()
        await asyncio.gather(held[1], return_exceptions=True)
    answer = found.answers[worker.instance]
    assert found.silent == {}
    assert (answer.slots, answer.running, [each.id for each in answer.services]) == (7, 1, ["counted"])
    assert all((answer.pid > 0, answer.host, answer.version, answer.python, answer.started > 0, answer.uptime > 0))
    assert answer.services[0].queue == "counted"
    assert answer.services[0].digest
    succeeded, failed, cancelled = (tool_of(answer, name) for name in ("succeed", "fail", "hold"))
    assert (succeeded.started, succeeded.succeeded, succeeded.failed, sum(succeeded.buckets)) == (3, 3, {}, 3)
    assert (failed.started, failed.succeeded, failed.failed) == (1, 0, {"tool_error": 1})
    assert failed.last_error is not None
    assert (failed.last_error.type, failed.last_error.code, failed.last_error.message) == ("tool_error", "luck", "no luck")
    assert (cancelled.started, cancelled.cancelled, cancelled.running, sum(cancelled.buckets)) == (2, 1, 1, 0)


async def test_only_the_workers_of_a_service_are_asked_for_its_statistics(place: Place) -> None:
    """Others hear nothing of it."""
    async with place.worker(succeed) as mine, place.worker(elsewhere) as other, place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("succeed")
        await bus.wait_for_tool("elsewhere")
        assert set((await admin.statistics("counted", patience=20.0)).answers) == {mine.instance}
        assert set((await admin.statistics(patience=20.0)).answers) == {mine.instance, other.instance}


async def test_a_worker_that_does_not_answer_is_named(place: Place) -> None:
    """Its lease still lasts; the others' answers are there."""
    async with place.worker(succeed) as worker, place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("succeed")
        with redis.Redis.from_url(place.settings.url) as client:
            client.zadd(Keys(place.settings.namespace).live, {"counted/gone-1-abc": 10**15 // 2, "x/gone-1-abc": 10**15 // 2})
        found = await admin.statistics(patience=0.5)
    assert set(found.answers) == {worker.instance}
    assert found.silent == {"gone-1-abc": ("counted", "x")}


async def test_nobody_to_ask_takes_no_time(place: Place) -> None:
    """Without workers there is nothing to wait for."""
    async with admin_of(place) as admin:
        assert await admin.statistics(patience=1e6) == Statistics({}, {})


def hostile_answers(instance: str) -> list[bytes]:
    """Return answers that no worker writes."""
    good = msgspec.to_builtins(InstanceAnswer(instance))
    changes: list[dict[str, Any]] = [
        {"slots": -1},
        {"running": 2**60},
        {"uptime": -1.0},
        {"started": 1e300},
        {"pid": "1"},
        {"tools": [{"service": "a", "tool": "b", "buckets": [1] * (BUCKETS + 1)}]},
        {"tools": [{"service": "a", "tool": "b", "buckets": [-1]}]},
        {"tools": [{"service": "a", "tool": "b", "failed": {"x": -5}}]},
        {"tools": [{"service": "a"}]},
        {"tools": 7},
    ]
    documents = [msgspec.json.encode({**good, **change}) for change in changes]
    return [b"", b"nonsense", b"[" * 100_000, b'{"instance": "\\ud800"}', b"\xff", b"null", b"[]", *documents]


async def test_a_worker_tells_of_a_service_for_which_it_has_no_lease(place: Place) -> None:
    """Its name was given to another owner: whoever asks all workers reads why it takes no calls of that service, and of no other."""
    keys = Keys(place.settings.namespace)
    async with place.worker(succeed, elsewhere, lease=1.0) as worker, place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("succeed")

        async def told() -> dict[str, str]:
            answer = (await admin.statistics(patience=20.0)).answers[worker.instance]
            return {each.id: each.unlisted for each in answer.services if each.unlisted}

        assert await told() == {}
        with redis.Redis.from_url(place.settings.url) as client:
            client.hset(keys.names, "s:counted", f"stranger\ncounted\n{10**15}")
            client.zrem(keys.live, f"counted/{worker.instance}")

        async def refused() -> bool:
            return "stranger" in (await told()).get("counted", "")

        # A worker answers so many questions a second.
        await eventually(refused, timeout=20.0, interval=0.1)
        assert list(await told()) == ["counted"]
        assert (await bus.call("elsewhere")).output == "there"


@pytest.mark.usefixtures("slow")
async def test_answers_of_strangers_stop_no_reader(place: Place) -> None:
    """An answer that can't be read, or of no live worker, is left out; the workers' own ones are found."""
    keys = Keys(place.settings.namespace)
    async with place.worker(succeed) as worker, place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("succeed")
        with redis.Redis.from_url(place.settings.url) as client:
            heard = client.pubsub()
            heard.subscribe(keys.wake_all)

            def write() -> None:
                question = ""
                while not question:
                    message = heard.get_message(timeout=20.0)
                    if message is not None and message["type"] == "message":
                        question = message["data"].decode().partition(" ")[2]
                for document in [*hostile_answers(worker.instance), msgspec.json.encode(InstanceAnswer("stranger"))]:
                    client.xadd(keys.answers(question), {"a": document})
                client.xadd(keys.answers(question), {"other": "field"})

            writing = asyncio.create_task(asyncio.to_thread(write))
            # One that never answers, so that everything is read.
            client.zadd(keys.live, {"counted/gone-1-abc": 10**15 // 2})
            found = await admin.statistics(patience=2.0)
            await writing
    assert set(found.answers) == {worker.instance}
    assert found.answers[worker.instance].slots == place.settings.concurrency


@pytest.mark.parametrize("word", ["stats", "stats ", "stats a b", "stats {x}", "stats " + "x" * 100, "stats ../../q:counted"])
async def test_questions_that_name_no_key_are_ignored(place: Place, word: str) -> None:
    """No message makes a worker write anywhere but where answers go."""
    keys = Keys(place.settings.namespace)
    async with place.worker(succeed), place.bus() as bus, admin_of(place) as admin:
        await bus.wait_for_tool("succeed")
        with redis.Redis.from_url(place.settings.url) as client:
            before = set(client.keys(f"{keys.prefix}*"))
            client.publish(keys.wake_all, word)
            assert len((await admin.statistics(patience=20.0)).answers) == 1
            # What was sent before has been done when this is answered.
            await admin.now()
            assert {key for key in client.keys(f"{keys.prefix}*") if b"stats:" in key} <= before


async def test_a_flood_of_questions_leaves_a_bounded_number_of_answers(place: Place) -> None:
    """Each is gone after some seconds, and calls go on."""
    keys = Keys(place.settings.namespace)
    async with place.worker(succeed), place.bus() as bus:
        await bus.wait_for_tool("succeed")
        with redis.Redis.from_url(place.settings.url) as client:
            for number in range(1_000):
                client.publish(keys.wake_all, f"stats q{number}")
            assert (await bus.call("succeed", {"text": "there"})).output == "there"
            answers = client.keys(f"{keys.prefix}stats:*")
            assert 0 < len(answers) < 500
            assert all(0 < client.pttl(key) <= 10_000 for key in answers)


async def test_recent_calls_are_told(place: Place) -> None:
    """When they were queued, taken, had their first text and ended; for whom, where, and how."""
    async with place.worker(*TOOLS) as worker, place.bus() as bus:
        await bus.wait_for_tool("hold")
        await bus.call("succeed", {"text": SECRET}, user="ann", session="s1")
        await bus.call("stream", {"count": 3})
        await bus.call("fail")
        found = await recent(place, 3)
    one, two, three = found
    assert [(each.tool, each.outcome, each.attempt) for each in found] == [
        ("succeed", "succeeded", 1),
        ("stream", "succeeded", 1),
        ("fail", "failed", 1),
    ]
    assert (one.service, one.user, one.session, one.instance) == ("counted", "ann", "s1", worker.instance)
    assert 0 < one.queued <= one.taken <= one.ended
    assert one.first == 0.0
    assert two.taken <= two.first <= two.ended
    assert (three.error, three.code, three.message) == ("tool_error", "luck", "no luck")
    assert len({each.id for each in found}) == 3
    assert [each.entry for each in found] == sorted(each.entry for each in found)
    assert SECRET not in str([each.document() for each in found])


async def test_attempts_that_are_tried_again_are_told_one_by_one(place: Place) -> None:
    """The first ends as ``retried``, the last as a dead letter; both have the call's id."""
    async with place.worker(*TOOLS), place.bus() as bus:
        await bus.wait_for_tool("hold")
        await bus.call("fail_twice")
        found = await recent(place, 2)
    assert [(each.attempt, each.outcome, each.error) for each in found] == [(1, "retried", "tool_error"), (2, "dead", "tool_error")]
    assert len({each.id for each in found}) == 1


async def test_a_cancelled_call_is_told(place: Place) -> None:
    """Its error is what its caller would have been told."""
    async with place.worker(*TOOLS) as worker, place.bus() as bus:
        await bus.wait_for_tool("hold")
        call = asyncio.create_task(bus.call("hold"))
        await eventually(lambda: worker.statistics()["running"] == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        [found] = await recent(place, 1)
    assert (found.tool, found.outcome, found.error) == ("hold", "cancelled", "cancelled")


@pytest.mark.parametrize("mode", ["off", "arguments"])
async def test_the_record_of_recent_calls_is_a_setting(place: Place, mode: str) -> None:
    """Nothing is written with ``off``, and arguments only when they were asked for."""
    async with place.serving(*TOOLS, recent=mode) as bus, admin_of(place) as admin:
        await bus.wait_for_tool("hold")
        await bus.call("succeed", {"text": SECRET})
        await bus.call("fail")
        if mode == "arguments":
            assert (await recent(place, 2))[0].arguments == f'{{"text":"{SECRET}"}}'
    async with admin_of(place) as admin:
        assert bool(await admin.recent()) == (mode == "arguments")


async def test_refused_arguments_are_not_quoted(place: Place) -> None:
    """The worker's own refusal names their values, which records leave out."""
    async with place.serving(*TOOLS) as bus, admin_of(place) as admin:
        await bus.wait_for_tool("stream")
        with redis.Redis.from_url(place.settings.url) as client:
            keys = Keys(place.settings.namespace)
            request = {"id": "c1", "agent": "", "service": "counted", "tool": "stream", "arguments": {"count": SECRET}}
            client.xadd(keys.queue("counted"), {"r": msgspec.json.encode(request), "d": 10**14})
        [found] = await recent(place, 1)
        statistics = await admin.statistics(patience=20.0)
    assert (found.tool, found.error, found.message) == ("stream", "invalid_arguments", "")
    assert SECRET not in str(statistics)


async def test_many_calls_leave_a_bounded_record(place: Place) -> None:
    """Successes and failures are sampled apart, so that failures show among many successes; the stream has a length and an end."""
    async with place.serving(*TOOLS) as bus:
        await bus.wait_for_tool("hold")
        await asyncio.gather(*(bus.call("succeed") for _ in range(2_000)), bus.call("fail"))
        found = await recent(place, 2)
        with redis.Redis.from_url(place.settings.url) as client:
            key = Keys(place.settings.namespace).recent
            assert client.xlen(key) < 1_000
            assert 0 < client.pttl(key) <= 3_600_000
    assert "fail" in {each.tool for each in found}


@pytest.mark.usefixtures("slow")
async def test_the_oldest_records_make_room(place: Place) -> None:
    """However many strangers have written."""
    key = Keys(place.settings.namespace).recent
    with redis.Redis.from_url(place.settings.url) as client:
        for number in range(3 * MOST_RECORDS):
            client.xadd(key, {"c": "nonsense"}, id=f"1-{number + 1}")
        async with place.serving(*TOOLS) as bus:
            await bus.wait_for_tool("hold")
            await bus.call("succeed")
            assert [each.tool for each in await recent(place, 1)] == ["succeed"]
        assert client.xlen(key) < 2 * MOST_RECORDS


@pytest.mark.parametrize("spoilt", ["string", "used up"])
async def test_a_spoilt_record_begins_anew(place: Place, spoilt: str) -> None:
    """A key of another type, or a stream that takes no more entries, is replaced."""
    key = Keys(place.settings.namespace).recent
    with redis.Redis.from_url(place.settings.url) as client:
        async with place.serving(*TOOLS) as bus:
            await bus.wait_for_tool("hold")
            if spoilt == "string":
                client.set(key, "something else")
            else:
                client.xadd(key, {"x": "y"}, id=f"{2**64 - 1}-{2**64 - 1}")
            await bus.call("succeed")
            assert [each.tool for each in await recent(place, 1)] == ["succeed"]


@pytest.mark.parametrize(
    "document",
    [
        b"nonsense",
        b"{}",
        b'{"id": ""}',
        b'{"id": "a b"}',
        b'{"id": "a", "attempt": 0}',
        b'{"id": "a", "ended": -1}',
        b'{"id": "a", "queued": 1e300}',
        b'{"id": "a", "outcome": "great"}',
        b'{"id": "a", "tool": 7}',
        b"[" * 50_000,
        b'{"id": "a", "message": "' + b"x" * 100_000 + b'"}',
    ],
)
async def test_records_of_strangers_stop_no_reader(place: Place, document: bytes) -> None:
    """A record that can't be read is left out, and those beside it are found."""
    key = Keys(place.settings.namespace).recent
    with redis.Redis.from_url(place.settings.url) as client:
        client.xadd(key, {"c": b'{"id":"first"}'})
        client.xadd(key, {"c": document})
        client.xadd(key, {"other": document})
        client.xadd(key, {"c": b'{"id":"last"}'})
        client.expire(key, 60)
        async with admin_of(place) as admin:
            assert [each.id for each in await admin.recent()] == ["last", "first"]
            found, after = await admin.recent_after("0-0")
            assert [each.id for each in found] == ["first", "last"]
            assert (await admin.recent_after(after)) == ([], after)


async def test_running_calls_are_named(place: Place) -> None:
    """Each with who called it, its worker and since when, the longest first; those past the bound are only counted."""
    async with place.serving(*TOOLS, concurrency=MOST_CALLS + 5) as bus, admin_of(place) as admin:
        await bus.wait_for_tool("hold")
        first = asyncio.create_task(bus.call("hold", user="ann", session="s"))

        async def found() -> list[RunningCall]:
            return running_calls((await admin.statistics()).answers.values())

        [named] = await eventually(found)
        assert (named.tool, named.service, named.user, named.session, named.attempt) == ("hold", "counted", "ann", "s", 1)
        assert named.instance in (await admin.statistics()).answers
        assert abs(named.since - await admin.now()) < 5
        others = [asyncio.create_task(bus.call("hold")) for _ in range(MOST_CALLS + 2)]

        async def all_run() -> bool:
            [answer] = (await admin.statistics()).answers.values()
            return answer.running == MOST_CALLS + 3

        await eventually(all_run)
        several = await found()
        assert len(several) == MOST_CALLS
        assert several[0].id == named.id
        for task in (first, *others):
            task.cancel()
        await asyncio.gather(first, *others, return_exceptions=True)

        async def ended() -> bool:
            return not await found()

        await eventually(ended)


async def test_every_attempt_is_told_for_the_history(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, however few are sampled, numbered without a gap; the stream has a length and an end; nothing is told unless asked."""
    key = Keys(place.settings.namespace).ended
    with redis.Redis.from_url(place.settings.url) as client:
        async with place.serving(*TOOLS) as bus:
            await bus.call("succeed")
        assert not client.exists(key)
        with monkeypatch.context() as patched:
            patched.setattr(recent_calls, "_GATHERED", 60.0)
            async with place.serving(*TOOLS, history=500, recent="off") as bus:
                await bus.call("succeed")
        # A worker that stops has told of its last calls.
        assert client.xlen(key) == 1
        client.delete(key)
        async with place.serving(*TOOLS, history=500, recent="off") as bus, admin_of(place) as admin:
            await asyncio.gather(*(bus.call("succeed", {"text": SECRET}) for _ in range(300)), bus.call("fail"))

            async def told() -> list[RecentCall]:
                return (await admin.ended_after(""))[0]

            await eventually(lambda: client.xlen(key) == 301)
            found = await told()
            assert [each.number for each in found] == list(range(1, 302))
            assert sum(each.tool == "fail" for each in found) == 1
            assert SECRET not in str([each.document() for each in found])
            assert 0 < client.pttl(key) <= 3_600_000
            await asyncio.gather(*(bus.call("succeed") for _ in range(1_500)))
            assert client.xlen(key) < 1_000


async def test_what_is_left_out_of_the_history_shows_in_its_numbers(place: Place) -> None:
    """Beyond its rate a worker tells of some of both kinds; the last number is still that of all that have ended."""
    key = Keys(place.settings.namespace).ended
    ended = 0
    async with place.serving(*TOOLS, history=10_000, concurrency=1_000) as bus, admin_of(place):
        with redis.Redis.from_url(place.settings.url) as client:

            async def all_are_counted() -> bool:
                nonlocal ended
                await bus.call("succeed")
                ended += 1
                [(_, fields)] = client.xrevrange(key, count=1) or [("", {})]
                return bool(fields) and json.loads(fields[b"c"])["number"] == ended

            await asyncio.gather(*(bus.call(tool) for _ in range(2_000) for tool in ("succeed", "fail")))
            ended += 4_000
            assert client.xlen(key) < ended
            await eventually(all_are_counted)
