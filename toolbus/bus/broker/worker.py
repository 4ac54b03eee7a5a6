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
from toolbus.bus.broker.held.limits import Tallies
from toolbus.bus.broker.held.routes import Routes
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.lease.recover import hand_back, hand_over, outlive, pass_on
from toolbus.bus.broker.protocols import Beginning, Ending, Note, Snapshot, WorkerId, WorkerListener
from toolbus.bus.broker.registry.versions import read_version
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.requests import Delivery, RequestStream
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.opening import NotOpen, open_patiently
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


class WorkerBroker:
    """The worker's side of a broker; it is given none but its own deliveries.

    Attributes:
        instance: the instance id of this process start, which is also its consumer name.
        take: waits up to about two seconds for at most so many deliveries, see ``Intake.take``.
        interrupt: makes a waiting ``take`` return now, see ``Intake.interrupt``.
        finish: sends the last frame of a delivery and removes the request, see ``Endings.finish``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self.instance = new_instance()
        self._clock = ServerClock(settings.lease)
        self._steps = cast("WorkerSteps", NotOpen())
        self.take: Callable[[int], Awaitable[list[Delivery]]] = NotOpen()
        self.interrupt: Callable[[], None] = NotOpen()
        self.finish: Callable[..., None] = NotOpen()

    @property
    def tallies(self) -> Tallies:
        """The counts that all processes share."""
        return self._steps.tallies

    @property
    def routes(self) -> Routes:
        """The places where recorded tools run."""
        return Routes(self._steps.link, self._keys)

    @property
    def connected(self) -> bool:
        """True when the server can be spoken to now."""
        return self._steps.links.connected

    @property
    def congested(self) -> bool:
        """True when producers should wait for ``room`` before they send more frames."""
        return self._steps.outbox.congested

    # -- connecting -------------------------------------------------------------------------------

    async def open(self, listener: WorkerListener) -> None:
        """Connect; a connection that is lost meanwhile is made anew until that is cancelled, or for ``connect_timeout`` seconds.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

        async def start() -> None:
            steps = self._steps = WorkerSteps(self._settings, self._connector, self._keys, self.instance, self._clock, listener)
            self.take, self.interrupt, self.finish = steps.intake.take, steps.intake.interrupt, steps.endings.finish
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
        await self._steps.link.execute_script(scripts.RETIRE, keys, (self.instance, stream.service), repeatable=True)

    # -- registering ------------------------------------------------------------------------------

    async def register(self, publication: Publication, origin: str = "") -> None:
        """Publish a service and its tools, and keep them alive until ``unregister`` or ``aclose``; again for a new revision.

        Args:
            publication: what to publish.
            origin: the file of the code, when nothing else tells programs of this owner apart; others of another origin are logged.

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
        """Take one service out of the registry and take no more of its requests; it keeps the leases of those that run until ``retire``.

        Raises:
            BrokerError: the server could not be told; the service is served as before.
        """
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
        """Forget a service that was withdrawn, once its calls are answered or handed back.

        Raises:
            BrokerError: the server could not be told; say it again.
        """
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
        """Let callers turn to other revisions of the services before this worker leaves, and wait until their older calls were taken.

        Returns at once unless it is the last worker of its revision beside workers of another one; waits ``seconds`` at most.
        """
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

    async def recover(self) -> None:
        """Look now for what dead workers left, rather than at the next turn; returns when it has been heard of."""
        await self._steps.upkeep.recover()

    # -- running ----------------------------------------------------------------------------------

    def begin(self, delivery: Delivery) -> Awaitable[Beginning]:
        """Mark that a ``once`` handler begins."""
        return self._steps.beginnings.begin(delivery)

    async def retry(self, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""
        return await delivery.queue.retry(self._steps.link, delivery)

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask for a confirmation on a handler's behalf, see ``Confirmations.ask``; ``opened`` is called when it can be answered."""
        if delivery.attempt > 1:
            await self._steps.confirmations.supersede(delivery.request.id)
        return await self._steps.confirmations.ask(request, seconds, address=f"worker {delivery.queue.queue}", opened=opened)

    async def extend(self, delivery: Delivery, note: Note) -> None:
        """Note the later deadline of a delivery, so that its next run keeps to it.

        Raises:
            BrokerError: the server could not be told.
        """
        await self._steps.notes.write(delivery, note)

    def release_session(self, service: str, user: str, session: str, *, lost: bool = False) -> None:
        """Give up a session that has ended here: its next call may start it anew anywhere. Returns at once.

        ``lost`` when nobody asked for its end: then whoever has it next is told, and its snapshot stays.
        """
        self._steps.ownership.release(service, (user, session), lost=lost)

    async def holds_session(self, delivery: Delivery) -> bool:
        """Return whether the session of a delivery is still this worker's; False, and it is none of this worker's calls any more.

        The server is asked only if this process was paused for so long that others may have taken its sessions.
        """
        return await self._steps.ownership.holds(delivery)

    async def save_session(self, delivery: Delivery, snapshot: Snapshot) -> bool:
        """Keep the snapshot of a delivery's session, before what is sent next; another failure than False is logged.

        Returns:
            False when another worker has the session: what the call changed is lost. That of a call in the order of its session is not,
            whoever has the session meanwhile, as long as the call is this worker's.
        """
        return await self._steps.snapshots.save(delivery, snapshot)

    def forget_session(self, delivery: Delivery) -> None:
        """Forget the snapshot of a delivery's session, before what is sent next. Returns at once; a failure is logged."""
        self._steps.snapshots.forget(delivery)

    async def load_session(self, delivery: Delivery) -> Snapshot | None:
        """Return the snapshot of a delivery's session, or None.

        Raises:
            BrokerError: the server can't be asked.
        """
        return await self._steps.snapshots.load(delivery)

    async def is_elsewhere(self, delivery: Delivery) -> bool:
        """Return whether another worker, which leaves, still runs a call in the order of a delivery's session.

        Raises:
            BrokerError: the server can't be asked.
        """
        return await self._steps.snapshots.is_elsewhere(delivery)

    def follows(self, delivery: Delivery) -> bytes:
        """Return the entry before a delivery in its session, if one may not have ended; empty when there is none."""
        return delivery.after

    async def before(self, deliveries: Sequence[Delivery]) -> list[list[bytes]]:
        """Return for each delivery the entries that came before it in its session and have not ended.

        Raises:
            BrokerError: the server can't be asked.
        """
        return await self._steps.ownership.before(deliveries)

    # -- answering --------------------------------------------------------------------------------

    def send(self, delivery: Delivery, frame: bytes) -> None:
        """Send a frame that is not the last one."""
        if delivery.replies:
            self._steps.outbox.send(delivery, frame)

    def before_sending(self, pack: Callable[[], None]) -> None:
        """Call ``pack`` just before frames leave, so that what gathers until then can go as one; frames leave soon."""
        self._steps.outbox.before_sending(pack)

    async def room(self) -> None:
        """Wait until frames leave again."""
        await self._steps.outbox.room()

    def bury(self, delivery: Delivery, reason: str, error: str, frame: bytes) -> None:
        """Set the request aside as a dead letter and send the last frame.

        ``reason`` is ``max_deliveries``, ``retries_exhausted`` or ``failed``; ``error`` the last failure in words.
        """
        self._steps.endings.bury(delivery, reason, error, frame)

    def note(self, delivery: Delivery, ending: Ending) -> None:
        """Tell operators of an attempt that has ended, with what is sent next. Returns at once."""
        self._steps.recent.note(delivery, ending)

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries that have not been answered to other workers, after the frames that were sent until now.

        One that has begun to run is run as the next attempt there, which does not count against ``max_deliveries``.
        """
        sent = asyncio.Event()
        self._steps.outbox.then(sent.set)
        await sent.wait()
        await hand_back(self._steps.link, deliveries)

    async def hand_over(self, delivery: Delivery) -> bool:
        """Give a delivery that has not begun to a worker that serves the revision which it was made for.

        Returns:
            Whether it is this worker's no longer; False when there is no such worker.
        """
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
