"""Measure how long each script holds the server, by the server's slow log, with many queued and pending requests.

Consumers are simulated: each holds a hundred requests and has a live lease, as if a worker ran them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import redis

from toolbus.bus.broker.admin import overview_keys
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.take.requests import GROUP
from toolbus.bus.values.envelope import Frame, Request, encode, join_frames

REPETITIONS = 40
HELD = 100
LEASE_MS = 30_000
ME = "measured"
_FOREVER_MS = 6 * 3_600_000
_BATCH = 256
# Faster commands are not in the slow log; a lower threshold would slow the scripts down by logging the commands they call.
_FLOOR_US = 20
_NAMES = {script.sha: script.name for script in scripts.ALL}


class Times(NamedTuple):
    """The times of a script in one situation, in milliseconds."""

    script: str
    queued: int
    pending: int
    runs: int
    median: float
    most: float

    def __str__(self) -> str:
        return f"{self.script:<18} {self.queued:>9,} queued {self.pending:>7,} pending  {self.median:7.2f} ms, at most {self.most:.2f}"


def name_of(command: bytes) -> str:
    """Return the script of a slow log entry, or its command."""
    words = command.split(b" ", 2)
    if words[0].upper() == b"EVALSHA":
        return _NAMES.get(words[1].decode(), "another script")
    return words[0].decode().upper()


def measure(
    client: redis.Redis, namespace: str, service: str, queued: int, pendings: tuple[int, ...] = (0, 10_000, 100_000)
) -> list[Times]:
    """Measure each script with ``queued`` requests in the queue and each number of pending ones; existing requests count."""
    threshold = client.config_get("slowlog-log-slower-than")["slowlog-log-slower-than"]
    client.config_set("slowlog-log-slower-than", _FLOOR_US)
    bench = _Bench(client, namespace, service)
    try:
        found: list[Times] = []
        for pending in pendings:
            bench.fill(queued, pending)
            found += bench.measure(queued, pending)
        return found
    finally:
        client.config_set("slowlog-log-slower-than", threshold)
        client.slowlog_reset()


class _Bench:
    """A request stream with simulated consumers."""

    def __init__(self, client: redis.Redis, namespace: str, service: str) -> None:
        self.client = client
        self.service = service
        self.keys = Keys(namespace)
        self.queue, self.fence = self.keys.queue(service), self.keys.fence(service)
        self.replies = self.keys.replies("probe")
        self.flushes = self.consumers = 0
        for script in scripts.ALL:
            client.script_load(script.source)
        if not client.exists(self.queue):
            client.xgroup_create(self.queue, GROUP, "0", mkstream=True)
        client.hset(self.fence, "generation", "probe")
        client.xadd(self.replies, {"o": "1"})
        self._live(ME)
        request = Request("0" * 22, "probe", service, "nothing", arguments={"text": "x" * 200})
        self.document = encode(request)
        self.frame = encode(Frame("0" * 22, "run", kind="end", end_of_stream=True))

    # -- the situation ----------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """The number of pending requests."""
        return int(self.client.xpending(self.queue, GROUP)["pending"])

    def fill(self, queued: int, pending: int) -> None:
        """Publish and take until this many requests are queued and pending."""
        missing = pending - self.pending
        self.publish(max(0, queued + max(0, missing) - (self.client.xlen(self.queue) - self.pending)))
        while missing > 0:
            name = f"consumer-{self.consumers}"
            self.consumers += 1
            self._live(name)
            missing -= len(self.take(name, min(HELD, missing)))

    def publish(self, count: int) -> None:
        """Publish ``count`` requests."""
        while count > 0:
            self.flushes += 1
            part = min(_BATCH, count)
            self._run(
                scripts.PUBLISH,
                [self.keys.flushes("probe"), self.queue],
                [self.flushes, 600_000, "", *([2, 10**8, _FOREVER_MS, self.document] * part)],
            )
            count -= part

    def take(self, consumer: str, count: int) -> list[bytes]:
        """Take ``count`` requests and return their ids."""
        answer: Any = self.client.xreadgroup(GROUP, consumer, {self.queue: ">"}, count=count)
        if not answer:
            return []
        entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        return [entry for entry, _ in entries]

    def die(self, consumers: int) -> None:
        """Let new consumers take a hundred requests each without leases."""
        for _ in range(consumers):
            name = f"dead-{self.consumers}"
            self.consumers += 1
            self.take(name, HELD)

    # -- the measurements -------------------------------------------------------------------------

    def measure(self, queued: int, pending: int) -> list[Times]:
        """Measure every script in this situation."""
        mine: list[bytes] = []

        def held() -> None:
            mine[:] = self.take(ME, _BATCH)

        def times(
            script: Script, run: Callable[[], Any], runs: int = REPETITIONS, prepare: Callable[[], Any] = lambda: None, name: str = ""
        ) -> Times:
            took = [self._timed(script, prepare, run) for _ in range(runs)]
            return Times(name or script.name, queued, pending, runs, statistics.median(took), max(took))

        member = f"{self.service}/{ME}"
        overview = [*overview_keys(self.keys, self.service, self.service)]
        cancelling = [self.queue, self.keys.cancelled(self.service)]
        cancelled = ["call", 60_000, self.keys.wake(self.service)]
        fence = [ME, "probe", "0"]
        self.client.hset(self.fence, f"c:{ME}", 0)
        found = [
            times(
                scripts.BEAT,
                lambda: self._run(
                    scripts.BEAT,
                    [self.keys.live, self.keys.paused, self.keys.pulse, self.queue, self.fence],
                    [_FOREVER_MS, _FOREVER_MS, member],
                ),
            ),
            times(scripts.OVERVIEW, lambda: self._run(scripts.OVERVIEW, overview, [self.service])),
            times(scripts.PUBLISH, lambda: self.publish(_BATCH), name="publish 256"),
            times(scripts.REAP, self.reap),
        ]
        newest: list[bytes] = []

        def look_up() -> None:
            newest[:] = [entry for entry, _ in self.client.xrevrange(self.queue, count=1)]

        found.append(
            times(
                scripts.CANCEL,
                lambda: self._run(scripts.CANCEL, cancelling, [newest[0], *cancelled]),
                prepare=look_up,
                name="cancel queued",
            )
        )
        self.publish(1)
        found.append(
            times(
                scripts.BURY,
                lambda: self._run(scripts.BURY, [self.queue, self.fence, self.queue], ["", "", "", newest[0], *10 * [""]]),
                prepare=look_up,
                name="purge",
            )
        )
        self.publish(2 * _BATCH)
        held()
        found += [
            times(scripts.CANCEL, lambda: self._run(scripts.CANCEL, cancelling, [mine[0], *cancelled]), name="cancel running"),
            times(
                scripts.RENEW,
                lambda: self._run(scripts.RENEW, [self.queue, self.fence], [*fence, *_first_attempts(mine)]),
                name="renew 256",
            ),
            times(
                scripts.RENEW,
                lambda: self._run(scripts.RENEW, [self.queue, self.fence], [ME, "probe", "x", *_first_attempts(mine)]),
                name="renew 256 unsure",
            ),
        ]
        self._finish(fence, mine)
        self.publish(REPETITIONS * _BATCH)
        found.append(times(scripts.FINISH, lambda: self._finish_all_or_nothing(fence, mine), prepare=held, name="finish 256"))
        self.publish(REPETITIONS * _BATCH)
        found.append(times(scripts.FINISH_EACH, lambda: self._finish(fence, mine), prepare=held, name="finish 256 by id"))
        self.publish(10 * HELD)
        self.die(10)
        found.append(times(scripts.REAP, self.reap, runs=4, name="reap 1,000 of 10 dead"))
        self._finish_all()
        return found

    def reap(self) -> None:
        """Run the reap script as a worker with 256 free slots, on a server that has received beats all the time."""
        self.client.set(self.keys.pulse, f"{int(time.time() * 1000)} 0")
        args = [ME, self.service, _BATCH, LEASE_MS, 0, 1, 3, 0, self.keys.pause(self.service, "")]
        self._run(scripts.REAP, [self.queue, self.fence, self.keys.live, self.keys.pulse], args)

    def _finish_all_or_nothing(self, fence: list[str], ids: list[bytes]) -> None:
        frames = join_frames([self.frame] * len(ids))
        self._run(scripts.FINISH, [self.queue, self.fence], [*fence, len(ids), *ids, self.replies, frames])
        self.client.xtrim(self.replies, 0, approximate=False)

    def _finish(self, fence: list[str], ids: list[bytes]) -> None:
        frames = [word for index in range(1, len(ids) + 1) for word in (index, self.frame)]
        self._run(scripts.FINISH_EACH, [self.queue, self.fence], [*fence, len(ids), *_first_attempts(ids), self.replies, len(ids), *frames])
        self.client.xtrim(self.replies, 0, approximate=False)

    def _finish_all(self) -> None:
        """Finish the requests that this consumer took over."""
        while ids := [row["message_id"] for row in self.client.xpending_range(self.queue, GROUP, "-", "+", _BATCH, consumername=ME)]:
            self._finish([ME, "probe", "0"], ids)

    def _timed(self, script: Script, prepare: Callable[[], Any], run: Callable[[], Any]) -> float:
        prepare()
        self.client.slowlog_reset()
        run()
        entries = self.client.slowlog_get(100_000)
        took = [entry["duration"] for entry in entries if name_of(entry["command"]) == script.name]
        return max(took, default=_FLOOR_US) / 1000

    def _live(self, consumer: str) -> None:
        until = int(time.time() * 1000) + _FOREVER_MS
        self.client.zadd(self.keys.live, {f"{self.service}/{consumer}": until})

    def _run(self, script: Script, keys: list[Any], args: list[Any]) -> Any:
        return self.client.evalsha(script.sha, len(keys), *keys, *args)


def _first_attempts(entries: list[bytes]) -> list[bytes | int]:
    """Return each entry followed by the number of its attempt, as scripts that check each entry expect them."""
    return [word for entry in entries for word in (entry, 1)]
