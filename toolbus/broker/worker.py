"""The worker's side of the Redis broker: takes deliveries, keeps their leases, sends what they produce."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.confirmations.confirmations import Confirmations
from toolbus.broker.finish.outbox import Outbox
from toolbus.broker.keys import Keys
from toolbus.broker.lease.clock import ServerClock
from toolbus.broker.lease.thread import Beat, LeaseThread, Renewal
from toolbus.broker.limits.tallies import Tallies, days_back
from toolbus.broker.protocols import Beginning, Delivery, Note, WorkerListener
from toolbus.broker.reading import document, identifier, skip
from toolbus.broker.recover.mending import Mender
from toolbus.broker.recover.upkeep import Upkeep, write_note
from toolbus.broker.registry.publications import read_record
from toolbus.broker.registry.registry import Registry
from toolbus.broker.sessions.ownership import Ownership
from toolbus.broker.take.intake import Intake
from toolbus.broker.take.requests import BadEntry, Fence, Found, Freed, RequestStream
from toolbus.broker.transport.connection import Connector
from toolbus.broker.transport.links import Pair
from toolbus.broker.transport.replication import Replication
from toolbus.broker.transport.server import may_have_forgotten, tell_time, warn_of_eviction
from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.descriptors import Publication
from toolbus.envelope import Frame, encode, join_frames, new_run, share_digest
from toolbus.results import BrokerError, DescriptorError, EnvelopeError, ErrorInfo, RegistrationRefused
from toolbus.settings import Settings

_STOP_WAITING = 3.0
# Milliseconds for which the note of a deadline outlives it.
_NOTE_TTL = 60_000
# As many as a worker remembers.
_MOST_CANCELLED = 10_000

_pairs = msgspec.json.Decoder(tuple[str, str])


class Published(msgspec.Struct):
    """A publication of this process and its place in the order of starts."""

    publication: Publication
    start: int


class RedisWorkerBroker:
    """``WorkerBroker`` over Redis: a writing link, a blocking link, and the lease thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self._instance = new_instance()
        self._clock = ServerClock(settings.lease)
        self._streams: dict[str, RequestStream] = {}
        self._published: dict[str, Published] = {}
        self._registered = True
        # Runs that have ended, and whose sessions are asked about.
        self._doubtful = 0
        self._settled = asyncio.Event()
        self._settled.set()
        self.malformed = 0

    @property
    def instance(self) -> str:
        """This process start's instance id, which is also its consumer name."""
        return self._instance

    @property
    def tallies(self) -> Tallies:
        """What all processes count together."""
        return self._tallies

    @property
    def connected(self) -> bool:
        """Whether the server can be spoken to now."""
        return self._pair.connected

    @property
    def congested(self) -> bool:
        """Whether producers should wait for ``room``."""
        return self._outbox.congested

    async def room(self) -> None:
        """Wait until frames leave again."""
        await self._outbox.room()

    def statistics(self) -> dict[str, int]:
        """Counts for people and metrics."""
        link = self._link.statistics()
        return {
            "frames_sent": self._outbox.frames_sent,
            "calls_finished": self._outbox.calls_finished,
            "calls_lost": self._outbox.lost,
            "calls_recovered": self._upkeep.recovered,
            "malformed": self.malformed,
            "commands": link.commands,
            "writes": link.writes,
            "connects": link.connects,
            "held": sum(len(stream.held) for stream in self._streams.values()),
        }

    # -- opening and closing ----------------------------------------------------------------------

    async def open(self, listener: WorkerListener) -> None:
        """Connect; raises BrokerError when the server can't be reached or can't serve."""
        self._listener = listener
        self._pair = Pair(
            self._connector,
            on_failed=listener.on_failed,
            on_push=self._pushed,
            on_up=self._up,
            # Whoever waits to read again need not wait any longer.
            on_blocking_up=lambda _restarted: self._intake.interrupt(),
            on_moved=self._moved,
            replicated=self._settings.wait_replicas > 0,
        )
        self._replication = Replication(self._pair.replicated, self._settings.wait_replicas, self._settings.wait_timeout)
        self._link = self._pair.writing
        self._mender = Mender(self._link, self._types, self._mended)
        self._link.on_wrong_type = self._pair.blocking.on_wrong_type = self._mender.nudge
        self._tallies = Tallies(self._link, self._keys)
        self._confirmations = Confirmations(self._link, self._keys, self._settings.lease)
        self._registry = Registry(self._link, self._keys, self._settings)
        self._outbox = Outbox(
            self._link,
            self._keys,
            reply_limit=self._settings.reply_limit,
            reply_bytes=self._settings.reply_bytes,
            on_replies_gone=listener.on_replies_gone,
            on_lost=listener.on_lost,
        )
        self._ownership = Ownership(self._link, self._keys, self._settings.lease, self._instance, listener.sessions)
        self._upkeep = Upkeep(
            self._link,
            self._keys,
            self._settings.lease,
            self._clock,
            self._registry,
            self._outbox,
            self._streams,
            listener=listener,
            ownership=self._ownership,
            deliveries=self._deliveries,
            look_after=self._look_after,
        )
        self._intake = Intake(
            self._pair,
            self._streams,
            self._instance,
            listener=listener,
            upkeep=self._upkeep,
            ownership=self._ownership,
            deliveries=self._deliveries,
            register_again=self._register_again,
        )
        self._leases = LeaseThread(
            self._connector,
            self._keys,
            self._instance,
            self._settings.lease,
            streams=self._streams,
            report=self._beaten,
            on_failed=listener.on_failed,
            demoted=self._demoted,
        )
        async with self._pair.opening():
            await tell_time(self._link, self._clock)
            await warn_of_eviction(self._link, self._connector.display)
        self._clock.hush()
        self._leases.start()
        self._pair.keep("mender", self._mender.run)
        self._pair.keep("upkeep", self._upkeep.run)

    async def aclose(self) -> None:
        """Send what is still to be sent, leave the streams, and disconnect."""
        if not self._pair.open:
            return
        try:
            async with asyncio.timeout(5):
                await self._settled.wait()
                await self._outbox.drained()
                # Dead letters and notes, too, which nobody waits for.
                await self._link.settled()
                for stream in self._streams.values():
                    await self._link.execute_script(
                        scripts.RETIRE,
                        (stream.key, stream.fence, stream.cancelled, self._keys.instances(stream.service), self._keys.live),
                        (self._instance, stream.service),
                        repeatable=True,
                    )
        except (TimeoutError, BrokerError) as error:
            telemetry.log.warning("worker.close_incomplete", error=str(error) or "the server did not answer")
        await asyncio.to_thread(self._leases.stop)
        await self._pair.leave()

    # -- the registry -----------------------------------------------------------------------------

    async def register(self, publication: Publication) -> None:
        """Publish a service and its tools, and serve its stream from now on."""
        service = publication.service
        published = Published(publication, 0)
        answer = await self._registry.register(publication, self._instance, 0)
        published.start = answer.start
        stream = RequestStream(self._keys, service.id, service.queue, self._instance, self._clock, self._settings, self._listener.on_lost)
        stream.fence_is(answer.generation, answer.counter)
        if service.sticky_sessions:
            self._ownership.serve(stream)
        self._published[service.id] = published
        # Cancelled calls are known before the first take: subscribed first, then mirrored.
        self._link.subscribe(stream.wake)
        await self._mirror_cancelled(stream)
        paused = await self._link.execute("SISMEMBER", self._keys.paused, service.id, repeatable=True)
        stream.pause(bool(paused), time.monotonic())
        self._streams[service.id] = stream
        # What the last worker handed back has waited for this one.
        await self._upkeep.take_back(stream)
        # Who has just come holds nothing, as is needed for what must run alone.
        await self._upkeep.recover()
        telemetry.log.info("service.registered", service=service.id, tools=len(publication.tools), digest=publication.digest)

    async def unregister(self) -> None:
        """Take every service of this instance out of the registry; leases of running calls go on."""
        self._registered = False
        self._upkeep.taking = False
        # A server that does not even answer the interruption of a waiting read must not keep the worker.
        asyncio.get_running_loop().call_later(_STOP_WAITING, self._intake.abort)
        members = [f"{service}/{self._instance}" for service in self._streams]
        if members:
            await self._registry.unregister(members)
            await self._ownership.pass_on()

    async def _register_again(self, services: list[str]) -> None:
        # What lost us may have lost who has which session, too.
        self._ownership.doubt()
        for service in services:
            # A stream whose last worker leaves goes with it; a read that still waits on it says so.
            if not self._registered:
                return
            published = self._published[service]
            try:
                answer = await self._registry.register(published.publication, self._instance, published.start)
            except RegistrationRefused as error:
                telemetry.log.error("service.refused", service=service, error=str(error))
            except BrokerError as error:
                telemetry.log.warning("service.register_failed", service=service, error=str(error))
            else:
                published.start = answer.start
                self._streams[service].fence_is(answer.generation, answer.counter)
                telemetry.log.warning("service.registered_again", service=service)
                if not self._registered:
                    await self._registry.unregister([f"{service}/{self._instance}"])

    # -- taking -----------------------------------------------------------------------------------

    async def take(self, slots: int) -> list[Delivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""
        return await self._intake.take(slots)

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now. Cancelling it instead could orphan what was just delivered."""
        self._intake.interrupt()

    def _deliveries(self, stream: RequestStream, fence: Fence, entries: Sequence[Found]) -> list[Delivery]:
        return stream.deliveries(entries, fence, lambda bad: self._set_aside(stream, bad))

    def _set_aside(self, stream: RequestStream, bad: BadEntry) -> None:
        self.malformed += 1
        telemetry.log.error("request.malformed", service=stream.service, entry=bad.entry.decode(), error=bad.reason)
        replies, frames = "", b""
        if bad.address is not None:
            call, agent = bad.address
            error = ErrorInfo("invalid_arguments", "malformed_request", bad.reason)
            frame = Frame(call, new_run(), bad.attempt, kind="end", end_of_stream=True, error=error, worker=self._instance)
            replies, frames = self._keys.replies(agent), join_frames([encode(frame)])
        stream.bury(
            self._link,
            bad.entry,
            bad.fence,
            reason="malformed",
            attempts=bad.attempt,
            error=bad.reason,
            document=bad.document,
            replies=replies,
            frames=frames,
        )

    # -- answering --------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Look now for what dead workers left."""
        await self._upkeep.recover()

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask a person on a handler's behalf."""
        stream: RequestStream = delivery.queue
        return await self._confirmations.ask(request, seconds, address=f"worker {stream.queue}", opened=opened)

    async def extend(self, delivery: Delivery, note: Note) -> None:
        """Note the later deadline of a delivery, and keep what must outlive it."""
        request, keys = delivery.request, self._keys
        delivery.extended = True
        left = int(max(0.0, note.deadline + note.until - note.since - time.monotonic()) * 1000)
        kept = [keys.started(request.id)]
        if request.shared:
            kept += [keys.call(request.id), keys.shared(share_digest(request))]
        args = (write_note(note, self._clock), left + _NOTE_TTL, left + int(self._settings.retention * 1000))
        await self._link.execute_script(scripts.EXTEND, (delivery.queue.pause_key(delivery.entry), *kept), args, repeatable=True)

    async def begin(self, delivery: Delivery) -> Beginning:
        """Mark that a ``once`` handler begins, on a server that is surely the master, before and after."""
        stream: RequestStream = delivery.queue
        mastership = self._pair.mastership
        while True:
            await mastership.wait()
            if await may_have_forgotten(self._pair.replicated, delivery):
                return "unsure"
            beginning = await stream.begin(self._replication, delivery, self._keys.started(delivery.request.id))
            # The same run may mark its beginning again, which tells what another server knows of it.
            if beginning != "started" or mastership.sure:
                return beginning

    async def retry(self, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""
        stream: RequestStream = delivery.queue
        return await stream.retry(self._link, delivery)

    def release_session(self, service: str, user: str, session: str) -> None:
        """Give up a session that has ended here."""
        self._ownership.release(service, (user, session))

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries that have not been answered to other workers, without counting an attempt."""
        for stream in self._streams.values():
            await stream.hand_back(self._link, [delivery for delivery in deliveries if delivery.queue is stream])

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""
        if delivery.replies:
            self._outbox.send(delivery, frame)

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` just before frames leave."""
        self._outbox.before_sending(pack)

    def finish(self, delivery: Delivery, frame: bytes, *, frees: bool = False) -> None:
        """Send the last frame and remove the request, if it is still ours, and its session is."""
        if delivery.queue.sticky and self._ownership.doubts(delivery):
            self._pair.start(self._finish_doubtful(delivery, frame, frees))
        else:
            self._finish(delivery, frame, frees)

    def _finish(self, delivery: Delivery, frame: bytes, frees: bool) -> None:
        self._outbox.finish(delivery, frame, self._freed(delivery) if frees else None)
        if delivery.extended:
            self._drop_note(delivery)

    async def _finish_doubtful(self, delivery: Delivery, frame: bytes, frees: bool) -> None:
        self._doubtful += 1
        self._settled.clear()
        try:
            # Once another worker has answered in the session, what was computed from its state here is not to be told.
            if await self._ownership.settle([delivery]):
                self._finish(delivery, frame, frees)
        finally:
            self._doubtful -= 1
            if not self._doubtful:
                self._settled.set()

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame."""
        # Not before what the run has sent.
        self._outbox.then(
            lambda: delivery.queue.bury(
                self._link,
                delivery.entry,
                delivery.fence,
                reason=reason,
                attempts=delivery.attempt,
                error=error,
                document=encode(delivery.request),
                replies=delivery.replies,
                frames=join_frames([frame]),
                frees=self._freed(delivery),
            )
        )
        if delivery.extended:
            self._drop_note(delivery)

    def _freed(self, delivery: Delivery) -> Freed | None:
        """The idempotency key that is free again when a delivery fails, if it has one."""
        request, server = delivery.request, self._link.server
        if not request.shared:
            return None
        if delivery.server and (server is None or server.run_id.encode() != delivery.server):
            # This server may lack the mark that would say that an earlier attempt began.
            return None
        return Freed(self._keys.shared(share_digest(request)), request.id, self._keys.started(request.id), delivery.run)

    def _drop_note(self, delivery: Delivery) -> None:
        key = delivery.queue.pause_key(delivery.entry)
        self._outbox.then(lambda: self._link.send(("DEL", key), repeatable=True))

    # -- upkeep -----------------------------------------------------------------------------------

    def _up(self, restarted: bool) -> None:
        # After any (re)connect nobody's lease may be judged for one lease.
        self._clock.hush()
        self._confirmations.nudge()
        if self._pair.open and self._link.statistics().connects > 1:
            self._leases.nudge()
            for stream in self._streams.values():
                self._pair.start(self._mirror_cancelled(stream))
                # Nobody has told us of what was handed back meanwhile.
                self._pair.start(self._upkeep.take_back(stream))
        if restarted:
            if self._pair.open:
                self._ownership.doubt()
            telemetry.log.warning("link.server_restarted", server=self._connector.display)

    def _pushed(self, message: list[Any]) -> None:
        if len(message) != 3 or message[0] != b"message":
            return
        word, _, rest = bytes(message[2]).decode("utf-8", "replace").partition(" ")
        try:
            self._told(bytes(message[1]).decode("utf-8", "replace"), word, rest)
        except EnvelopeError as error:
            skip(bytes(message[1]).decode("utf-8", "replace"), error, field=word)

    def _told(self, channel: str, word: str, rest: str) -> None:
        if word == "cancel":
            self._listener.on_cancelled(identifier(rest))
        elif word == "confirm":
            self._confirmations.heard(identifier(rest))
        elif word == "back" and rest in self._streams:
            self._pair.start(self._upkeep.take_back(self._streams[rest]))
        elif word in {"pause", "resume"} and rest in self._streams:
            self._pause(rest, word == "pause", time.monotonic())
        else:
            self._told_of_session(channel, word, rest)

    def _told_of_session(self, channel: str, word: str, rest: str) -> None:
        instance, _, service = rest.partition(" ")
        if word == "to" and instance == self._instance and service in self._streams:
            self._pair.start(self._upkeep.take_back(self._streams[service]))
        for stream in [each for each in self._streams.values() if each.wake == channel]:
            if word == "left":
                self._listener.sessions.left(stream.service, identifier(rest))
            elif word == "end":
                self._listener.sessions.closed(stream.service, *document(rest, _pairs))

    def _pause(self, service: str, paused: bool, asked: float) -> None:
        if self._streams[service].pause(paused, asked):
            telemetry.log.info("service.paused" if paused else "service.resumed", service=service)
            if not paused:
                self._pair.start(self._upkeep.take_back(self._streams[service]))
            self.interrupt()

    def _demoted(self) -> None:
        if not self._pair.closing:
            self._pair.mastership.demoted("it is a replica now")

    def _moved(self) -> None:
        if self._pair.open:
            self._leases.relocate()

    def _beaten(self, beat: Beat | None) -> None:
        if self._pair.closing:
            return
        if beat is None:
            # One of its keys may be of a wrong type.
            self._mender.nudge()
            return
        self._pair.mastership.compare()
        self._clock.observe(beat.server_ms, beat.asked, beat.answered)
        self._ownership.beaten(beat.asked, beat.answered, missing=bool(beat.missing))
        for service, stream in self._streams.items():
            if service in beat.paused:
                self._pause(service, beat.paused[service], beat.asked)
            if service in beat.renewed:
                self._renewed(stream, beat.renewed[service])
        if beat.missing and self._registered:
            self._pair.start(self._register_again([member.partition("/")[0] for member in beat.missing]))

    def _renewed(self, stream: RequestStream, renewals: list[Renewal]) -> None:
        for renewal in renewals:
            for delivery in renewal.kept:
                delivery.fence = renewal.fence
            for delivery in renewal.lost:
                stream.lose(delivery)
            stream.fence_is(*renewal.fence)

    async def _mirror_cancelled(self, stream: RequestStream) -> None:
        try:
            calls = await self._link.execute("ZREVRANGE", stream.cancelled, 0, _MOST_CANCELLED - 1, repeatable=True)
        except BrokerError as error:
            telemetry.log.warning("cancelled.unread", service=stream.service, error=str(error))
            return
        for call in calls:
            try:
                self._listener.on_cancelled(identifier(call))
            except EnvelopeError as error:
                skip(stream.cancelled, error, field=call)

    def _types(self) -> dict[str, str]:
        types = self._keys.shared_by_all() | {self._keys.usage(day): "hash" for day in days_back(1)}
        for stream in self._streams.values():
            types |= self._keys.of_service(stream.service, stream.queue)
        return types

    def _mended(self) -> None:
        # What was deleted may have been a part of our registration.
        if self._registered:
            self._pair.start(self._register_again(list(self._streams)))

    async def _look_after(self) -> None:
        """Register again where the tables do not list us any more; a beat hears of the lease alone."""
        # Nobody complains of a key that is only written in error, or of a queue that nothing can be added to or got from.
        self._mender.nudge()
        missing = [stream.service for stream in list(self._streams.values()) if not await self._is_listed(stream.service)]
        if missing and self._registered:
            await self._register_again(missing)

    async def _is_listed(self, service: str) -> bool:
        published, field = self._published[service], f"i:{self._instance}"
        listed, instance = await asyncio.gather(
            self._link.execute("HGET", self._keys.services, service, repeatable=True),
            self._link.execute("HGET", self._keys.instances(service), field, repeatable=True),
        )
        try:
            read_record(listed or b"")
        except DescriptorError:
            return False
        return bool(instance == f"{published.start}:{published.publication.digest}".encode())


def new_instance() -> str:
    """A readable instance id, fresh at each process start: host, pid and random digits."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32]
    return f"{host}-{os.getpid()}-{new_run()[:6]}"
