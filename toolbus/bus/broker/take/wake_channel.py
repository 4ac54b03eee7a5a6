"""The messages that reach a worker on the wake channels of its services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import Confirmations
from toolbus.bus.broker.lease.recover import Upkeep
from toolbus.bus.broker.server.reading import document, identifier, integer, skipping
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.intake import Intake
from toolbus.bus.broker.take.requests import RequestStream
from toolbus.bus.values.results import BrokerError

# As many as a worker remembers.
_MOST_CANCELLED = 10_000


class WakeChannel(WorkerStep, eq=False):
    """Passes cancellations, pauses, hand-backs and the ends of sessions on to whom they concern.

    Args:
        repeat: see ``Links.repeat``.
        asked: takes in a question for statistics.
    """

    confirmations: Confirmations
    upkeep: Upkeep
    intake: Intake
    repeat: Callable[..., None]
    asked: Callable[[str], None]

    async def follow(self, stream: RequestStream) -> None:
        """Receive the messages of a stream's service from now on; calls that were cancelled before are passed on first."""
        # Subscribed first, then read, so that no cancellation falls between the two.
        self.link.subscribe(stream.wake)
        await self.read_cancelled(stream)

    def leave(self, stream: RequestStream) -> None:
        """Receive the messages of a stream's service no longer."""
        self.link.unsubscribe(stream.wake)

    async def read_cancelled(self, stream: RequestStream) -> None:
        """Pass on the calls of a service that were cancelled until now."""
        try:
            calls = await self.link.execute("ZREVRANGE", stream.cancelled, 0, _MOST_CANCELLED - 1, repeatable=True)
        except BrokerError as error:
            telemetry.log.warning("cancelled.unread", service=stream.service, error=str(error))
            return
        for call in calls:
            with skipping(stream.cancelled, field=call):
                self.listener.on_cancelled(identifier(call))

    def catch_up(self) -> None:
        """Learn what was published while there was no connection. Returns at once."""
        for stream in self.streams.values():
            self.repeat(self.read_cancelled, stream)
            self.repeat(self.upkeep.take_back, stream)

    def pause(self, service: str, paused: bool, asked: float) -> None:
        """Take in whether a service was paused at a local monotonic time."""
        stream = self.streams[service]
        if not stream.leaving and stream.pause(paused, asked):
            telemetry.log.info("service.paused" if paused else "service.resumed", service=service)
            if not paused:
                self.repeat(self.upkeep.take_back, stream)
            self.intake.interrupt()

    def listed(self, service: str, why_not: str) -> None:
        """Take in why the registry has no lease of this worker for a service; empty when it has one."""
        stream = self.streams.get(service)
        if stream is None or stream.unlisted == why_not:
            return
        news, stream.unlisted = bool(stream.unlisted) != bool(why_not), why_not
        if news:
            if not why_not:
                self.repeat(self.upkeep.take_back, stream)
            self.intake.interrupt()

    def receive(self, message: list[Any]) -> None:
        """Take in a message that the server pushed: ``[kind, channel, payload]``. What can't be read is logged."""
        if len(message) != 3 or message[0] != b"message":
            return
        # A client publishes nothing but strings; what else there is comes from a server gone wrong.
        channel, payload = (each.decode("utf-8", "replace") if isinstance(each, bytes) else "" for each in message[1:])
        word, _, rest = payload.partition(" ")
        with skipping(channel, field=word):
            # On the channel of all services nothing but questions is followed.
            if channel != self.keys.wake_all or word == "stats":
                self._dispatch(channel, word, rest)

    def _dispatch(self, channel: str, word: str, rest: str) -> None:
        if word == "cancel":
            self.listener.on_cancelled(identifier(rest))
        elif word == "over":
            call, _, why = rest.partition(" ")
            self.listener.on_cancelled(identifier(call), identifier(why))
        elif word == "extend":
            call, _, deadline = rest.partition(" ")
            self.listener.on_extended(identifier(call), integer(deadline) / 1000 - self.clock.offset)
        elif word == "confirm":
            self.confirmations.answered(identifier(rest))
        elif word == "stats":
            self.asked(identifier(rest))
        elif word == "back" and rest in self.streams:
            self.repeat(self.upkeep.take_back, self.streams[rest])
        elif word == "dead" and rest in self.streams:
            self.repeat(self.upkeep.recover)
        elif word in {"pause", "resume"} and rest in self.streams:
            self.pause(rest, word == "pause", self.clock.monotonic())
        else:
            self._dispatch_session(channel, word, rest)

    def _dispatch_session(self, channel: str, word: str, rest: str) -> None:
        instance, _, service = rest.partition(" ")
        if word == "to" and instance == self.instance and service in self.streams:
            self.repeat(self.upkeep.take_back, self.streams[service])
        for stream in [each for each in self.streams.values() if each.wake == channel]:
            if word == "left":
                self.listener.sessions.left(stream.service, identifier(rest))
            elif word == "end":
                self.listener.sessions.closed(stream.service, *document(rest, tuple[str, str]))
