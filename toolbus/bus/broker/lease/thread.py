"""The lease thread: beats and renewals on a connection of its own.

A handler that blocks the event loop loses nothing: this thread goes on renewing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import redis

from toolbus.bus import telemetry
from toolbus.bus.broker.registry.registry import TTL
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream, common_fence, entries_of
from toolbus.bus.broker.transport.connection import Connector, explain
from toolbus.bus.broker.transport.links import replica_by
from toolbus.bus.support.safe_text import described, reason_of
from toolbus.bus.telemetry.background import MOST_FAILURES
from toolbus.bus.values.results import BrokerError, ToolbusError

_MOST_IDS = 256
_READ_TIMEOUT = 7.0


class Renewal(NamedTuple):
    """Held deliveries that were renewed, under the fence that proves it, and those that are another worker's."""

    fence: Fence
    kept: list[Delivery]
    lost: list[Delivery]


class Beat(NamedTuple):
    """The answer to one beat. ``asked`` and ``answered`` are local monotonic times around it."""

    server_ms: float
    asked: float
    answered: float
    missing: list[str]
    paused: dict[str, bool]
    renewed: dict[str, list[Renewal]]


def until_next_beat(asked: float, now: float, lease: float) -> float:
    """Seconds until the next beat is due: a third of a lease after the last one was sent, however late its answer came.

    A process that was stopped while it waited for the answer may have lost its lease since.
    """
    return max(0.0, asked + lease / 3 - now)


class LeaseThread(WorkerStep, eq=False):
    """Beats for a process's instances and renews what they hold, three times a lease, over a connection of its own and never over ``link``.

    Beats that fail again and again for another reason than the server end the worker.

    Args:
        report: called in the event loop with each ``Beat``, and with None when one failed.
        demoted: called in the event loop when the server is a replica now.

    Attributes:
        failure: why the last beat failed; empty when it did not.
    """

    connector: Connector
    report: Callable[[Beat | None], None]
    demoted: Callable[[], None]
    _bugs: int = 0
    failure: str = ""
    _client: redis.Redis | None = None
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _wake: threading.Event = msgspec.field(default_factory=threading.Event)
    _stale: threading.Event = msgspec.field(default_factory=threading.Event)
    _stop: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start beating, at once: who comes after a crash shows that the server has not been silent."""
        self._wake.set()
        self._thread = threading.Thread(target=self._run, name="toolbus-leases", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Beat now, and not only when the next one is due."""
        self._wake.set()

    def relocate(self) -> None:
        """Give up the connection, also while an answer is waited for, and beat at the server that is the master now."""
        self._stale.set()
        sock = getattr(getattr(self._client, "connection", None), "_sock", None)
        if sock is not None:
            # A read in the thread ends with it at once. The thread alone closes it.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.nudge()

    def stop(self) -> None:
        """Stop, and wait for the thread as long as one command may take."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            self._go_on_beating()
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it, and the worker would be taken for dead
            with contextlib.suppress(Exception):
                telemetry.log.error("task.given_up", task="leases", failures=1, exc_info=error)
            self._call(self.listener.on_failed, ToolbusError(f"the lease thread ended with {described(error)}"))
        finally:
            self._disconnect()

    def _go_on_beating(self) -> None:
        pause = self.settings.lease / 3
        while not self._stop:
            self._wake.wait(pause * random.uniform(0.9, 1.0))  # noqa: S311 - jitter
            self._wake.clear()
            if self._stop:
                return
            if self._stale.is_set():
                self._disconnect()
            try:
                beat = self._beat(self._connected())
            except Exception as error:  # noqa: BLE001 - without this thread the worker is taken for dead
                try:
                    self._complain(error)
                except Exception as bug:  # noqa: BLE001 - what can't be logged must not end the thread
                    self._count_bug(bug)
                self.failure = reason_of(error)
                # The next one looks afresh for the server, and for the password.
                self._disconnect()
                self._call(self.report, None)
                if isinstance(error, redis.exceptions.ReadOnlyError):
                    self._call(self.demoted)
                # The next try must come well before the lease ends.
                pause = min(0.5, self.settings.lease / 10)
            else:
                self._bugs, self.failure = 0, ""
                self._call(self.report, beat)
                pause = until_next_beat(beat.asked, self.clock.monotonic(), self.settings.lease)

    def _connected(self) -> redis.Redis:
        if self._client is None:
            self._stale.clear()
            # A beat that hangs for longer than this loses the lease all the same.
            self._client = self.connector.sync_client(max(0.5, min(_READ_TIMEOUT, self.settings.lease / 2)))
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # A connection that can't be closed is left.
            with contextlib.suppress(Exception):
                client.close()

    def _beat(self, client: redis.Redis) -> Beat:
        streams = dict(self.streams)
        # Also while it drains: what it still runs is its own.
        members = [f"{service}/{self.instance}" for service in streams]
        kept = [key for stream in streams.values() for key in (stream.key, stream.fence)]
        keys: list[Any] = [self.keys.live, self.keys.paused, self.keys.pulse, *kept]
        args: list[Any] = [int(self.settings.lease * 1000), TTL * 1000, *members]
        asked = self.clock.monotonic()
        reply, role = _at_once(client, ("EVALSHA", scripts.BEAT.sha, len(keys), *keys, *args), ("ROLE",))
        answered = self.clock.monotonic()
        if replica_by(role):
            raise redis.exceptions.ReadOnlyError("the server is a replica now")
        if isinstance(reply, redis.exceptions.NoScriptError):
            reply = _eval(client, scripts.BEAT, keys, args)
            answered = self.clock.monotonic()
        if isinstance(reply, Exception):
            raise reply
        renewed = {service: self._renew(client, stream) for service, stream in streams.items()}
        return Beat(
            server_ms=float(reply[0]),
            asked=asked,
            answered=answered,
            missing=[members[index - 1] for index in reply[1]],
            paused={service: service.encode() in reply[2] for service in streams},
            renewed=renewed,
        )

    def _renew(self, client: redis.Redis, stream: RequestStream) -> list[Renewal]:
        renewals: list[Renewal] = []
        held = stream.renewable(self.clock.monotonic())
        for start in range(0, len(held), _MOST_IDS):
            part = held[start : start + _MOST_IDS]
            args = [stream.consumer, *common_fence(part), *entries_of(part)]
            generation, counter, gone = _eval(client, scripts.RENEW, [stream.key, stream.fence], args)
            missing = set(gone)
            kept = [delivery for delivery in part if delivery.entry not in missing]
            lost = [delivery for delivery in part if delivery.entry in missing]
            renewals.append(Renewal(Fence(generation, counter), kept, lost))
        return renewals

    def _complain(self, error: Exception) -> None:
        if isinstance(error, (redis.RedisError, OSError, BrokerError)):
            telemetry.log.warning("lease.beat_failed", server=self.connector.display, namespace=self.keys.namespace, error=_words(error))
            return
        self._count_bug(error)
        telemetry.log.error("task.failed", task="leases", failures=self._bugs, exc_info=error)

    def _count_bug(self, error: Exception) -> None:
        self._bugs += 1
        if self._bugs == MOST_FAILURES:
            failure = ToolbusError(f"beats failed {self._bugs} times in a row, at last with {described(error)}")
            self._call(self.listener.on_failed, failure)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            # The loop is closed: the process is going away.
            self._stop = True


def _words(error: Exception) -> str:
    text = reason_of(error)
    return explain(text) or text


def _at_once(client: redis.Redis, *commands: tuple[Any, ...]) -> list[Any]:
    """Return the answers to commands that are sent in one write, errors included; not a pipeline's, which takes a connection of its own."""
    connection: Any = client.connection
    connection.send_packed_command(connection.pack_commands(commands))
    answers: list[Any] = []
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except redis.ResponseError as error:
            answers.append(error)
    return answers


def _eval(client: redis.Redis, script: Script, keys: list[Any], args: list[Any]) -> Any:
    try:
        return client.evalsha(script.sha, len(keys), *keys, *args)
    except redis.exceptions.NoScriptError:
        return client.eval(script.source, len(keys), *keys, *args)
