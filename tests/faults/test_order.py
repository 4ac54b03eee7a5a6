"""Servers that forget scripts while streams run: nothing that was sent later is carried out earlier."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.broker import scripts
from toolbus.broker.admin import Admin
from toolbus.broker.embedded import EmbeddedServer
from toolbus.broker.keys import Keys

pytestmark = pytest.mark.anyio

FreshServer = Callable[..., EmbeddedServer]

runs: Counter[str] = Counter()


@tool(service="ordered", effect="read")
async def count(n: int, size: int) -> Any:
    """Count in long words."""
    for number in range(n):
        yield f"{number:0{size}} "
        await asyncio.sleep(0.001)


@tool(service="ordered", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="ordered", effect="once")
async def pay(name: str, seconds: float = 0.0) -> str:
    """Have an effect."""
    runs[name] += 1
    await asyncio.sleep(seconds)
    return name


class Forgetting:
    """A client that makes the server forget its scripts again and again, in a thread; ``kept`` are loaded again at once."""

    def __init__(self, url: str, kept: tuple[scripts.Script, ...]) -> None:
        self._url, self._kept = url, kept
        self._stop = threading.Event()
        self.times = 0

    def run(self) -> None:
        """Flush at random moments until it is told to stop."""
        chance = random.Random(7)
        with redis.Redis.from_url(self._url) as client:
            while not self._stop.wait(chance.uniform(0.0, 0.01)):
                with client.pipeline(transaction=True) as pipeline:
                    pipeline.script_flush()
                    for script in self._kept:
                        pipeline.script_load(script.source)
                    pipeline.execute()
                self.times += 1

    def stop(self) -> None:
        """Stop after this round."""
        self._stop.set()


@contextmanager
def forgetting(url: str, *kept: scripts.Script) -> Iterator[Forgetting]:
    """A server that forgets its scripts for as long as the block runs."""
    made = Forgetting(url, kept)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join()


@pytest.mark.parametrize("appendonly", [True, False])
@pytest.mark.parametrize("kept", [(), (scripts.FINISH,), (scripts.SEND,), (scripts.FINISH, scripts.FINISH_EACH)])
async def test_forgotten_scripts_cost_no_stream(fresh_server: FreshServer, appendonly: bool, kept: tuple[scripts.Script, ...]) -> None:
    """SCRIPT FLUSH at random moments of 200 streams, also where other processes load some scripts again first: all are whole."""
    server = fresh_server(appendonly=appendonly)
    settings = Settings.load({}, url=server.url, lease=2.0)
    n, size = 40, 2000
    expected = "".join(f"{number:0{size}} " for number in range(n))
    workers = [Worker([count, echo, pay], settings=settings, concurrency=100) for _ in range(2)]
    async with workers[0], workers[1], ToolBus(settings=settings) as bus, ToolBus(settings=settings) as other:
        await bus.wait_for_tool("count")
        await other.wait_for_tool("echo")
        stop = asyncio.Event()

        async def plain() -> None:
            while not stop.is_set():
                assert (await other.call("echo", {"text": "plain"}, timeout=60.0)).output == "plain"

        with forgetting(server.url, *kept) as flushes:
            beside = [asyncio.create_task(plain()) for _ in range(5)]
            results = await asyncio.gather(*(bus.call("count", {"n": n, "size": size}, timeout=60.0) for _ in range(200)))
            stop.set()
            await asyncio.gather(*beside)
    assert flushes.times > 3
    assert Counter(result.error and result.error.message for result in results) == {None: 200}
    assert {result.output for result in results} == {expected}
    assert {result.meta.attempts for result in results} == {1}


async def test_forgotten_scripts_cost_no_publication_and_no_lease(fresh_server: FreshServer) -> None:
    """Calls that must not happen twice are published once each, and work longer than a lease stays with its worker."""
    runs.clear()
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=1.0)
    async with Worker([count, echo, pay], settings=settings, concurrency=300) as worker, ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("pay")
        with forgetting(server.url) as flushes:
            long = [asyncio.create_task(bus.call("pay", {"name": f"long {number}", "seconds": 4.0}, timeout=60.0)) for number in range(5)]
            short: list[Any] = []
            while not all(call.done() for call in long):
                short += await asyncio.gather(*(bus.call("pay", {"name": f"{len(short) + number}"}, timeout=60.0) for number in range(50)))
            results = [await call for call in long]
            await eventually(lambda: worker.broker.statistics()["held"] == 0)
    assert flushes.times > 100
    assert Counter(result.error and result.error.message for result in [*results, *short]) == {None: len(results) + len(short)}
    assert set(runs.values()) == {1}
    assert worker.broker.statistics()["connects"] == 1


async def test_calls_are_published_in_their_order(fresh_server: FreshServer) -> None:
    """Many flushes are in flight while the server forgets the script that publishes, and learns it again from others."""
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=5.0)
    queue = Keys(settings.namespace).queue("ordered")
    async with Admin(settings) as admin:
        # A worker hears of a pause a moment later, but looks for one before it takes anything.
        await admin.pause("ordered")
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("echo")
        calls: list[asyncio.Task[Any]] = []
        with redis.Redis.from_url(server.url) as client:

            async def all_published() -> None:
                await eventually(lambda: client.xlen(queue) == len(calls), timeout=30.0)

            with forgetting(server.url) as flushes, forgetting(server.url, scripts.PUBLISH):
                while flushes.times < 200:
                    calls += [asyncio.create_task(bus.call("echo", {"text": str(len(calls))}, timeout=60.0))]
                    await asyncio.sleep(0)
                    if len(calls) % 20 == 0:
                        await all_published()
            await all_published()
            entries = client.xrange(queue)
        published = [int(msgspec.json.decode(fields[b"r"])["arguments"]["text"]) for _, fields in entries]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert published == list(range(len(calls)))


@tool(service="ordered", effect="read")
async def hang() -> Any:
    """Say one thing and hang."""
    yield "one "
    await asyncio.Event().wait()


def told(client: redis.Redis, replies: str, call: str, seq: int, **fields: Any) -> None:
    """Write a frame of a second attempt of a call, as another worker does."""
    frame = {"id": call, "run": "another", "attempt": 2, "seq": seq, **fields}
    client.xadd(replies, {"f": msgspec.json.encode([frame])})


@pytest.mark.parametrize("closes", [True, False])
async def test_a_gap_is_waited_for_but_not_for_long(redis_place: Place, closes: bool) -> None:
    """Frames that come late are put in their place; when one does not come, the call ends as outcome_unknown long before its deadline."""
    async with redis_place.worker([hang]), redis_place.bus() as bus, bus.stream("hang", timeout=600.0) as call:
        async for _ in call:
            break
        replies = f"tb:{{{redis_place.settings.namespace}}}:rsp:{bus.agent}"
        with redis.Redis.from_url(redis_place.settings.url) as client:
            told(client, replies, call.id, 2, kind="end", end_of_stream=True)
            told(client, replies, call.id, 1, response="two")
            await eventually(lambda: not client.xlen(replies))
            assert not call.done
            if closes:
                told(client, replies, call.id, 0, response="one ")
        async with asyncio.timeout(60):
            result = await call.result()
    if closes:
        assert (result.output, result.meta.attempts) == ("one two", 2)
    else:
        assert result.error is not None
        assert (result.error.type, result.error.code, result.output) == ("outcome_unknown", "frames_missing", "one ")
