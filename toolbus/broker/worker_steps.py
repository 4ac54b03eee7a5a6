"""The steps of the protocol that an open worker takes part in."""

from __future__ import annotations

from typing import Any

from toolbus import telemetry
from toolbus.broker.confirmations.confirmations import RedisConfirmations
from toolbus.broker.confirmations.notes import DeadlineNotes
from toolbus.broker.failing import Failing
from toolbus.broker.finish.endings import Endings
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.lease.beats import BeatEffects
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.lease.thread import Beat, LeaseThread
from toolbus.broker.limits.tallies import RedisTallies, days_back
from toolbus.broker.protocols import WorkerListener
from toolbus.broker.recent.writer import RecentWriter
from toolbus.broker.recover.abandoned import AbandonedCalls
from toolbus.broker.recover.key_repair import KeyRepair
from toolbus.broker.recover.upkeep import Upkeep
from toolbus.broker.registry.registration import WorkerRegistration
from toolbus.broker.registry.registry import RedisRegistry
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.sessions.snapshots import Snapshots
from toolbus.broker.statistics.answering import Answering
from toolbus.broker.take.begin import Beginnings
from toolbus.broker.take.intake import Intake
from toolbus.broker.take.requests import RequestStream
from toolbus.broker.take.wake_channel import WakeChannel
from toolbus.broker.transport.connection import Connector
from toolbus.broker.transport.links import Links
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.server import tell_time, warn_of_eviction
from toolbus.descriptors import ServiceDescriptor
from toolbus.results import ErrorInfo
from toolbus.settings import Settings


class WorkerSteps:
    """The steps of one open worker, each made with the steps that it uses.

    Raises:
        RuntimeError: no event loop runs.
    """

    def __init__(
        self, settings: Settings, connector: Connector, keys: Keys, instance: str, clock: ServerClock, listener: WorkerListener
    ) -> None:
        self._settings = settings
        self._connector = connector
        self._instance = instance
        self._keys = keys
        self._clock = clock
        self.listener = listener
        self.streams: dict[str, RequestStream] = {}
        # Connections.
        self.links = Links(
            connector,
            on_failed=listener.on_failed,
            on_push=self._pushed,
            on_up=self.connected,
            # A reader that waits to read again need not wait any longer.
            on_blocking_up=lambda _restarted: self.intake.interrupt(),
            on_moved=self._moved,
            replicated=settings.wait_replicas > 0,
        )
        self.link = link = self.links.writing
        self.replication = Replication(self.links.replicated, settings.wait_replicas, settings.wait_timeout)
        self.key_repair = KeyRepair(link, self._types, self._keys_deleted)
        link.on_wrong_type = self.links.blocking.on_wrong_type = self.key_repair.request
        # Shared state.
        self.tallies = RedisTallies(link, keys)
        self.confirmations = RedisConfirmations(link, keys, settings.lease)
        self.notes = DeadlineNotes(link, keys, clock, settings.retention)
        # Register.
        registry = RedisRegistry(link, keys, settings)
        self.ownership = Ownership(link, keys, settings.lease, instance, listener.sessions)
        self.snapshots = Snapshots(link, keys, self.ownership)
        self.registration = WorkerRegistration(link, keys, instance, registry, self.streams, self.ownership.doubt, listener.on_failed)
        # Finish.
        self.outbox = Outbox(
            link,
            keys,
            reply_limit=settings.reply_limit,
            reply_bytes=settings.reply_bytes,
            on_replies_gone=self._replies_gone,
            on_lost=listener.on_lost,
            failing=Failing(settings.lease, "no calls could be finished", listener.on_failed),
            server=connector.display,
        )
        self.endings = Endings(link, keys, instance, outbox=self.outbox, ownership=self.ownership, notes=self.notes, start=self.links.start)
        # Tell operators.
        self.recent = RecentWriter(link, keys, clock, instance, settings.recent, self.outbox.before_sending)
        self.answering = Answering(
            link,
            keys,
            clock,
            instance,
            self.streams,
            listener=listener,
            retaken=lambda: self.upkeep.retaken,
            traffic=self._traffic,
        )
        # Recover.
        self._abandoned = abandoned = AbandonedCalls(link, keys, clock, self.streams, outbox=self.outbox, listener=listener)
        self.upkeep = Upkeep(
            link,
            keys,
            settings.lease,
            clock,
            self.streams,
            listener=listener,
            registry=registry,
            ownership=self.ownership,
            notes=self.notes,
            abandoned=abandoned,
            register_lost=self._register_lost,
            on_lost_elsewhere=self.recent.lost,
        )
        # Take.
        self.beginnings = Beginnings(self.links.replicated, self.links.mastership, self.replication, keys, clock, settings.retention)
        self.intake = Intake(
            self.links,
            self.streams,
            instance,
            settings.lease,
            listener=listener,
            upkeep=self.upkeep,
            abandoned=abandoned,
            ownership=self.ownership,
            register_again=self.registration.register_again,
        )
        self.wake = WakeChannel(
            link,
            clock,
            instance,
            self.streams,
            listener=listener,
            confirmations=self.confirmations,
            upkeep=self.upkeep,
            intake=self.intake,
            start=self.links.start,
            asked=self.answering.answer,
            everybodys=keys.wake_all,
        )
        # Keep the leases.
        self._beats = BeatEffects(
            clock,
            self.streams,
            self.ownership,
            self.links.mastership,
            # One of the keys may be of a wrong type.
            on_failed=self.key_repair.request,
            on_paused=self.wake.pause,
            on_missing=self._register_again,
            on_beaten=self.intake.beaten,
        )
        self.leases = LeaseThread(
            connector,
            keys,
            instance,
            settings.lease,
            streams=self.streams,
            report=self._beaten,
            on_failed=listener.on_failed,
            demoted=self._demoted,
        )

    async def start(self) -> None:
        """Connect, then begin to beat and to keep up.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        async with self.links.opening():
            await tell_time(self.link, self._clock)
            await warn_of_eviction(self.link, self._connector.display)
        self.link.subscribe(self._keys.wake_all)
        self._clock.distrust()
        self.leases.start()
        self.links.keep("mender", self.key_repair.run, every=0)
        self.links.keep("upkeep", self.upkeep.run, every=self.upkeep.every)

    def _traffic(self) -> tuple[int, int]:
        statistics = self.link.statistics()
        return statistics.commands, statistics.connects

    def stream_of(self, service: ServiceDescriptor) -> RequestStream:
        """Return the request stream of a service, of which nothing has been taken yet."""
        lost, set_aside = self.listener.on_lost, self.endings.set_aside
        keys, clock = self._keys, self._clock
        return RequestStream(keys, service.id, service.queue, self._instance, clock, self._settings, on_lost=lost, set_aside=set_aside)

    def connected(self, restarted: bool) -> None:
        """Take in that the writing link has connected; ``restarted`` when the server is another process now."""
        # A reconnect may have delayed the beats of all workers, so their leases get time to be renewed.
        self._clock.distrust()
        self.confirmations.nudge()
        if self.links.open and self.link.statistics().connects > 1:
            self.leases.nudge()
            self.wake.catch_up()
        if restarted:
            if self.links.open:
                self.ownership.doubt()
            telemetry.log.warning("link.server_restarted", server=self._connector.display)

    def _replies_gone(self, replies: str, error: ErrorInfo) -> None:
        if error.type == "cancelled":
            self.links.start(self._abandoned.stop_calls_of(replies, error))
        else:
            self.listener.on_replies_gone(replies, error)

    def _pushed(self, message: list[Any]) -> None:
        self.wake.receive(message)

    def _demoted(self) -> None:
        if not self.links.closing:
            self.links.mastership.demoted("it is a replica now")

    def _moved(self) -> None:
        if self.links.open:
            self.leases.relocate()

    def _beaten(self, beat: Beat | None) -> None:
        if not self.links.closing:
            self._beats.apply(beat)

    def _register_again(self, services: list[str]) -> None:
        if self.registration.active:
            self.links.start(self.registration.register_again(services))

    def _keys_deleted(self) -> None:
        # They may have been a part of the registration.
        self._register_again(list(self.streams))

    async def _register_lost(self) -> None:
        # No command fails because of a key that is only written in error, so ask for a repair of all keys now and then.
        self.key_repair.request()
        await self.registration.register_missing()

    def _types(self) -> list[dict[str, str]]:
        types = self._keys.of_workers() | {self._keys.usage(day): "hash" for day in days_back(1)}
        for stream in self.streams.values():
            types |= self._keys.of_service(stream.service, stream.queue)
        return [types]
