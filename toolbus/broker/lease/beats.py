"""The effects of a beat on the worker that sent it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.lease.thread import Beat, Renewal
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.take.requests import RequestStream
from toolbus.broker.transport.mastership import Mastership


class BeatEffects:
    """Applies what each beat learned: the server's time, lost deliveries, pauses, lost registrations.

    Args:
        streams: the request streams by service, read afresh at each beat.
        on_failed: called when a beat failed.
        on_paused: called with a service, whether it is paused, and the local monotonic time at which that was asked.
        on_missing: called with the services in which the registry has lost this worker.
        on_beaten: called with the local monotonic time at which a beat was sent that succeeded.
    """

    def __init__(
        self,
        clock: ServerClock,
        streams: Mapping[str, RequestStream],
        ownership: Ownership,
        mastership: Mastership,
        *,
        on_failed: Callable[[], None],
        on_paused: Callable[[str, bool, float], None],
        on_missing: Callable[[list[str]], None],
        on_beaten: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._streams = streams
        self._ownership = ownership
        self._mastership = mastership
        self._on_failed = on_failed
        self._on_paused = on_paused
        self._on_missing = on_missing
        self._on_beaten = on_beaten

    def apply(self, beat: Beat | None) -> None:
        """Take in a beat; None is one that failed."""
        if beat is None:
            self._on_failed()
            return
        self._on_beaten(beat.asked)
        self._mastership.compare()
        self._clock.observe(beat.server_ms, beat.asked, beat.answered)
        self._ownership.beaten(beat.asked, beat.answered, missing=bool(beat.missing))
        for service, stream in self._streams.items():
            if service in beat.paused:
                self._on_paused(service, beat.paused[service], beat.asked)
            if service in beat.renewed:
                _renew(stream, beat.renewed[service])
        if beat.missing:
            self._on_missing([member.partition("/")[0] for member in beat.missing])


def _renew(stream: RequestStream, renewals: list[Renewal]) -> None:
    for renewal in renewals:
        for delivery in renewal.kept:
            delivery.fence = renewal.fence
        for delivery in renewal.lost:
            stream.lose(delivery)
        stream.fence_is(*renewal.fence)
