"""The contract of adapters: each is a program with a worker and a client, run in its peer's own environment.

An adapter describes its peer with `Peer` and ends in ``main(PEER)``, which gives it

- ``worker --url URL``: serves until it is terminated, and prints ``ready`` when it starts to;
- ``client --url URL --concurrency N --seconds S --workload NAME --out JSON``: makes calls in
  closed loops (each of N callers awaits its result before it calls again), prints ``start`` and
  ``end`` at the edges of the measured window, and writes its figures as JSON.

This module drives all callers, asynchronous or threads, so every peer is measured by the same
code. It may use the standard library only. Asynchronous peers all run on uvloop when their
environment has it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.workloads import WORKLOADS, Workload

PROBE_SECONDS = 20.0
DRAIN_SECONDS = 10.0
clock = time.perf_counter


class AsyncCaller(Protocol):
    """The operations of an asynchronous peer; ``chunks`` and ``trickle`` only where it streams."""

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""

    async def nap(self, seconds: float) -> Any:
        """Have the worker sleep."""


class SyncCaller(Protocol):
    """The operations of a peer whose clients are threads."""

    def echo(self, text: str) -> str:
        """Have the worker return ``text``."""

    def nap(self, seconds: float) -> Any:
        """Have the worker sleep."""


@dataclass(frozen=True)
class Setup:
    """The options that an adapter is started with.

    Attributes:
        url: address of the server.
        concurrency: concurrent callers of a client, slots of a worker.
    """

    url: str
    concurrency: int

    @property
    def pooled_url(self) -> str:
        """The server's address for redis-py clients that may need more connections than its default allows."""
        return f"{self.url}?max_connections=8192"

    @property
    def host(self) -> str:
        """The server's host."""
        return self.url.split("//", 1)[-1].split("/", 1)[0].rpartition(":")[0]

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.url.split("//", 1)[-1].split("/", 1)[0].rpartition(":")[2])


@dataclass(frozen=True)
class Peer:
    """A peer whose client is asynchronous.

    Attributes:
        serve: runs the worker until it is cancelled; calls ``ready()`` when it serves.
        connect: opens a caller.
    """

    serve: Callable[[Setup], Coroutine[Any, Any, None]]
    connect: Callable[[Setup], AbstractAsyncContextManager[Any]]


@dataclass(frozen=True)
class ThreadedPeer:
    """A peer whose client blocks, so that each concurrent caller is a thread."""

    serve: Callable[[Setup], None]
    connect: Callable[[Setup], AbstractContextManager[Any]]


class WrongAnswerError(Exception):
    """The worker returned a wrong answer."""


@dataclass
class Tally:
    """The observations of one client's callers.

    Callers only append, and the window is a slice of the lists, so nothing needs to be
    synchronised, and each sample costs one append.

    Attributes:
        latencies: seconds of each turn; for a trickle, of each chunk's way from the tool to the caller.
        firsts: seconds until a stream's first chunk.
    """

    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stopping: bool = False

    def marks(self) -> tuple[int, int, int]:
        """Return the current length of each list."""
        return len(self.latencies), len(self.firsts), len(self.errors)

    def failed(self, error: BaseException) -> None:
        """Record a call without a result."""
        self.errors.append(f"{type(error).__name__}: {error}")

    def figures(self, begin: tuple[int, int, int], end: tuple[int, int, int], seconds: float, units: int) -> dict[str, Any]:
        """Return the figures of the window between two marks."""
        latencies = sorted(self.latencies[begin[0] : end[0]])
        firsts = sorted(self.firsts[begin[1] : end[1]])
        errors = self.errors[begin[2] : end[2]]
        return {
            "calls": len(latencies),
            "units": len(latencies) * units,
            "seconds": seconds,
            **{name: percentile(latencies, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
            "first_p50": percentile(firsts, 0.5),
            "first_p99": percentile(firsts, 0.99),
            "errors": len(errors),
            "first_error": errors[0] if errors else "",
        }


def percentile(ordered: list[float], share: float) -> float | None:
    """Return a percentile of sorted seconds, in milliseconds."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


async def dated(count: int, size: int, seconds: float) -> AsyncIterator[str]:
    """Yield the texts of a trickle's worker: ``count`` texts of ``size`` characters with the time of sending, one every ``seconds``.

    The clock is the one that all processes share. Streams that start together tick at different times, like those of real tools.
    """
    await asyncio.sleep(seconds * random.random())
    for _ in range(count):
        yield f"{time.monotonic():.9f}".ljust(size)
        await asyncio.sleep(seconds)


async def listening(setup: Setup) -> None:
    """Wait until a worker that is a server itself accepts connections.

    Raises:
        OSError: it accepts none in time.
    """
    limit = clock() + PROBE_SECONDS
    while True:
        try:
            _, writer = await asyncio.open_connection(setup.host, setup.port)
        except OSError:
            if clock() > limit:
                raise
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def ready() -> None:
    """Tell the harness that the worker serves."""
    print("ready", flush=True)


def main(peer: Peer | ThreadedPeer) -> None:
    """Run the adapter's command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="serve until terminated")
    client = commands.add_parser("client", help="measure a worker that runs")
    for command in (worker, client):
        command.add_argument("--url", required=True, help="the server, as redis://host:port or nats://host:port")
        command.add_argument("--quiet", action="store_true", help="log nothing")
    worker.add_argument("--concurrency", type=int, default=1024, help="calls it may run at once")
    client.add_argument("--concurrency", type=int, default=1, help="concurrent callers")
    client.add_argument("--seconds", type=float, default=1.0, help="length of the measured window")
    client.add_argument("--warmup", type=float, default=0.4, help="seconds of load before the window")
    client.add_argument("--workload", choices=sorted(WORKLOADS), default="unary")
    client.add_argument("--out", type=Path, help="where the figures go; standard output by default")
    options = parser.parse_args()
    if options.quiet:
        logging.disable(logging.CRITICAL)
    setup = Setup(options.url, options.concurrency)
    if options.command == "worker":
        _serve(peer, setup)
        return
    workload = WORKLOADS[options.workload]
    if isinstance(peer, Peer):
        figures = run(_measure(peer, setup, workload, options.warmup, options.seconds))
    else:
        figures = _measure_threads(peer, setup, workload, options.warmup, options.seconds)
    figures["loop"] = _loop_name() if isinstance(peer, Peer) else "threads"
    document = json.dumps(figures)
    if options.out is None:
        print(document)
    else:
        options.out.write_text(document)


def _serve(peer: Peer | ThreadedPeer, setup: Setup) -> None:
    try:
        if isinstance(peer, Peer):
            run(peer.serve(setup))
        else:
            peer.serve(setup)
    except KeyboardInterrupt:
        pass


def run(main_coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on uvloop if the environment has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main_coroutine)


def _loop_name() -> str:
    return "uvloop" if "uvloop" in sys.modules else "asyncio"


def _turn(caller: Any, workload: Workload, tally: Tally) -> Callable[[], Awaitable[None]]:
    """Return one turn of an asynchronous caller, which records its time; for a trickle, the time of each chunk."""
    if workload.operation == "trickle":
        return _trickle_turn(caller, workload, tally)
    work, latencies = _work(caller, workload, tally), tally.latencies

    async def timed() -> None:
        began = clock()
        await work()
        latencies.append(clock() - began)

    return timed


def _trickle_turn(caller: Any, workload: Workload, tally: Tally) -> Callable[[], Awaitable[None]]:
    size, latencies = workload.size, tally.latencies

    async def trickle_once() -> None:
        arrived = 0
        chunks: AsyncIterator[str] = caller.trickle(workload.count, size, workload.seconds)
        async for text in chunks:
            now = time.monotonic()
            # A peer may deliver several chunks in one piece.
            for start in range(0, len(text), size):
                latencies.append(now - float(text[start : start + size]))
                arrived += 1
        if arrived != workload.count:
            raise WrongAnswerError(f"{arrived} chunks arrived of {workload.count}")

    return trickle_once


def _work(caller: Any, workload: Workload, tally: Tally) -> Callable[[], Awaitable[None]]:
    """Return the work of one turn of an asynchronous caller."""
    text = "x" * workload.size
    echo = getattr(caller, "echo", None)

    async def echo_once() -> None:
        if await echo(text) != text:
            raise WrongAnswerError("the echo differs")

    async def fan_out() -> None:
        await asyncio.gather(*[echo_once() for _ in range(workload.parallel)])

    async def nap_once() -> None:
        await caller.nap(workload.seconds)

    async def stream_once() -> None:
        began = clock()
        length = first = 0.0
        chunks: AsyncIterator[str] = caller.chunks(workload.count, workload.size)
        async for text in chunks:
            if not first:
                first = clock() - began
            length += len(text)
        if length != workload.count * workload.size:
            raise WrongAnswerError(f"{length:.0f} characters arrived of {workload.count * workload.size}")
        tally.firsts.append(first)

    if workload.operation == "nap":
        return nap_once
    if workload.operation == "chunks":
        return stream_once
    return echo_once if workload.parallel == 1 else fan_out


async def _measure(peer: Peer, setup: Setup, workload: Workload, warmup: float, seconds: float) -> dict[str, Any]:
    tally = Tally()
    async with peer.connect(setup) as caller:
        turn = _turn(caller, workload, tally)
        await _until_answered(turn)

        async def caller_loop() -> None:
            while not tally.stopping:
                try:
                    await turn()
                except Exception as error:
                    tally.failed(error)
                    await asyncio.sleep(0.01)

        lanes = [asyncio.create_task(caller_loop()) for _ in range(setup.concurrency)]
        try:
            await asyncio.sleep(warmup)
            print("start", flush=True)
            begin, began = tally.marks(), clock()
            await asyncio.sleep(seconds)
            end, ended = tally.marks(), clock()
            print("end", flush=True)
            tally.stopping = True
            await asyncio.wait(lanes, timeout=DRAIN_SECONDS)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
    return tally.figures(begin, end, ended - began, workload.units)


async def _until_answered(turn: Callable[[], Awaitable[None]]) -> None:
    """Call until the worker answers: it may still be starting, and some peers lose earlier requests."""
    limit = clock() + PROBE_SECONDS
    while True:
        try:
            async with asyncio.timeout(5):
                await turn()
        except Exception:
            if clock() > limit:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def _thread_turn(caller: SyncCaller, workload: Workload, pool: ThreadPoolExecutor) -> Callable[[], None]:
    """Return one turn of a thread; the pool has the threads for the calls that it makes at once."""
    text = "x" * workload.size

    def echo_once() -> None:
        if caller.echo(text) != text:
            raise WrongAnswerError("the echo differs")

    def fan_out() -> None:
        for call in [pool.submit(echo_once) for _ in range(workload.parallel)]:
            call.result()

    def nap_once() -> None:
        caller.nap(workload.seconds)

    if workload.operation == "nap":
        return nap_once
    return echo_once if workload.parallel == 1 else fan_out


def _measure_threads(peer: ThreadedPeer, setup: Setup, workload: Workload, warmup: float, seconds: float) -> dict[str, Any]:
    tally = Tally()
    with peer.connect(setup) as caller, ThreadPoolExecutor(setup.concurrency * workload.parallel) as pool:
        turn = _thread_turn(caller, workload, pool)

        def caller_loop() -> None:
            while not tally.stopping:
                began = clock()
                try:
                    turn()
                except Exception as error:
                    tally.failed(error)
                    time.sleep(0.01)
                else:
                    tally.latencies.append(clock() - began)

        turn()
        lanes = [threading.Thread(target=caller_loop, daemon=True) for _ in range(setup.concurrency)]
        for lane in lanes:
            lane.start()
        time.sleep(warmup)
        print("start", flush=True)
        begin, began = tally.marks(), clock()
        time.sleep(seconds)
        end, ended = tally.marks(), clock()
        print("end", flush=True)
        tally.stopping = True
        limit = clock() + DRAIN_SECONDS
        for lane in lanes:
            lane.join(max(0.0, limit - clock()))
    return tally.figures(begin, end, ended - began, workload.units)
