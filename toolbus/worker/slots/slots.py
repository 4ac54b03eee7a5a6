"""``Slots``: what a worker runs, and what it takes next."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Mapping, Sequence

from toolbus import telemetry
from toolbus.background import keep_running
from toolbus.broker.protocols import Delivery, WorkerBroker
from toolbus.deadlines import Deadlines
from toolbus.envelope import NOT_BEGUN
from toolbus.middleware.chain import Middleware
from toolbus.results import BrokerError, ErrorInfo, ToolbusError, ToolError
from toolbus.settings import Settings
from toolbus.worker.isolation.pool import Isolation
from toolbus.worker.run.invocation import Caller
from toolbus.worker.run.nested import NestedBus
from toolbus.worker.run.outcome import refusal
from toolbus.worker.run.run import Run
from toolbus.worker.run.threads import Threads
from toolbus.worker.serving.handlers import Served
from toolbus.worker.sessions.open import WorkerSessions
from toolbus.worker.slots.waiting import Waiting

# Seconds that a leaving worker waits for each of the server's answers.
SIGN_OFF = 3.0
_EARLY_CANCELS = 10_000
_MOST_GATHERED = 16_384
_CANCEL_GRACE = 1.0
# A handler that is told to stop and still runs after so many seconds counts as stuck.
_STOPS_WITHIN = 5.0
# Leases for which a worker takes nothing so that a request can run alone, and for which it then takes requests again at least.
_ROOM_WITHIN = 5


class Slots:
    """Takes deliveries and runs them, as many at once as there are slots: the ``Shelter`` of its runs, the broker's ``WorkerListener``.

    Made when a worker opens, in its event loop; ``serve`` then runs until ``stop`` and the end of what was running.

    Args:
        served: the services by id.
        broker, isolation, nested: the worker's own, which opens and closes them.

    Attributes:
        sessions, deadlines, threads: what runs share beside them.
        started, finished: how many runs began, and ended.
        overgrown: set when half of the slots are held by handlers that can't be stopped.
    """

    def __init__(
        self,
        settings: Settings,
        served: Mapping[str, Served],
        middleware: tuple[Middleware, ...],
        broker: WorkerBroker,
        isolation: Isolation,
        nested: NestedBus,
    ) -> None:
        self.settings = settings
        self.middleware = middleware
        self.broker = broker
        self.isolation = isolation
        # Half of what a frame may hold: the piece that fills it comes on top.
        self.most_gathered = min(_MOST_GATHERED, settings.max_frame // 2)
        self._served = served
        self._loop = asyncio.get_running_loop()
        # What starts a run is often the end of another one, whose context variables are another caller's.
        self._context = contextvars.copy_context()
        self.deadlines = Deadlines(self._loop)
        self.threads = Threads(settings.concurrency)
        self.sessions = WorkerSessions(self)
        self._nested = nested
        self._runs: dict[str, Run] = {}
        self._unwatched: list[Run] = []
        self._waiting = Waiting()
        self._cancelled_early: dict[str, float] = {}
        self._free = settings.concurrency
        self._alone_from = settings.alone_from
        self._wake = asyncio.Event()
        self._stopping = False
        self._failure: ToolbusError | None = None
        self._taking = self._alone = self._making_room = False
        self._make_room_again = 0.0
        self._retrying: set[asyncio.Task[None]] = set()
        self._handing_back: set[asyncio.Task[None]] = set()
        self.overgrown = asyncio.Event()
        self.started = self.finished = 0

    # -- for the worker ---------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many runs hold a slot, those that can't be stopped among them."""
        return len(self._runs)

    def statistics(self) -> dict[str, int]:
        """Counts: running, open sessions, free, started and finished."""
        return {
            "running": self.running,
            "sessions": len(self.sessions),
            "free": self._free,
            "started": self.started,
            "finished": self.finished,
        }

    async def serve(self) -> None:
        """Take and run until ``stop``; then let what runs end within the grace period, and give the rest to other workers.

        Raises:
            ToolbusError: it could not go on.
        """
        try:
            try:
                await keep_running("taking", self._take)
            except ToolbusError as error:
                self.on_failed(error)
            if self._failure is not None:
                telemetry.log.error("worker.failed", error=str(self._failure), running=self.running)
                await self._sign_off()
            await self._finish_running()
        finally:
            await self._abandon_running()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take nothing more."""
        self._stopping = True
        self.broker.interrupt()
        self._wake.set()

    async def hand_back_waiting(self) -> None:
        """Give what waits here to other workers: nothing is run again in one that leaves."""
        await self._hand_back(self._waiting.clear())

    def close(self) -> None:
        """Let go of the deadlines and threads. Threads that still run are not waited for."""
        self.deadlines.close()
        self.threads.close()

    # -- taking and running -----------------------------------------------------------------------

    async def _take(self) -> None:
        while not self._stopping:
            if self._waiting.suspects:
                await self._run_suspect()
                continue
            if self._making_room:
                await self._make_room()
                continue
            if self._free < 1:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._taking = True
            try:
                taken = await self.broker.take(self._free)
            finally:
                self._taking = False
            self._start_all(taken)
            # What ends at once is answered before the next request is asked for.
            await asyncio.sleep(0)
            self._watch_deadlines()

    async def _sign_off(self) -> None:
        """Leave the registry: who takes nothing more must not be listed as live."""
        try:
            async with asyncio.timeout(SIGN_OFF):
                await self.broker.unregister()
        except Exception as error:  # noqa: BLE001 - it leaves in any case
            telemetry.log.warning("worker.unregister_failed", error=str(error) or "the server did not answer")

    async def _make_room(self) -> None:
        """Take nothing until nothing runs, so that what must run alone finds a place; for a bounded time, since other calls wait too."""
        limit = _ROOM_WITHIN * self.settings.lease
        await self._until_idle(time.monotonic() + limit)
        self._making_room = False
        if self.busy():
            self._make_room_again = time.monotonic() + limit
        await self.broker.recover()
        while self._waiting.suspects and not self._stopping:
            # Others may wait to run alone; they were left where they were.
            await self._run_suspect()
            await self.broker.recover()

    async def _run_suspect(self) -> None:
        """Run a request that may have killed its workers while nothing else runs here, so that it takes nothing with it."""
        await self._until_idle(self._waiting.suspects[0].deadline)
        if not self._stopping and self._waiting.suspects:
            delivery = self._waiting.next_suspect()
            telemetry.log.info("call.alone", id=delivery.request.id, tool=delivery.request.tool, attempt=delivery.attempt)
            self._alone = True
            try:
                self._start(delivery, alone=True)
                self._watch_deadlines()
                await self._until_idle(delivery.deadline + _CANCEL_GRACE)
            finally:
                self._alone = False
        self._start_due()

    async def _until_idle(self, until: float) -> None:
        """Wait until nothing runs but handlers that can't be stopped, at most until a (monotonic) time."""
        while not self._stopping and (left := until - time.monotonic()) > 0 and not all(run.stuck for run in self._runs.values()):
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()

    async def _finish_running(self) -> None:
        deadline = time.monotonic() + self.settings.grace
        while self._runs and time.monotonic() < deadline:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._wake.wait()
        if self._runs:
            telemetry.log.warning("worker.grace_ended", running=len(self._runs))
        if self._handing_back:
            await asyncio.wait(self._handing_back)
        interrupted = [run.delivery for run in list(self._runs.values()) if run.interrupt()]
        await self._hand_back([*interrupted, *self._waiting.clear()])

    async def _hand_back(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        telemetry.log.info("worker.handed_back", calls=len(deliveries))
        try:
            async with asyncio.timeout(SIGN_OFF):
                await self.broker.hand_back(deliveries)
        except (BrokerError, TimeoutError) as error:
            # Their leases run out, and they are taken over all the same.
            telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")

    async def _abandon_running(self) -> None:
        tasks = [run.abandon() for run in list(self._runs.values())]
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_GRACE)

    def _start_all(self, deliveries: Sequence[Delivery]) -> None:
        """Start deliveries while there are slots; others may have been given away since they were asked for."""
        for at, delivery in enumerate(deliveries):
            if self._free < 1:
                task = self._loop.create_task(self._hand_back(list(deliveries[at:])))
                self._handing_back.add(task)
                task.add_done_callback(self._handing_back.discard)
                return
            self._start(delivery)

    def _start(self, delivery: Delivery, *, alone: bool = False) -> None:
        request = delivery.request
        served = self._served.get(request.service)
        error: ErrorInfo | None = None
        if self._cancelled_early and request.id in self._cancelled_early:
            error = ErrorInfo("cancelled", NOT_BEGUN, "cancelled before it ran")
        elif delivery.deadline <= time.monotonic():
            error = ErrorInfo("deadline_exceeded", message=f"the deadline passed while the request waited {delivery.queued_ms:.0f} ms")
        elif delivery.attempt > self.settings.max_deliveries:
            self._bury(delivery)
            return
        elif served is None:
            error = ErrorInfo("not_found", message=f"this worker does not serve {request.service!r}")
        if error is not None or served is None:
            self._refuse(delivery, error)
            return
        try:
            handler = served.handler(request)
        except ToolError as failure:
            self._refuse(delivery, failure.error)
            return
        if delivery.attempt >= self._alone_from and not alone:
            self._waiting.add_suspect(delivery)
            self.broker.interrupt()
            self._wake.set()
            return
        run = Run(self, self._loop, delivery, served, handler)
        key = delivery.run
        self._runs[key] = run
        self._free -= 1
        if self._taking and self._free < 1:
            # What waits for requests would take some for which there is no slot.
            self.broker.interrupt()
        self.started += 1
        self._unwatched.append(run)
        # The worker itself is these tasks' group: it counts them in and out and waits for them when it drains.
        # A TaskGroup's own bookkeeping cost 8 % of a worker's time.
        if served.sessions is None:
            run.task = self._loop.create_task(run.execute(), context=self._context.copy())
        else:
            run.task = self._context.copy().run(served.sessions.start, run)

    def _watch_deadlines(self) -> None:
        """Give a deadline to each run that was started and has not ended. After one step most have: 4 % of the worker's time."""
        unwatched, self._unwatched = self._unwatched, []
        for run in unwatched:
            if not run.ended:
                run.slot = self.deadlines.add(run.delivery.deadline, run.delivery.run, run.expire)

    def ended(self, run: Run) -> None:
        """Free a run's slot."""
        key = run.delivery.run
        if run.slot:
            self.deadlines.remove(run.slot, key)
        del self._runs[key]
        self._free += 1
        self.finished += 1
        self._wake.set()
        if self._waiting.due:
            self._start_due()

    def extended(self, run: Run) -> None:
        """Take in that a run's deadline has changed."""
        if run.slot and not run.ended:
            key = run.delivery.run
            self.deadlines.remove(run.slot, key)
            run.slot = self.deadlines.add(run.delivery.deadline, key, run.expire)

    def stopped(self, run: Run) -> None:
        """Look later whether the handler has indeed stopped."""
        self._wake.set()
        self.deadlines.add(time.monotonic() + _STOPS_WITHIN, ("stopped", run.delivery.run), self._count_stuck)

    def _count_stuck(self) -> None:
        stuck = sum(run.stuck for run in self._runs.values())
        if 2 * stuck >= self.settings.concurrency and not self.overgrown.is_set():
            telemetry.log.error("worker.stuck", runs=stuck, concurrency=self.settings.concurrency)
            self.overgrown.set()

    def try_again(self, run: Run, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; False when there is to be none."""
        delivery, policy = run.delivery, run.handler.retry
        if policy is None or delivery.attempt >= min(policy.attempts, self.settings.max_deliveries):
            return False
        at = time.monotonic() + policy.after(delivery.attempt, error.retry_after)
        if at >= delivery.deadline:
            return False
        self._waiting.add_retry(delivery)
        self.deadlines.add(at, ("retry", delivery.run), lambda: self._due(delivery.run))
        return True

    def _due(self, run: str) -> None:
        delivery = self._waiting.is_due(run)
        if delivery is not None:
            task = self._loop.create_task(self._retry(delivery))
            self._retrying.add(task)
            task.add_done_callback(self._retrying.discard)

    async def _retry(self, delivery: Delivery) -> None:
        try:
            again = await self.broker.retry(delivery)
        except BrokerError as error:
            # Its lease runs out, and it is taken over.
            telemetry.log.warning("retry.failed", id=delivery.request.id, error=str(error))
            return
        if again is None:
            return
        if self._stopping:
            await self._hand_back([again])
            return
        self._waiting.add_due(again)
        self._start_due()

    def _start_due(self) -> None:
        while self._free > 0 and not (self._stopping or self._alone or self._waiting.suspects):
            due = self._waiting.next_due()
            if due is None:
                return
            # It is known to have failed in this process, and not to have killed it.
            self._start(due, alone=True)
            self._watch_deadlines()

    def _refuse(self, delivery: Delivery, error: ErrorInfo | None) -> None:
        self.broker.finish(delivery, refusal(delivery, self.broker.instance, error), frees=True)

    def _bury(self, delivery: Delivery) -> None:
        message = f"given up after {delivery.attempt - 1} deliveries: its workers died or lost their leases while it ran"
        telemetry.log.error("request.buried", service=delivery.request.service, id=delivery.request.id, reason=message)
        error = ErrorInfo("tool_error", "max_deliveries", message)
        self.broker.bury(delivery, "max_deliveries", message, refusal(delivery, self.broker.instance, error))

    # -- WorkerListener ---------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many more deliveries can run now."""
        return 0 if self._stopping or self._waiting.suspects or self._alone or self._making_room else self._free

    def busy(self) -> bool:
        """Whether anything runs or waits here."""
        return len(self._waiting) > 0 or not all(run.stuck for run in self._runs.values())

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries taken over from dead workers."""
        self._start_all(deliveries)
        self._watch_deadlines()

    def on_failed(self, error: ToolbusError) -> None:
        """Take nothing more, since it could not be relied on; ``serve`` raises the error at its end."""
        self._failure = self._failure or error
        self.stop()

    @property
    def failed(self) -> bool:
        """Whether it can't go on."""
        return self._failure is not None

    def flexible(self) -> bool:
        """Whether it could make room: not when it just tried, and other calls ran on and on."""
        return not self._making_room and time.monotonic() > self._make_room_again

    def on_left_over(self) -> None:
        """Make room for what must run alone."""
        self._making_room = True
        self.broker.interrupt()
        self._wake.set()

    def on_cancelled(self, call: str) -> None:
        """Stop a call, or remember that it must not start."""
        running = [run for run in self._runs.values() if run.delivery.request.id == call]
        waiting = self._waiting.find(call=call)
        error = ErrorInfo("cancelled", NOT_BEGUN, "cancelled by the caller before the tool began")
        for run in running:
            # A caller whose time is up cancels, too; a handler that cleans up after its deadline is not to be cancelled out of that.
            if not run.stuck:
                run.cancel()
        for delivery in waiting:
            self._waiting.remove(delivery)
            self._refuse(delivery, error)
        if not running and not waiting:
            if len(self._cancelled_early) >= _EARLY_CANCELS:
                del self._cancelled_early[next(iter(self._cancelled_early))]
            self._cancelled_early[call] = time.monotonic()

    def on_lost(self, delivery: Delivery) -> None:
        """Stop a run whose delivery another worker has now."""
        run = self._runs.get(delivery.run)
        telemetry.log.warning("call.lost", id=delivery.request.id, tool=delivery.request.tool, running=run is not None)
        if run is not None:
            run.stop(None)
        else:
            self._waiting.remove(delivery)

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """Stop every call whose answer nobody reads any more."""
        for run in [run for run in self._runs.values() if run.delivery.replies == replies]:
            run.stop(error)
        for delivery in self._waiting.find(replies=replies):
            self._waiting.remove(delivery)
            self._refuse(delivery, error)

    # -- for runs ---------------------------------------------------------------------------------

    async def caller(self) -> Caller:
        """The bus for nested calls, opened when a handler first makes one."""
        return await self._nested.get()

    async def close_nested(self, user: str, session: str) -> None:
        """End a session that handlers' nested calls were made in."""
        await self._nested.close_session(user, session)
