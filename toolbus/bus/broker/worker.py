"""The worker's side of the Redis broker."""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from toolbus.bus import telemetry
from toolbus.bus.broker import scripts
from toolbus.bus.broker.keys import Keys
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.limits import RedisTallies
from toolbus.bus.broker.opening import NotOpen, open_patiently
from toolbus.bus.broker.protocols import Beginning, Ending, Note, Snapshot, WorkerId, WorkerListener
from toolbus.bus.broker.recover import hand_back, hand_over, outlive, pass_on
from toolbus.bus.broker.routes import RedisRoutes
from toolbus.bus.broker.take.requests import RequestStream, StreamDelivery
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.versions import read_version
from toolbus.bus.broker.worker_steps import WorkerSteps
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.results import BrokerError, RegistrationRefused
from toolbus.bus.values.settings import Settings

# Seconds that a waiting read has to end after a worker has left the registry.
_STOP_WAITING = 3.0
# Seconds for sending what is left when a worker closes.
_CLOSING = 5.0


class RedisWorkerBroker:
    """``WorkerBroker`` over Redis: two links, the lease thread, and a package for each step of the protocol."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self._instance = new_instance()
        self._clock = ServerClock(settings.lease)
        self._steps = cast("WorkerSteps", NotOpen())

    @property
    def instance(self) -> WorkerId:
        """The instance id of this process start, which is also its consumer name."""
        return self._instance

    @property
    def tallies(self) -> RedisTallies:
        """The counts that all processes share."""
        return self._steps.tallies

    @property
    def routes(self) -> RedisRoutes:
        """The places where recorded tools run."""
        return RedisRoutes(self._steps.link, self._keys)

    @property
    def connected(self) -> bool:
        """True when commands reach the server now."""
        return self._steps.links.connected

    @property
    def congested(self) -> bool:
        """True when producers should wait for ``room``."""
        return self._steps.outbox.congested

    # -- connecting -------------------------------------------------------------------------------

    async def open(self, listener: WorkerListener) -> None:
        """Connect; a connection that is lost meanwhile is made anew until that is cancelled, or for ``connect_timeout`` seconds.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

        async def start() -> None:
            self._steps = WorkerSteps(self._settings, self._connector, self._keys, self._instance, self._clock, listener)
            await self._steps.start()

        await open_patiently(start, self._connector, self._settings.connect_timeout, otherwise=math.inf)

    async def aclose(self) -> None:
        """Send what is still to be sent, leave the streams, and disconnect."""
        steps = self._steps
        if not steps.links.open:
            return
        try:
            async with asyncio.timeout(_CLOSING):
                await steps.endings.settled()
                await steps.outbox.drained()
                # Dead letters and notes are answered to no caller, so wait for them here.
                await steps.link.settled()
                for stream in steps.streams.values():
                    await self._retire(stream)
        except (TimeoutError, BrokerError) as error:
            telemetry.log.warning("worker.close_incomplete", error=str(error) or "the server did not answer")
        await asyncio.to_thread(steps.leases.stop)
        await steps.links.leave()

    async def _retire(self, stream: RequestStream) -> None:
        keys = (stream.key, stream.fence, stream.cancelled, self._keys.instances(stream.service), self._keys.live)
        await self._steps.link.execute_script(scripts.RETIRE, keys, (self._instance, stream.service), repeatable=True)

    # -- registering ------------------------------------------------------------------------------

    async def register(self, publication: Publication, origin: str = "") -> None:
        """Publish a service with its tools, and serve its stream from now on; or publish a new revision of one that it serves.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
        """
        steps, service = self._steps, publication.service
        served = steps.streams.get(service.id)
        if served is not None:
            # Its stream goes on with what it holds.
            answer = await steps.registration.register(publication)
            served.fence_is(answer.generation, answer.counter)
            telemetry.log.info("service.revised", service=service.id, tools=len(publication.tools), digest=publication.digest)
            return
        stream = steps.stream_of(service)
        try:
            await self._begin_to_serve(publication, origin, stream)
        except RegistrationRefused:
            raise
        except BaseException:
            await self._take_out(stream)
            raise
        telemetry.log.info("service.registered", service=service.id, tools=len(publication.tools), digest=publication.digest)

    async def _begin_to_serve(self, publication: Publication, origin: str, stream: RequestStream) -> None:
        steps, service, clock = self._steps, publication.service, self._clock
        (await read_version(steps.link, self._keys)).check()
        # A worker that begins finds what others left: a key of a wrong type would end it.
        await steps.key_repair.mend(self._keys.of_workers() | self._keys.of_service(service.id, service.queue))
        answer = await steps.registration.register(publication, f"{socket.gethostname()}:{origin}" if origin else "")
        stream.fence_is(answer.generation, answer.counter)
        # Whoever raises the version looks at the workers after saying so, and a worker looks after it has registered: one of them sees.
        (await read_version(steps.link, self._keys)).check()
        if service.sticky_sessions:
            steps.ownership.serve(stream)
        # Cancelled calls are known before the first take.
        await steps.wake.follow(stream)
        paused = await steps.link.execute("SISMEMBER", self._keys.paused, service.id, repeatable=True)
        stream.pause(bool(paused), clock.monotonic())
        steps.streams[service.id] = stream
        # Requests that the last worker handed back have waited for this one.
        await steps.upkeep.take_back(stream)
        # A new worker holds nothing, so it may claim requests that must run alone.
        await steps.upkeep.look_into(stream)
        # A read that waits does not wait for this stream.
        steps.intake.interrupt()

    async def _take_out(self, stream: RequestStream) -> None:
        """Take a service out that could not be registered whole; a lease that can't be ended now ends by itself."""
        steps = self._steps
        stream.leaving = True
        steps.streams.pop(stream.service, None)
        steps.ownership.forget(stream)
        steps.wake.leave(stream)
        try:
            async with asyncio.timeout(_STOP_WAITING):
                await steps.registration.withdraw(stream.service)
                await self._retire(stream)
        except (BrokerError, TimeoutError) as error:
            telemetry.log.warning("upkeep.failed", error=str(error) or "the server did not answer")

    async def withdraw(self, service: str) -> None:
        """Take one service out of the registry and stop taking its requests; leases of its running calls go on."""
        steps = self._steps
        stream = steps.streams[service]
        stream.leaving = True
        try:
            await steps.intake.passed()
            await steps.registration.withdraw(service)
        except BaseException:
            stream.leaving = False
            raise
        try:
            await pass_on(steps.link, [stream])
        except BrokerError as error:
            # Others take it over when the lease has ended.
            telemetry.log.warning("upkeep.failed", error=str(error))

    def held(self, service: str) -> int:
        """Return how many requests of a service were taken and are not answered."""
        stream = self._steps.streams.get(service)
        return 0 if stream is None else len(stream.held)

    async def retire(self, service: str) -> None:
        """Leave the stream of a service that was withdrawn."""
        steps = self._steps
        stream = steps.streams[service]
        await steps.upkeep.forget(stream)
        await steps.endings.settled()
        await steps.outbox.drained()
        await steps.link.settled()
        await hand_back(steps.link, list(stream.held.values()))
        await self._retire(stream)
        steps.wake.leave(stream)
        steps.ownership.forget(stream)
        del steps.streams[service]
        telemetry.log.info("service.withdrawn", service=service)

    async def outlive(self, seconds: float) -> None:
        """Let callers turn to other revisions of the services before this worker leaves, and wait until their older calls were taken."""
        steps = self._steps
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(outlive(steps.link, self._keys, each, steps.registration) for each in steps.streams.values()))
        except TimeoutError:
            pass
        except BrokerError as error:
            telemetry.log.warning("upkeep.failed", error=str(error))

    async def unregister(self) -> None:
        """Take every service of this instance out of the registry; leases of running calls go on."""
        steps = self._steps
        steps.registration.active = False
        steps.upkeep.taking = False
        steps.ownership.leave()
        # A server that does not even answer the interruption of a waiting read must not keep the worker.
        asyncio.get_running_loop().call_later(_STOP_WAITING, steps.intake.abort)
        if steps.streams:
            await steps.registration.unregister()
            await pass_on(steps.link, list(steps.streams.values()))

    # -- taking -----------------------------------------------------------------------------------

    async def take(self, slots: int) -> list[StreamDelivery]:
        """Wait up to about two seconds for at most ``slots`` deliveries."""
        return await self._steps.intake.take(slots)

    def interrupt(self) -> None:
        """Make a waiting ``take`` return now. Cancelling it instead could orphan what was just delivered."""
        self._steps.intake.interrupt()

    async def recover(self) -> None:
        """Look now for what dead workers left."""
        await self._steps.upkeep.recover()

    # -- running ----------------------------------------------------------------------------------

    def begin(self, delivery: StreamDelivery) -> Awaitable[Beginning]:
        """Mark that a ``once`` handler begins."""
        return self._steps.beginnings.begin(delivery)

    async def retry(self, delivery: StreamDelivery) -> StreamDelivery | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""
        return await delivery.queue.retry(self._steps.link, delivery)

    async def ask(
        self, delivery: StreamDelivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask for a confirmation on a handler's behalf; what an earlier run of it asked is withdrawn."""
        if delivery.attempt > 1:
            await self._steps.confirmations.supersede(delivery.request.id)
        return await self._steps.confirmations.ask(request, seconds, address=f"worker {delivery.queue.queue}", opened=opened)

    async def extend(self, delivery: StreamDelivery, note: Note) -> None:
        """Note the later deadline of a delivery, and keep what must outlive it."""
        await self._steps.notes.write(delivery, note)

    def release_session(self, service: str, user: str, session: str, *, lost: bool = False) -> None:
        """Give up a session that has ended here."""
        self._steps.ownership.release(service, (user, session), lost=lost)

    async def holds_session(self, delivery: StreamDelivery) -> bool:
        """Return whether the session of a delivery is still this worker's."""
        return await self._steps.ownership.holds(delivery)

    async def save_session(self, delivery: StreamDelivery, snapshot: Snapshot) -> bool:
        """Keep the snapshot of a delivery's session."""
        return await self._steps.snapshots.save(delivery, snapshot)

    def forget_session(self, delivery: StreamDelivery) -> None:
        """Forget the snapshot of a delivery's session."""
        self._steps.snapshots.forget(delivery)

    async def load_session(self, delivery: StreamDelivery) -> Snapshot | None:
        """Return the snapshot of a delivery's session."""
        return await self._steps.snapshots.load(delivery)

    async def is_elsewhere(self, delivery: StreamDelivery) -> bool:
        """Return whether another worker runs a call of a delivery's session."""
        return await self._steps.snapshots.is_elsewhere(delivery)

    def follows(self, delivery: StreamDelivery) -> bytes:
        """Return the entry before a delivery in its session, if one had not ended when it was published."""
        return delivery.after

    async def before(self, deliveries: Sequence[StreamDelivery]) -> list[list[bytes]]:
        """Return for each delivery the entries that came before it in its session and have not ended."""
        return await self._steps.ownership.before(deliveries)

    # -- answering --------------------------------------------------------------------------------

    def send(self, delivery: StreamDelivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""
        if delivery.replies:
            self._steps.outbox.send(delivery, frame)

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` just before frames leave."""
        self._steps.outbox.before_sending(pack)

    async def room(self) -> None:
        """Wait until frames leave again."""
        await self._steps.outbox.room()

    def finish(self, delivery: StreamDelivery, frame: bytes, *, frees: bool = False) -> None:
        """Send the last frame and remove the request, if it is still ours, and its session is."""
        if frees or delivery.noted or delivery.queue.sticky:
            self._steps.endings.finish(delivery, frame, frees=frees)
        else:
            self._steps.outbox.finish(delivery, frame)

    def bury(self, delivery: StreamDelivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame."""
        self._steps.endings.bury(delivery, reason, error, frame)

    def note(self, delivery: StreamDelivery, ending: Ending) -> None:
        """Tell operators of an attempt that has ended, with what is sent next."""
        self._steps.recent.note(delivery, ending)

    async def hand_back(self, deliveries: Sequence[StreamDelivery]) -> None:
        """Give deliveries that have not been answered to other workers, after the frames that were sent until now."""
        sent = asyncio.Event()
        self._steps.outbox.then(sent.set)
        await sent.wait()
        await hand_back(self._steps.link, deliveries)

    async def hand_over(self, delivery: StreamDelivery) -> bool:
        """Give a delivery that has not begun to a worker that serves the revision which it was made for; False when there is none."""
        return await hand_over(self._steps.link, self._keys, delivery)

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        steps = self._steps
        link = steps.link.statistics()
        return {
            "frames_sent": steps.outbox.frames_sent,
            "calls_finished": steps.outbox.calls_finished,
            "calls_lost": steps.outbox.lost,
            "calls_recovered": steps.upkeep.recovered,
            "malformed": steps.endings.malformed,
            "commands": link.commands,
            "writes": link.writes,
            "connects": link.connects,
            "held": sum(len(stream.held) for stream in steps.streams.values()),
            "depth": sum(stream.depth for stream in steps.streams.values()),
        }


def new_instance() -> WorkerId:
    """Return a readable instance id, fresh at each process start: host, pid and random digits."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32]
    return WorkerId(f"{host}-{os.getpid()}-{new_run()[:6]}")
