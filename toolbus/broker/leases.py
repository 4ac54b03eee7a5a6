"""The lease thread: beats and renewals on a connection of its own.

A handler that blocks the event loop loses nothing: this thread goes on renewing, and logs
where the loop is stuck.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import redis

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.connection import Connector
from toolbus.broker.keys import Keys
from toolbus.broker.protocols import Delivery
from toolbus.broker.registry import TTL
from toolbus.broker.requests import Fence, RequestStream, common_fence, entries_of
from toolbus.broker.scripts import Script

_MOST_IDS = 256
_STUCK_AFTER = 2.0
_READ_TIMEOUT = 7.0


class Renewal(NamedTuple):
    """Held deliveries that were renewed, under the fence that proves it, and those that are another worker's."""

    fence: Fence
    kept: list[Delivery]
    lost: list[Delivery]


class Beat(NamedTuple):
    """What one beat learned. ``asked`` and ``answered`` are local monotonic times around it."""

    server_ms: float
    asked: float
    answered: float
    missing: list[str]
    paused: set[str]
    renewed: dict[str, list[Renewal]]


def until_next_beat(asked: float, now: float, lease: float) -> float:
    """Seconds until the next beat is due: a third of a lease after the last one was sent, however late its answer came.

    A process that was stopped while it waited for the answer may have lost its lease since.
    """
    return max(0.0, asked + lease / 3 - now)


class LeaseThread:
    """Beats for a process's instances and renews what they hold, three times a lease.

    Args:
        streams: the request streams by service, read afresh at each beat.
        report: called in the event loop with each ``Beat``, and with None when one failed.
    """

    def __init__(
        self,
        connector: Connector,
        keys: Keys,
        instance: str,
        lease: float,
        *,
        streams: Mapping[str, RequestStream],
        report: Callable[[Beat | None], None],
    ) -> None:
        self._connector = connector
        self._keys = keys
        self._instance = instance
        self._lease = lease
        self._streams = streams
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._answered_at = time.monotonic()
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="toolbus-leases", daemon=True)

    def start(self) -> None:
        """Start beating, at once: who comes after a crash shows that the server has not been silent."""
        self._wake.set()
        self._thread.start()

    def nudge(self) -> None:
        """Beat now, and not only when the next one is due."""
        self._wake.set()

    def stop(self) -> None:
        """Stop, and wait for the thread as long as one command may take."""
        self._stop = True
        self._wake.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        client: redis.Redis | None = None
        pause = self._lease / 3
        try:
            while not self._stop:
                self._wake.wait(pause * random.uniform(0.9, 1.0))  # noqa: S311 - jitter
                self._wake.clear()
                if self._stop:
                    return
                self._watch_loop()
                try:
                    # A beat that hangs for longer than this loses the lease all the same.
                    client = client or self._connector.sync_client(max(0.5, min(_READ_TIMEOUT, self._lease / 2)))
                    beat = self._beat(client)
                except (redis.RedisError, OSError) as error:
                    telemetry.log.warning("lease.beat_failed", error=str(error) or type(error).__name__)
                    if client is not None:
                        # The next one looks afresh for the server, and for the password.
                        client.close()
                        client = None
                    self._tell(None)
                    # The next try must come well before the lease ends.
                    pause = min(0.5, self._lease / 10)
                else:
                    self._tell(beat)
                    pause = until_next_beat(beat.asked, time.monotonic(), self._lease)
        finally:
            if client is not None:
                client.close()

    def _beat(self, client: redis.Redis) -> Beat:
        streams = dict(self._streams)
        # Also while it drains: what it still runs is its own.
        members = [f"{service}/{self._instance}" for service in streams]
        kept = [key for stream in streams.values() for key in (stream.key, stream.fence)]
        asked = time.monotonic()
        reply = _eval(
            client,
            scripts.BEAT,
            [self._keys.live, self._keys.paused, self._keys.pulse, *kept],
            [int(self._lease * 1000), TTL * 1000, *members],
        )
        answered = time.monotonic()
        renewed = {service: self._renew(client, stream) for service, stream in streams.items()}
        return Beat(
            server_ms=float(reply[0]),
            asked=asked,
            answered=answered,
            missing=[members[index - 1] for index in reply[1]],
            paused={name.decode() for name in reply[2]},
            renewed=renewed,
        )

    def _renew(self, client: redis.Redis, stream: RequestStream) -> list[Renewal]:
        renewals: list[Renewal] = []
        held = stream.renewable(time.monotonic())
        for start in range(0, len(held), _MOST_IDS):
            part = held[start : start + _MOST_IDS]
            args = [stream.consumer, *common_fence(part), *entries_of(part)]
            generation, counter, gone = _eval(client, scripts.RENEW, [stream.key, stream.fence], args)
            missing = set(gone)
            kept = [delivery for delivery in part if delivery.entry not in missing]
            lost = [delivery for delivery in part if delivery.entry in missing]
            renewals.append(Renewal(Fence(generation, counter), kept, lost))
        return renewals

    def _tell(self, beat: Beat | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._heard, beat)
        except RuntimeError:
            # The loop is closed: the process is going away.
            self._stop = True

    def _heard(self, beat: Beat | None) -> None:
        self._answered_at = time.monotonic()
        self._report(beat)

    def _watch_loop(self) -> None:
        silent = time.monotonic() - self._answered_at
        if silent > self._lease / 3 + _STUCK_AFTER:
            frame = sys._current_frames().get(self._loop_thread)
            stack = "".join(traceback.format_stack(frame)) if frame else "unknown"
            telemetry.log.warning("worker.loop_blocked", seconds=round(silent, 1), stack=stack)


def _eval(client: redis.Redis, script: Script, keys: list[Any], args: list[Any]) -> Any:
    try:
        return client.evalsha(script.sha, len(keys), *keys, *args)
    except redis.exceptions.NoScriptError:
        return client.eval(script.source, len(keys), *keys, *args)
