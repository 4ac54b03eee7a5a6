"""``Slots``: what a worker runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolbus.bus import telemetry
from toolbus.bus.broker.statistics.answers import InstanceAnswer
from toolbus.bus.middleware.chain import Middleware
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.envelope import NOT_TAKEN
from toolbus.bus.values.results import ErrorInfo, ToolbusError, ToolError, deadline_exceeded
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.run import reasons
from toolbus.bus.worker.run.invocation import Caller, NestedBus
from toolbus.bus.worker.run.outcome import End, other_revision, refusal, report_buried, report_end
from toolbus.bus.worker.run.reasons import ContextRun, RunState
from toolbus.bus.worker.run.run import Run
from toolbus.bus.worker.run.threads import Threads
from toolbus.bus.worker.serving.handlers import Served
from toolbus.bus.worker.sessions.worker import WorkerSessions
from toolbus.bus.worker.slots.lines import Early, Lines, Waiting
from toolbus.bus.worker.slots.taking import Retries, Taking, give_up, hand_back, hand_over, sign_off
from toolbus.bus.worker.statistics.answer import answer_of
from toolbus.bus.worker.statistics.sampling import Sampling

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

_MOST_GATHERED = 16_384
_CANCEL_GRACE = 1.0
# A handler that is told to stop and still runs after so many seconds counts as stuck.
_STOPS_WITHIN = 5.0
_ENDED = RunState.ENDED


class Slots:
    """Runs deliveries, as many at once as there are slots: the ``RunContext`` of its runs, the broker's ``WorkerListener``.

    Made when a worker opens, in its event loop; ``serve`` then runs until ``stop`` and the end of what was running.

    Args:
        settings: the worker's.
        served: the services by id.
        middleware: around every handler.
        broker, isolation, nested: the worker's own, which opens and closes them.
        clock: returns monotonic seconds, as the event loop's ``time`` does.

    Attributes:
        sessions, deadlines, threads, sampling: what runs share beside them.
        free: how many slots are free.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.middleware = middleware
        self.broker = broker
        self.isolation = isolation
        self.clock = clock
        self.sampling = Sampling(broker.note, enabled=settings.recent != "off")
        # Half of what a frame may hold: the piece that fills it comes on top.
        self.most_gathered = min(_MOST_GATHERED, settings.max_frame // 2)
        self._served = served
        self._loop = asyncio.get_running_loop()
        # What starts a run is often the end of another one, whose context variables are another caller's.
        self._context = contextvars.copy_context()
        self.deadlines = Deadlines(self._loop)
        self.threads = Threads(settings.concurrency)
        self.sessions = WorkerSessions(self)
        self.nested = nested
        self._runs: dict[str, Run] = {}
        self._unwatched: list[Run] = []
        self._early = Early()
        self.free = settings.concurrency
        self._alone_from = settings.alone_from
        self._failure: ToolbusError | None = None
        self._handing_back: set[asyncio.Task[None]] = set()
        # Services that are being withdrawn.
        self._leaving: set[str] = set()
        self._wake = asyncio.Event()
        self._waiting = Waiting()
        self._taking = Taking(self, broker, self._waiting, self._wake, settings.lease, clock)
        self._lines = Lines(
            broker, self._waiting, self.deadlines, clock, start=self.start_due, refuse=self._refuse, hand_back=self._hand_back
        )
        self._retries = Retries(self._waiting, broker, self.deadlines, settings.max_deliveries, clock, self._run_again, self._lines.lose)
        self.overgrown = asyncio.Event()
        self.started = self.finished = 0

    # -- for the worker ---------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """The number of runs that hold a slot, including those that can't be stopped."""
        return len(self._runs)

    def statistics(self) -> dict[str, int]:
        """Return counts: running, open sessions, free, started and finished."""
        return {
            "running": self.running,
            "sessions": len(self.sessions),
            "free": self.free,
            "started": self.started,
            "finished": self.finished,
        }

    async def serve(self) -> None:
        """Take and run until ``stop``; then let what runs end within the grace period, and give the rest to other workers.

        Raises:
            ToolbusError: it could not go on.
        """
        try:
            await self._run_until_stopped()
        except BaseException:
            # The worker may be drained much later, and one that takes nothing must not renew its leases until then.
            await self.broker.aclose()
            raise

    async def _run_until_stopped(self) -> None:
        try:
            try:
                await keep_running("taking", self._taking.run, every=0)
            except ToolbusError as error:
                self.on_failed(error)
            if self._failure is not None:
                telemetry.log.error("worker.failed", error=str(self._failure), running=self.running)
                await sign_off(self.broker)
            await self._finish_running()
        finally:
            await self._abandon_running()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take nothing more."""
        self._taking.stop()

    async def withdraw(self, service: str) -> None:
        """Let the calls of a service end within the grace period, and give those that wait, or run on, to other workers."""
        self._leaving.add(service)

        def ended() -> bool:
            # The end of all services waits for these calls, too; what was just taken, or is just answered, is held without running.
            return self._taking.stopped or not (self._runs_of(service) or self.broker.held(service))

        await give_up(self.broker, self._waiting, service, ended, self.settings.grace)
        if self._taking.stopped:
            return
        await hand_back(self.broker, [run.delivery for run in self._runs_of(service) if run.interrupt()])
        if runs := self._runs_of(service):
            await asyncio.wait([run.abandon() for run in runs], timeout=_CANCEL_GRACE)

    def forget(self, service: str) -> None:
        """Forget a service that was withdrawn."""
        self._leaving.discard(service)
        self._lines.forget(service)

    def _runs_of(self, service: str) -> list[Run]:
        return [run for run in self._runs.values() if run.delivery.request.service == service]

    async def hand_back_waiting(self) -> None:
        """Give what waits here to other workers: nothing is run again in one that leaves."""
        await hand_back(self.broker, self._waiting.clear())

    def close(self) -> None:
        """Let go of the deadlines and threads. Threads that still run are not waited for."""
        self._lines.close()
        self.deadlines.close()
        self.threads.close()

    async def _finish_running(self) -> None:
        # A read that was under way may have brought calls that wait for others of their sessions.
        await self.hand_back_waiting()
        deadline = self.clock() + self.settings.grace
        while self._runs and (left := deadline - self.clock()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        if self._runs:
            telemetry.log.warning("worker.grace_ended", running=len(self._runs))
        if self._handing_back:
            await asyncio.wait(self._handing_back)
        interrupted = [run.delivery for run in list(self._runs.values()) if run.interrupt()]
        await hand_back(self.broker, [*interrupted, *self._waiting.clear()])

    async def _abandon_running(self) -> None:
        tasks = [run.abandon() for run in list(self._runs.values())]
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_GRACE)

    # -- starting ---------------------------------------------------------------------------------

    def start_all(self, deliveries: Sequence[Delivery]) -> None:
        """Start deliveries while there are free slots; others may have been filled since the deliveries were asked for."""
        for at, delivery in enumerate(deliveries):
            if self.free < 1:
                self._hand_back(deliveries[at:])
                return
            self.start(delivery)

    def _hand_back(self, deliveries: Sequence[Delivery]) -> None:
        self._spawn(hand_back(self.broker, list(deliveries)))

    def _turn_away(self, delivery: Delivery, served: Served, error: ErrorInfo) -> None:
        if served.is_of_other_revision(delivery.request):
            self._spawn(self._hand_over(delivery, served, error))
        else:
            self._refuse(delivery, error)

    async def _hand_over(self, delivery: Delivery, served: Served, error: ErrorInfo) -> None:
        """Give a delivery to a worker of the revision that its caller knows; answer it if there is none."""
        if await hand_over(self.broker, delivery):
            if delivery.request.ordered:
                self._lines.lose(delivery)
        else:
            self._refuse(delivery, other_revision(error, delivery.request, served.publication))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._handing_back.add(task)
        task.add_done_callback(self._handing_back.discard)

    def start(self, delivery: Delivery, *, alone: bool = False) -> None:
        """Start a delivery, answer it when it can't run, or hold it when it must run alone.

        Args:
            delivery: what to run.
            alone: whether it may run now even if it may have killed its workers.
        """
        request, tries = delivery.request, delivery.attempt - delivery.handed_back
        served = self._served.get(request.service)
        error: ErrorInfo | None = None
        if self._early.extended:
            delivery.deadline = max(delivery.deadline, self._early.extended.pop(request.id, 0.0))
        if request.id in self._early.cancelled:
            error = reasons.given_up_waiting(self._early.cancelled[request.id])
        elif tries > self.settings.max_deliveries:
            self._bury(delivery)
            return
        elif delivery.deadline <= self.clock():
            error = deadline_exceeded(f"the deadline passed while the request waited {delivery.queued_ms:.0f} ms", NOT_TAKEN)
        if error is not None or served is None:
            self._refuse(delivery, error or ErrorInfo("not_found", message=f"this worker does not serve {request.service!r}"))
            return
        try:
            handler = served.handler(request)
        except ToolError as failure:
            self._turn_away(delivery, served, failure.error)
            return
        if request.ordered and not self._lines.admits(delivery):
            return
        if tries >= self._alone_from and not alone:
            self._waiting.suspects.append(delivery)
            self._taking.suspect_arrived()
            return
        run = Run(self, self._loop, delivery, served, handler)
        delivery.begun = True
        self._runs[delivery.run] = run
        self.free -= 1
        if self.free < 1:
            self._taking.slot_taken()
        self.started += 1
        self._unwatched.append(run)
        # The worker itself is these tasks' group: it counts them in and out and waits for them when it drains.
        # A TaskGroup's own bookkeeping cost 8 % of a worker's time.
        if served.sessions is None:
            run.task = self._loop.create_task(run.execute(), context=self._context.copy())
        else:
            run.task = self._context.copy().run(served.sessions.start, run)

    def watch_deadlines(self) -> None:
        """Give a deadline to each run that was started and has not ended. After one step most have: 4 % of the worker's time."""
        unwatched, self._unwatched = self._unwatched, []
        for run in unwatched:
            if run.state is not _ENDED:
                run.slot = self.deadlines.add(run.delivery.deadline, run.delivery.run, run.expire)

    def start_due(self) -> None:
        """Start what waits for nothing but a slot, while there are free slots."""
        waiting = self._waiting
        while (waiting.due or waiting.ready) and self.free > 0 and self._taking.starts_due:
            if waiting.due:
                # It is known to have failed in this process, and not to have killed it.
                self.start(waiting.due.popleft(), alone=True)
            else:
                self.start(waiting.ready.popleft())
            self.watch_deadlines()

    async def _run_again(self, delivery: Delivery) -> None:
        if delivery.request.ordered:
            self._lines.run_again(delivery)
        if self._taking.stopped or delivery.request.service in self._leaving:
            await hand_back(self.broker, [delivery])
            return
        self._waiting.due.append(delivery)
        self.start_due()

    def _report(self, end: End, delivery: Delivery, error: ErrorInfo | None = None) -> None:
        """Report the end of a request that was not run here."""
        served = self._served.get(delivery.request.service)
        counts = None if served is None else served.counts_of(delivery.request.tool)
        report_end(end, delivery, counts, self.sampling, self.clock(), error=error)

    def _refuse(self, delivery: Delivery, error: ErrorInfo) -> None:
        self._report("withdrawn" if error.type == "cancelled" else "refused", delivery, error)
        self.broker.finish(delivery, refusal(delivery, self.broker.instance, error), frees=True)
        if delivery.request.ordered:
            self._lines.leave(delivery)

    def _bury(self, delivery: Delivery) -> None:
        before = delivery.tries - 1
        message = f"given up at attempt {delivery.attempt}: the workers of {before} before died or lost their leases while it ran"
        error = ErrorInfo("tool_error", "max_deliveries", message)
        self._report("buried", delivery, error)
        report_buried(delivery, message)
        self.broker.bury(delivery, "max_deliveries", message, refusal(delivery, self.broker.instance, error))
        if delivery.request.ordered:
            self._lines.leave(delivery)

    # -- RunContext -------------------------------------------------------------------------------

    def ended(self, run: ContextRun) -> None:
        """Free a run's slot."""
        key = run.delivery.run
        if run.slot:
            self.deadlines.remove(run.slot, key)
        del self._runs[key]
        self.free += 1
        self.finished += 1
        self._wake.set()
        if run.delivery.request.ordered and not self._waiting.is_retried(key):
            self._lines.leave(run.delivery)
        if self._waiting.due or self._waiting.ready:
            self.start_due()

    def extended(self, run: ContextRun) -> None:
        """Move the timer of a run whose deadline has changed."""
        if run.slot and run.state is not _ENDED:
            key = run.delivery.run
            self.deadlines.remove(run.slot, key)
            run.slot = self.deadlines.add(run.delivery.deadline, key, run.expire)

    def stopped(self, run: ContextRun) -> None:
        """Look some seconds later whether the handler has stopped."""
        self._wake.set()
        self.deadlines.add(self.clock() + _STOPS_WITHIN, ("stopped", run.delivery.run), self._count_stuck)

    def _count_stuck(self) -> None:
        stuck = sum(run.stuck for run in self._runs.values())
        if 2 * stuck >= self.settings.concurrency and not self.overgrown.is_set():
            telemetry.log.error("worker.stuck", runs=stuck, concurrency=self.settings.concurrency)
            self.overgrown.set()

    def try_again(self, run: ContextRun, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; return False when there is to be none."""
        return self._retries.keep(run.delivery, run.handler.retry, error)

    async def caller(self) -> Caller:
        """Return the bus for nested calls, opened when a handler first makes one."""
        return await self.nested.get()

    async def close_nested(self, user: str, session: str) -> None:
        """End a session that handlers' nested calls were made in."""
        await self.nested.close_session(user, session)

    def empty_line(self, service: str, user: str, session: str, *, moved: bool) -> None:
        """Let go of the calls that wait in a session: another worker has it, or else it was closed."""
        self._lines.empty((service, user, session), moved=moved)

    # -- WorkerListener ---------------------------------------------------------------------------

    def answer(self) -> InstanceAnswer:
        """Return the statistics of this worker."""
        slots, waiting = self.settings.concurrency, len(self._waiting)
        return answer_of(self._served, self._runs.values(), slots=slots, waiting=waiting, sessions=self.sessions.opened())

    def free_slots(self) -> int:
        """Return how many more deliveries can run now."""
        return self._taking.free_slots()

    def idle(self) -> bool:
        """Return whether nothing runs but handlers that can't be stopped."""
        return all(run.stuck for run in self._runs.values())

    def busy(self) -> bool:
        """Return whether anything runs or waits here."""
        return len(self._waiting) > 0 or not self.idle()

    def flexible(self) -> bool:
        """Return whether it could make room for a delivery that must run alone."""
        return self._taking.flexible()

    def on_left_over(self) -> None:
        """Make room for a delivery that must run alone."""
        self._taking.make_room()

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries taken over from dead workers."""
        self.start_all(deliveries)
        self.watch_deadlines()

    def on_failed(self, error: ToolbusError) -> None:
        """Take nothing more, since it could not be relied on; ``serve`` raises the error at its end."""
        self._failure = self._failure or error
        self.stop()

    @property
    def failed(self) -> bool:
        """True after a failure that ends the worker."""
        return self._failure is not None

    def on_cancelled(self, call: str, why: str = "cancelled") -> None:
        """Stop a call, or remember that it must not start."""
        running = [run for run in self._runs.values() if run.delivery.request.id == call]
        waiting = self._waiting.find(call=call)
        for run in running:
            # A caller whose time is up cancels, too; a handler that cleans up after its deadline is not to be cancelled out of that.
            if not run.stuck:
                run.cancel(why)
        self._refuse_all(waiting, reasons.given_up_waiting(why))
        if not running and not waiting:
            self._early.cancel(call, why)

    def on_extended(self, call: str, deadline: float) -> None:
        """Give a call the time of one that joined it, or remember that: the request may be on its way to this worker."""
        running, waiting = [run for run in self._runs.values() if run.delivery.request.id == call], self._waiting.find(call=call)
        for run in running:
            if run.delivery.deadline < deadline and not run.stuck:
                run.extend(deadline)
        for delivery in waiting:
            delivery.deadline = max(delivery.deadline, deadline)
        if not running and not waiting:
            self._early.extend(call, deadline)

    def on_lost(self, delivery: Delivery) -> None:
        """Stop a run whose delivery another worker has now."""
        run = self._runs.get(delivery.run)
        if run is None or run.stuck:
            # Its end here was counted, if it ran, but the answer was not taken.
            report_end("lost", delivery, None, self.sampling, self.clock())
        if run is not None:
            run.stop(None)
        else:
            self._waiting.remove(delivery)
        if delivery.request.ordered:
            self._lines.lose(delivery)

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """Stop every call whose answer no caller reads any more."""
        for run in [run for run in self._runs.values() if run.delivery.replies == replies]:
            run.stop(error)
        self._refuse_all(self._waiting.find(replies=replies), error)

    def _refuse_all(self, waiting: Sequence[Delivery], error: ErrorInfo) -> None:
        for delivery in waiting:
            self._waiting.remove(delivery)
            self._refuse(delivery, error)
