"""Measure a large backlog: the effect of a million queued requests on rates, scripts, memory and the backlog figure.

One server, two namespaces: in one the queue is kept nearly empty, in the other everything
waits. Each has its own worker process, and at most one of them works at a time (the other's
service is paused). Slices of the two alternate, so that a slow minute of the machine affects both.
While a worker works, this process keeps its queue at the same length by publishing new requests.

    python -m benchmarks.backlog --url redis://127.0.0.1:6379 --namespace large     (the worker's process)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from benchmarks import scripttimes
from benchmarks.adapters.contract import ready, run
from benchmarks.limits import Limit, spread
from benchmarks.processes import child
from benchmarks.scripttimes import Times
from toolbus.bus.broker.admin import Admin, overview_keys
from toolbus.bus.broker.protocols import Verdict
from toolbus.bus.broker.publish import Publish, Publisher
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.broker.transport.links import ShortLink
from toolbus.bus.broker.transport.mastership import mastership
from toolbus.bus.values.envelope import Request, encode
from toolbus.bus.values.settings import Settings

SERVICE = "backlog"
AGENT = "backlog-agent"
LARGE, SMALL = "large", "small"
BATCH = 256
SHORT = 1024
TEXT = "x" * 200
TIMEOUT_MS = 6 * 3_600_000
PUBLISHED_AT_ONCE = 20 * 1024
_OUTSTANDING = 8 * BATCH
_END = b'"end_of_stream":true'
_SLOW_US = 1000


class _Sender:
    """The sender of all requests, to which the publisher answers."""

    done = False

    def __init__(self, settle: Callable[[Verdict], None]) -> None:
        self.settle = settle


class Queue:
    """One namespace's request stream, with an agent that publishes to it and counts exactly what is in it."""

    def __init__(self, url: str, namespace: str) -> None:
        self.keys = Keys(namespace)
        self.settings = Settings.load({}, url=url, namespace=namespace)
        self.published = self.finished = self.checks = self.wrong = 0
        self.queued = self.running = 0
        connector = Connector(url)
        self._link = ShortLink(connector)
        self._mastership = mastership(connector, [self._link], lambda: None)
        before, after = encode(self._request("ID")).split(b"ID")
        self._document = before + b"%022x" + after
        self._made = 0
        self._sender = _Sender(self._verdict)
        self._answered = asyncio.Event()

    async def open(self) -> None:
        """Connect, and create the agent's reply stream."""
        await self._link.connect()
        self._publisher = Publisher(self._link, self.keys, AGENT, self._mastership)
        await self._link.execute("XADD", self.keys.replies(AGENT), "*", "o", "1")

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    @property
    def known(self) -> int:
        """The number of requests that must be in the queue, by the numbers of accepted and answered ones."""
        return self.published - self.finished

    async def publish(self, count: int) -> float:
        """Publish ``count`` requests in batches, several of them unanswered at a time; return the rate per second."""
        began, target = time.perf_counter(), self.published + count
        for start in range(0, count, BATCH):
            self._publish_batch(min(BATCH, count - start))
            await asyncio.sleep(0)
            while self._made - self.published > _OUTSTANDING:
                await self._wait()
        while self.published < target:
            await self._wait()
        return count / (time.perf_counter() - began)

    async def compare(self) -> None:
        """Compare the overview's figures with the known count, in one transaction that also reads the new replies."""
        link, replies = self._link, self.keys.replies(AGENT)
        link.send(("MULTI",))
        keys = overview_keys(self.keys, SERVICE, SERVICE)
        link.send(("EVAL", scripts.OVERVIEW.source, len(keys), *keys, SERVICE))
        link.send(("XRANGE", replies, "-", "+"))
        link.send(("XTRIM", replies, "MAXLEN", 0))
        # Publications that this transaction does not include are answered after it.
        overview, entries, _ = await link.execute("EXEC")
        self.finished += sum(value.count(_END) for _, fields in entries for value in fields[1::2])
        self.queued, self.running = overview[0][0], overview[0][1]
        self.checks += 1
        self.wrong += self.queued + self.running != self.known

    async def keep(self, length: int, seconds: float) -> float:
        """Let the worker work while the queue stays at a length; return the finished requests per second."""
        began, before = time.perf_counter(), self.finished
        while (now := time.perf_counter()) < began + seconds:
            await self.compare()
            missing = length - self.known
            if missing > 0:
                await self.publish(missing)
            await asyncio.sleep(0.002)
        return (self.finished - before) / (now - began)

    async def settle(self) -> None:
        """Wait until nothing runs, when the queued figure alone must be the known count."""
        while True:
            await self.compare()
            if not self.running:
                self.wrong += self.queued != self.known
                return
            await asyncio.sleep(0.01)

    async def empty(self) -> None:
        """Drop the queued requests."""
        self.finished += int(await self._link.execute("XTRIM", self.keys.queue(SERVICE), "MAXLEN", 0))

    def _publish_batch(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        for number in range(self._made, self._made + count):
            document = self._document % number
            self._publisher.publish(Publish(document[7:39].decode(), SERVICE, 10_000_000, deadline, document, self._sender, once=False))
        self._made += count

    def _verdict(self, verdict: Verdict) -> None:
        if verdict.status != "queued":
            raise RuntimeError(f"a request was not queued: {verdict}")
        self.published += 1
        self._answered.set()

    async def _wait(self) -> None:
        self._answered.clear()
        async with asyncio.timeout(30):
            await self._answered.wait()

    @staticmethod
    def _request(call: str) -> Request:
        return Request(call, AGENT, SERVICE, "nothing", arguments={"text": TEXT}, timeout=TIMEOUT_MS / 1000)


def measure(requests: int, rounds: int, seconds: float, binary: Path | None = None) -> tuple[list[Limit], dict[str, Any]]:
    """Measure everything, on the bundled server or another binary; return the limits and all figures."""
    with EmbeddedServer(binary=binary) as server, contextlib.ExitStack() as stack:
        client = stack.enter_context(redis.Redis.from_url(server.url, socket_timeout=60))
        client.config_set("slowlog-log-slower-than", _SLOW_US)
        client.config_set("slowlog-max-len", 100_000)
        with _workers(server.url):
            rates = run(_rates(server.url, client, requests, rounds, seconds))
        found = []
        for queued in sorted({0, requests // 10, requests}):
            found.append(scripttimes.measure(client, LARGE if queued == requests else f"probe-{queued}", SERVICE, queued))
            print("\n".join(str(times) for times in found[-1]), flush=True)
    times = [one for group in found for one in group]
    return _limits(requests, rates, times), {"requests": requests, "rates": rates, "scripts": [one._asdict() for one in times]}


@contextlib.contextmanager
def _workers(url: str) -> Iterator[None]:
    command = [sys.executable, "-P", "-m", "benchmarks.backlog", "--url", url, "--namespace"]
    with child("the small queue's worker", [*command, SMALL]) as small, child("the large queue's worker", [*command, LARGE]) as large:
        small.expect("ready", 30)
        large.expect("ready", 30)
        yield


async def _rates(url: str, client: redis.Redis, requests: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure publishing and taking, small and large in turn, and the memory of queued requests."""
    small, large = Queue(url, SMALL), Queue(url, LARGE)
    await small.open()
    await large.open()
    slow: dict[str, list[float]] = {}
    figures: dict[str, Any] = {"slow": slow}
    async with Admin(small.settings) as at_small, Admin(large.settings) as at_large:
        for admin in (at_small, at_large):
            await admin.pause(SERVICE)
        before = client.info("memory")["used_memory"]
        figures["fill"] = await large.publish(requests)
        figures["bytes_per_request"] = (client.info("memory")["used_memory"] - before) / requests
        print(f"filled at {figures['fill']:,.0f}/s, {figures['bytes_per_request']:.0f} bytes a request", flush=True)
        _collect(client, slow, "publish")
        published: dict[str, list[float]] = {SMALL: [], LARGE: []}
        taken: dict[str, list[float]] = {SMALL: [], LARGE: []}
        places = [(SMALL, small, at_small), (LARGE, large, at_large)]
        for number in range(4 * rounds):
            for name, queue, _ in places if number % 2 else reversed(places):
                published[name].append(await queue.publish(PUBLISHED_AT_ONCE))
                if queue is small:
                    await small.empty()
        _collect(client, slow, "publish")
        _show("publish", published)
        await small.publish(SHORT)
        lengths = {SMALL: SHORT, LARGE: large.known}
        for number in range(rounds):
            for name, queue, admin in places if number % 2 else reversed(places):
                await admin.resume(SERVICE)
                await queue.keep(lengths[name], seconds / 4)
                taken[name].append(await queue.keep(lengths[name], seconds))
                await admin.pause(SERVICE)
                await queue.settle()
                _collect(client, slow, "take")
        _show("take", taken)
        figures["purged"] = await _purged(small, at_small)
    figures |= {"published": published, "taken": taken}
    figures["checks"] = small.checks + large.checks
    figures["wrong"] = small.wrong + large.wrong
    small.close()
    large.close()
    await asyncio.sleep(0)
    return figures


async def _purged(queue: Queue, admin: Admin) -> float:
    """Return the requests per second that an operator's purge removes."""
    await queue.publish(PUBLISHED_AT_ONCE)
    began = time.perf_counter()
    removed = await admin.purge(SERVICE)
    rate = removed / (time.perf_counter() - began)
    await queue.settle()
    print(f"purge {rate:,.0f}/s", flush=True)
    return rate


def _show(what: str, rates: dict[str, list[float]]) -> None:
    print(f"{what} per s: {spread(rates[LARGE])} at length, {spread(rates[SMALL])} nearly empty", flush=True)


def _collect(client: redis.Redis, slow: dict[str, list[float]], phase: str) -> None:
    """Move the server's slow log into ``slow``, in milliseconds by phase and command."""
    for entry in client.slowlog_get(100_000):
        slow.setdefault(f"{phase}: {scripttimes.name_of(entry['command'])}", []).append(entry["duration"] / 1000)
    client.slowlog_reset()


def _limits(requests: int, rates: dict[str, Any], times: list[Times]) -> list[Limit]:
    limits = []
    for what in ("published", "taken"):
        small, large = rates[what][SMALL], rates[what][LARGE]
        share = statistics.median(large) / statistics.median(small) * 100
        detail = f"{spread(large)} per s at {requests:,}, {spread(small)} on an empty queue"
        limits.append(Limit(f"{what} per s, share of the rate on an empty queue", share, 80, "%", least=True, detail=detail))
    for pending in sorted({one.pending for one in times}):
        reaps = {one.queued: one.median for one in times if one.script == "reap" and one.pending == pending}
        detail = ", ".join(f"{ms:.2f} at {queued:,}" for queued, ms in sorted(reaps.items()))
        limits.append(
            Limit(f"reap.lua with {pending:,} pending", max(reaps.values()), min(reaps.values()) * 1.5 + 0.3, "ms", detail=detail)
        )
    worst = max(times, key=lambda one: one.most)
    limits.append(Limit("longest script, each alone", worst.most, 20, "ms", detail=str(worst)))
    slowest = max(((max(found), name) for name, found in rates["slow"].items()), default=(0.0, "none above 1 ms"))
    limits.append(Limit("longest command under load", slowest[0], 20, "ms", detail=slowest[1]))
    limits.append(Limit("memory per request", rates["bytes_per_request"], 500, "bytes"))
    limits.append(Limit("wrong backlog figures", rates["wrong"], 0, "", detail=f"of {rates['checks']:,} comparisons"))
    return limits


async def _serve(url: str, namespace: str) -> None:
    from toolbus import Worker, tool

    @tool(service=SERVICE)
    async def nothing(text: str) -> str:
        """Do nothing."""
        return ""

    worker = Worker([nothing], url=url, namespace=namespace, concurrency=256)
    serving = asyncio.create_task(worker.run())
    while not worker.healthy:  # noqa: ASYNC110 - there is no event for this, and 10 ms don't matter here
        await asyncio.sleep(0.01)
    ready()
    await serving


def main() -> None:
    """Run the process of a worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--namespace", required=True)
    options = parser.parse_args()
    run(_serve(options.url, options.namespace))


if __name__ == "__main__":
    main()
