"""The worker's side of the Redis broker: the steps of the protocol that an open worker takes part in, and the worker over them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.held.confirmations import Confirmations, DeadlineNotes
from toolbus.bus.broker.held.limits import Tallies, days_back
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.lease.recover import AbandonedCalls, KeyRepair, Upkeep, hand_back, hand_over, outlive, pass_on
from toolbus.bus.broker.lease.thread import Beat, LeaseThread, Renewal
from toolbus.bus.broker.protocols import Beginning, Ending, WorkerId, WorkerListener
from toolbus.bus.broker.registry.publications import WorkerRegistration
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.registry.versions import read_version
from toolbus.bus.broker.replies.finish import Endings, Outbox
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.statistics.answering import Answering
from toolbus.bus.broker.statistics.recent import RecentWriter
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.take.intake import Intake, deliveries
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream, log_delivered_again
from toolbus.bus.broker.take.sessions import Ownership, Snapshots
from toolbus.bus.broker.take.wake_channel import WakeChannel
from toolbus.bus.broker.transport.command import Reply, ReplyError, WrongAnswerError
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import Links, accepted_here, tell_time, upkeep_step, warn_of_eviction
from toolbus.bus.broker.transport.mastership import Mastership, Replication
from toolbus.bus.broker.transport.opening import Failing, NotOpen, open_patiently
from toolbus.bus.broker.transport.wire import settle
from toolbus.bus.support.waiting import at_most, each_of, either, to_the_end
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.results import BrokerError, ErrorInfo, RegistrationRefused
from toolbus.bus.values.settings import Settings

# Seconds that a waiting read has to end after a worker has left the registry.
_STOP_WAITING = 3.0
# Seconds for sending what is left when a worker closes.
_CLOSING = 5.0
# Seconds that a worker which leaves and owes nothing waits in all for a server that is away, and seconds between two looks whether it is.
_MOST_AWAY, _LOOK_AGAIN = 3.0, 0.1
# Marks of one script, which blocks the server for as long.
_MOST_MARKS = 256

_Answer = asyncio.Future[tuple[Reply, bool]]
_Waiting = list[tuple[Delivery, _Answer]]


class Beginnings(WorkerStep, eq=False):
    """Marks what begins within one turn of the event loop with one script; the retention is how long a mark outlives its call's deadline.

    Args:
        replicated: the link of the replication.
    """

    replicated: Link
    mastership: Mastership
    replication: Replication
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _waiting: dict[tuple[RequestStream, Fence], _Waiting] = msgspec.field(default_factory=dict)

    async def begin(self, delivery: Delivery) -> Beginning:
        """Mark that a ``once`` handler begins, on a server that is surely the master before and after.

        Returns:
            ``started`` when the handler may run; otherwise why it may not.

        Raises:
            BrokerError: the server could not be asked.
        """
        while True:
            await self.mastership.wait()
            if not accepted_here(self.replicated, delivery.server):
                # A link that was lost knows by an answer which server it is that it asks.
                await self.replicated.execute("TIME", repeatable=True)
                if not accepted_here(self.replicated, delivery.server):
                    return "unsure"
            asked = self.replicated.server
            reply, confirmed = await self._mark(delivery)
            if reply == b"began" and delivery.attempt == 1 and not delivery.recovered:
                # Nobody has died of it: the group was set back, and whoever began it runs it.
                log_delivered_again(delivery.queue, 1)
                reply = b"lost"
            if reply == b"began":
                return "began"
            if reply != b"started":
                # Where the fence was lost the entry may be this worker's all the same, and is found again when nobody renews it.
                delivery.queue.let_go(delivery)
                return "lost"
            if not confirmed:
                return "unconfirmed"
            # The same run may mark its beginning again, which tells what another server knows of it.
            if self.mastership.sure and self.replicated.server is asked:
                return "started"

    def _mark(self, delivery: Delivery) -> _Answer:
        if not self._waiting:
            self._loop.call_soon(self._write)
        answer: _Answer = self._loop.create_future()
        self._waiting.setdefault((delivery.queue, delivery.fence), []).append((delivery, answer))
        return answer

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for (stream, fence), batch in waiting.items():
            for start in range(0, len(batch), _MOST_MARKS):
                self._write_part(stream, fence, batch[start : start + _MOST_MARKS])

    def _write_part(self, stream: RequestStream, fence: Fence, part: _Waiting) -> None:
        now = self.clock.monotonic()
        marks: list[str] = []
        args: list[str | bytes | int] = [stream.consumer, *fence]
        for delivery, _ in part:
            marks.append(self.keys.started(delivery.request.id))
            left = max(0.0, delivery.deadline - now) + self.settings.retention
            args += (delivery.entry, delivery.attempt, delivery.run, int(left * 1000))

        def done(reply: Reply, confirmed: bool) -> None:
            if not isinstance(reply, BrokerError) and len(reply) != len(part):
                reply = WrongAnswerError(f"the server said {len(reply)} words about {len(part)} runs")
            for index, (_, answer) in enumerate(part):
                settle(answer, reply if isinstance(reply, BrokerError) else (reply[index], confirmed))

        self.replication.write(scripts.START, (stream.key, stream.fence, *marks), tuple(args), done)


def _renew(stream: RequestStream, renewals: list[Renewal]) -> None:
    for renewal in renewals:
        for delivery in renewal.kept:
            delivery.fence = renewal.fence
        for delivery in renewal.lost:
            if not delivery.counting:
                stream.lose(delivery)
        stream.fence_is(*renewal.fence)


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
        self.links = Links(connector, on_failed=listener.on_failed, replicated=settings.wait_replicas > 0)
        self.link = link = self.links.writing
        self.replication = Replication(self.links.replicated, settings.wait_replicas, settings.wait_timeout)
        # What is deleted may have been a part of the registration.
        self.key_repair = KeyRepair(link, self._types, lambda: self._register_again(list(self.streams)))
        # Shared state.
        self.tallies = Tallies(link, keys)
        self.confirmations = Confirmations(link, keys, settings.lease)
        own = (link, keys, clock, instance, self.streams, listener, settings)
        self.notes = DeadlineNotes(*own)
        # Register.
        registry = Registry(link, keys, settings)
        self.ownership = Ownership(*own)
        self.snapshots = Snapshots(*own, self.ownership)
        self.registration = WorkerRegistration(*own, registry, on_doubt=self.ownership.doubt, on_listed=self._listed)
        # Finish.
        failing = Failing(settings.lease, "no calls could be finished", listener.on_failed)
        self.outbox = Outbox(*own, self._replies_gone, failing, connector.display)
        self.endings = Endings(*own, self.outbox, self.ownership, self.snapshots, self.notes, self.links.start)
        self.recent = RecentWriter(*own, self.outbox.before_sending)
        # Recover.
        self._abandoned = abandoned = AbandonedCalls(*own, self.outbox)
        again, lost = self._register_lost, self.recent.lost
        self.upkeep = Upkeep(*own, registry, self.ownership, self.notes, abandoned, deliveries, again, lost)
        # Take.
        self.beginnings = Beginnings(*own, self.links.replicated, self.links.mastership, self.replication)
        failing = Failing(settings.lease, "no requests could be taken", listener.on_failed)
        self.intake = Intake(*own, self.links, self.upkeep, abandoned, self.ownership, self.registration.register_again, failing)
        asked = Answering(*own, self.upkeep, trouble=lambda: self.intake.trouble).answer
        self.wake = WakeChannel(*own, self.confirmations, self.upkeep, self.intake, self.links.repeat, asked)
        # Keep the leases.
        self.leases = LeaseThread(*own, connector, report=self.beaten, demoted=self._demoted)
        # The links come first and call the steps that were built on them.
        self.links.attach(
            on_push=self.wake.receive,
            on_up=self.connected,
            # A reader that waits to read again need not wait any longer.
            on_blocking_up=lambda _restarted: self.intake.interrupt(),
            on_wrong_type=self.key_repair.request,
            on_moved=self.leases.relocate,
        )

    async def start(self, within: float) -> None:
        """Connect, then begin to beat and to keep up; connecting takes ``within`` seconds at most.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """
        async with self.links.opening(within):
            await tell_time(self.link, self._clock)
            await warn_of_eviction(self.link, self._connector.display)
        self.link.subscribe(self._keys.wake_all)
        self._clock.distrust()
        self.leases.start()
        self.links.keep("mender", self.key_repair.run, every=0)
        self.links.keep("upkeep", self.upkeep.run, every=self.upkeep.every)

    def stream_of(self, service: ServiceDescriptor) -> RequestStream:
        """Return the request stream of a service, of which nothing has been taken yet."""
        stream = RequestStream(
            self._keys,
            service.id,
            service.queue,
            self._instance,
            self._clock,
            self._settings,
            on_lost=self.listener.on_lost,
            on_let_go=self.listener.on_let_go,
            set_aside=self.endings.set_aside,
        )
        stream.server = self._server_id()
        return stream

    def _server_id(self) -> bytes:
        return b"" if self.link.server is None else self.link.server.run_id.encode()

    def connected(self, restarted: bool) -> None:
        """Take in that the writing link has connected; ``restarted`` when the server is another process now."""
        # A reconnect may have delayed the beats of all workers, so their leases get time to be renewed.
        self._clock.distrust()
        self.confirmations.nudge()
        if self.links.open and self.link.statistics().connects > 1:
            self.leases.nudge()
            self.wake.catch_up()
            self.recent.flush()
        for stream in self.streams.values():
            stream.server = self._server_id()
        if restarted:
            if self.links.open:
                self.ownership.doubt()
            telemetry.log.warning("link.server_restarted", server=self._connector.display)

    def _replies_gone(self, replies: str, error: ErrorInfo) -> None:
        if error.type == "cancelled":
            self.links.start(self._abandoned.stop_calls_of(replies, error))
        else:
            self.listener.on_replies_gone(replies, error)

    def _demoted(self) -> None:
        if not self.links.closing:
            self.intake.demoted()
            self.links.mastership.demoted("it is a replica now")

    def beaten(self, beat: Beat | None) -> None:
        """Take in what a beat learned: the server's time, lost deliveries, pauses, lost registrations. None is one that failed."""
        if self.links.closing:
            return
        if beat is None:
            # One of the keys may be of a wrong type.
            self.key_repair.request()
            self.intake.unbeaten(self.leases.failure)
            return
        self.intake.beaten(beat.asked)
        self.links.mastership.compare()
        self._clock.observe(beat.server_ms, beat.asked, beat.answered)
        self.ownership.beaten(beat.asked, beat.answered, beat.renewed, missing=bool(beat.missing))
        missing = [member.partition("/")[0] for member in beat.missing]
        for service, stream in self.streams.items():
            if service in missing:
                self.wake.listed(service, stream.unlisted or "its lease was lost there")
            elif service in beat.renewed:
                self.wake.listed(service, "")
            if service in beat.paused:
                self.wake.pause(service, beat.paused[service], beat.asked)
            if service in beat.renewed:
                _renew(stream, beat.renewed[service])
        if missing:
            self._register_again(missing)

    def _register_again(self, services: list[str]) -> None:
        if self.registration.active:
            self.links.start(self.registration.register_again(services))

    def _listed(self, service: str, why_not: str) -> None:
        # The registration is made before the channel.
        self.wake.listed(service, why_not)

    async def _register_lost(self) -> None:
        # No command fails because of a key that is only written in error, so ask for a repair of all keys now and then.
        self.key_repair.request()
        await self.registration.register_missing()

    def _types(self) -> list[dict[str, str]]:
        types = self._keys.of_workers() | {self._keys.usage(day): "hash" for day in days_back(1)}
        for stream in self.streams.values():
            types |= self._keys.of_service(stream.service, stream.queue)
        return [types]


class WorkerBroker:
    """The worker's side of a broker; it is given none but its own deliveries.

    Attributes:
        instance: the instance id of this process start, which is also its consumer name.
        steps: the steps of the open worker; every use before ``open`` is an error.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._connector = Connector.of(settings)
        self.instance = new_instance()
        self._clock = ServerClock(settings.lease)
        self.steps = cast("WorkerSteps", NotOpen())
        # Since when the steps of this worker's end have waited for a server that is away.
        self._away_since: float | None = None

    # -- connecting -------------------------------------------------------------------------------

    async def open(self, listener: WorkerListener) -> None:
        """Connect; a connection that is lost meanwhile is made anew until that is cancelled, or for ``connect_timeout`` seconds.

        Raises:
            BrokerError: the server can't be reached or can't serve.
        """

        async def start(within: float) -> None:
            self.steps = WorkerSteps(self._settings, self._connector, self._keys, self.instance, self._clock, listener)
            await self.steps.start(within)

        await open_patiently(start, self._connector, self._settings.connect_timeout, otherwise=math.inf)

    async def aclose(self) -> None:
        """Send what is still to be sent, leave the streams, and disconnect."""
        steps = self.steps
        if not steps.links.open:
            return
        try:
            await self._unless_away(_CLOSING, self._send_the_rest())
        except (TimeoutError, BrokerError) as error:
            telemetry.log.warning("worker.close_incomplete", error=str(error) or "the server did not answer")
        finally:
            await to_the_end(self._disconnect())

    async def _send_the_rest(self) -> None:
        steps = self.steps
        await steps.endings.settled()
        steps.recent.flush()
        await steps.outbox.drained()
        # Dead letters and notes are answered to no caller, so wait for them here.
        await steps.link.settled()
        await each_of(map(self._retire, steps.streams.values()))

    async def _unless_away(self, seconds: float | None, work: Coroutine[Any, Any, object]) -> None:
        """Wait for a step of this worker's end, so many seconds at most (None: for ever), or until the server has been away for too long.

        Raises:
            TimeoutError: the step has not ended.
            BrokerError: it has failed.
        """
        working, _ = await either(work, self._away_for_long(), within=seconds)
        if working.cancelled():
            raise TimeoutError
        working.result()

    async def _away_for_long(self) -> None:
        """Return when the server has been away for so long that no step of this worker's end waits for it any more."""
        steps, now = self.steps, self._clock.monotonic
        while True:
            if steps.link.connected or any(stream.held for stream in steps.streams.values()):
                self._away_since = None
            elif self._away_since is None:
                self._away_since = now()
                telemetry.log.warning("worker.awaits_server", seconds=_MOST_AWAY)
            elif now() - self._away_since >= _MOST_AWAY:
                return
            await asyncio.sleep(_LOOK_AGAIN)

    async def _disconnect(self) -> None:
        await asyncio.to_thread(self.steps.leases.stop)
        await self.steps.links.leave()

    async def _retire(self, stream: RequestStream) -> None:
        keys = (stream.key, stream.fence, stream.cancelled, self._keys.instances(stream.service), self._keys.live)
        await self.steps.link.execute_script(scripts.RETIRE, keys, (self.instance, stream.service), repeatable=True)

    # -- registering ------------------------------------------------------------------------------

    async def register(self, publication: Publication, origin: str = "") -> None:
        """Publish a service and its tools, and keep them alive until ``unregister`` or ``aclose``; again for a new revision.

        Args:
            publication: what to publish.
            origin: the file of the code, when nothing else tells programs of this owner apart; others of another origin are logged.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
        """
        steps, service = self.steps, publication.service
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
        steps, service, clock = self.steps, publication.service, self._clock
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
        # Until the first beat that names it, nothing is certain about its sessions.
        steps.leases.nudge()
        # Requests that the last worker handed back have waited for this one.
        await steps.upkeep.take_back(stream)
        # A new worker holds nothing, so it may claim requests that must run alone.
        await steps.upkeep.look_into(stream)
        # A read that waits does not wait for this stream.
        steps.intake.interrupt()

    async def _take_out(self, stream: RequestStream) -> None:
        """Take a service out that could not be registered whole; a lease that can't be ended now ends by itself."""
        steps = self.steps
        stream.leaving = True
        steps.streams.pop(stream.service, None)
        steps.ownership.forget(stream)
        steps.wake.leave(stream)
        with upkeep_step():
            async with asyncio.timeout(_STOP_WAITING):
                await steps.registration.withdraw(stream.service)
                await self._retire(stream)

    async def withdraw(self, service: str) -> None:
        """Take one service out of the registry and take no more of its requests; it keeps the leases of those that run until ``retire``.

        Raises:
            BrokerError: the server could not be told; the service is served as before.
        """
        steps = self.steps
        stream = steps.streams[service]
        stream.leaving = True
        try:
            await steps.intake.passed()
            await steps.registration.withdraw(service)
        except BaseException:
            stream.leaving = False
            raise
        # Others take over what can't be passed on, when the lease has ended.
        with upkeep_step():
            await pass_on(steps.link, [stream])

    def held(self, service: str) -> int:
        """Return how many requests of a service were taken and are not answered."""
        stream = self.steps.streams.get(service)
        return 0 if stream is None else len(stream.held)

    async def retire(self, service: str) -> None:
        """Forget a service that was withdrawn, once its calls are answered or handed back.

        Raises:
            BrokerError: the server could not be told; say it again.
        """
        steps = self.steps
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
        steps = self.steps
        taken = each_of(outlive(steps.link, self._keys, each, steps.registration) for each in steps.streams.values())
        with upkeep_step(), contextlib.suppress(TimeoutError):
            await self._unless_away(seconds, taken)

    async def stop_recovering(self, seconds: float) -> None:
        """Take over nothing more from other workers; wait so many seconds at most until what was moved here runs or waits."""
        await at_most(seconds, self.steps.upkeep.stop_recovering())

    async def unregister(self, *, died: bool = False) -> None:
        """Take every service of this instance out of the registry: it leaves, or ``died``. Leases of running calls go on."""
        steps = self.steps
        steps.registration.active = False
        steps.upkeep.taking = False
        steps.ownership.leave()
        # A server that does not even answer the interruption of a waiting read must not keep the worker.
        asyncio.get_running_loop().call_later(_STOP_WAITING, steps.intake.abort)
        if steps.streams:
            await self._unless_away(None, self._unregister(died=died))

    async def _unregister(self, *, died: bool) -> None:
        steps = self.steps
        try:
            await steps.registration.unregister(died=died)
        except ReplyError as error:
            # A key of one service keeps no other one from passing on what waits; a server that refuses more would refuse that, too.
            if error.code != "WRONGTYPE":
                raise
            telemetry.log.warning("worker.unregister_failed", error=str(error))
        await pass_on(steps.link, list(steps.streams.values()))

    # -- running ----------------------------------------------------------------------------------

    async def retry(self, delivery: Delivery) -> Delivery | None:
        """Count a further attempt of a delivery whose run has failed; None when it is no longer ours."""
        return await delivery.queue.retry(self.steps.link, delivery)

    async def ask(
        self, delivery: Delivery, request: ConfirmationRequest, seconds: float, opened: Callable[[], None]
    ) -> ConfirmationAnswer | None:
        """Ask for a confirmation on a handler's behalf, see ``Confirmations.ask``; ``opened`` is called when it can be answered."""
        if delivery.attempt > 1:
            await self.steps.confirmations.supersede(delivery.request.id)
        return await self.steps.confirmations.ask(request, seconds, address=f"worker {delivery.queue.queue}", opened=opened)

    # -- answering --------------------------------------------------------------------------------

    def note(self, delivery: Delivery, ending: Ending, *, sampled: bool, kept: bool, left_out: int) -> None:
        """Tell of an attempt that has ended, with what is sent next; returns at once.

        Args:
            delivery: what was run, or not.
            ending: how it ended.
            sampled: tell operators.
            kept: tell who keeps the history.
            left_out: attempts that were left out of the history before this one.
        """
        self.steps.recent.note(delivery, ending, sampled=sampled, kept=kept, left_out=left_out)

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries that have not been answered to other workers, after the frames that were sent until now.

        One that has begun to run is run as the next attempt there, which does not count against ``max_deliveries``.
        """
        sent = asyncio.Event()
        self.steps.outbox.then(sent.set)
        await sent.wait()
        await hand_back(self.steps.link, deliveries)

    async def hand_over(self, delivery: Delivery) -> bool:
        """Give a delivery that has not begun to a worker that serves the revision which it was made for.

        Returns:
            Whether it is this worker's no longer; False when there is no such worker.
        """
        return await hand_over(self.steps.link, self._keys, delivery)

    def statistics(self) -> dict[str, int]:
        """Return counts for operators and metrics."""
        steps = self.steps
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
