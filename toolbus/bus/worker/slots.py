"""``Slots``: what a worker takes and runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import math
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Note
from toolbus.bus.broker.statistics.answers import MOST_CALLS, InstanceAnswer, RunningCall, ServedService, ToolStatistics
from toolbus.bus.middleware import Middleware
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.display import shortened
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.support.waiting import at_most
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.telemetry.output import lines_lost
from toolbus.bus.values.envelope import NOT_FINISHED, NOT_TAKEN
from toolbus.bus.values.results import BrokerError, ErrorInfo, ToolbusError, ToolError, deadline_exceeded
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.handling import Threads
from toolbus.bus.worker.invocation import Caller
from toolbus.bus.worker.isolation.pool import Isolation
from toolbus.bus.worker.lines import Lines, Waiting
from toolbus.bus.worker.outcome import End, cancelled_waiting, not_run, other_revision, refusal, report_buried, report_end
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.sessions import OpenSessions, WorkerSessions
from toolbus.bus.worker.statistics import Sampling
from toolbus.bus.worker.transitions import NEXT_OF_TAKING, BadTransitionError, RunState, TakingState

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

T = TypeVar("T")

_MOST_GATHERED = 16_384
# Calls that were cancelled, or given more time, on their way here.
_MOST_EARLY = 10_000
# Seconds in which a run that was abandoned, or a suspect after its deadline, may still clean up.
_CANCEL_GRACE = 1.0
# A handler that is told to stop and still runs after so many seconds counts as stuck.
_STOPS_WITHIN = 5.0
# Seconds until an attempt is counted again that the server did not take.
_AGAIN_AFTER = 1.0
# Seconds between two looks at what a service that is withdrawn still holds.
_LOOK_AGAIN = 0.02
# Characters of a name among the calls that run.
_MOST_NAME = 256
_ENDED = RunState.ENDED


class Slots:
    """Runs deliveries, as many at once as there are slots: the broker's ``WorkerListener``.

    Made when a worker opens, in its event loop; ``serve`` then runs until ``stop`` and the end of what was running.

    Args:
        settings: the worker's.
        served: the services by id.
        middleware: around every handler.
        broker, isolation: the worker's own, which opens and closes them.
        caller: returns the bus for nested calls, opened when a handler first makes one.
        close_nested: ends a session, of a user, that nested calls were made in.
        clock: returns monotonic seconds, as the event loop's ``time`` does.

    Attributes:
        sessions: the open ones of all services.
        sampling: takes in which attempts have ended.
        free: how many slots are free.
        started, finished: how many runs began, and ended.
        overgrown: set when half of the slots are held by handlers that can't be stopped.
        failure: what ends the worker; None while nothing does.
    """

    def __init__(
        self,
        settings: Settings,
        served: Mapping[str, Served],
        middleware: tuple[Middleware, ...],
        broker: WorkerBroker,
        isolation: Isolation,
        caller: Callable[[], Awaitable[Caller]],
        close_nested: Callable[[str, str], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.broker = broker
        self.isolation = isolation
        self.middleware = middleware
        self.caller = caller
        self.clock = clock
        # Half of what a frame may hold: the piece that fills it comes on top.
        self.most_gathered = min(_MOST_GATHERED, settings.max_frame // 2)
        self.sampling = Sampling(broker.note, sampled=settings.recent != "off", kept=settings.history > 0)
        self._served = served
        self._loop = asyncio.get_running_loop()
        # What starts a run is often the end of another one, whose context variables are another caller's.
        self._context = contextvars.copy_context()
        self.deadlines = Deadlines(self._loop)
        self.threads = Threads(settings.concurrency)
        self._runs: dict[str, Run] = {}
        self._unwatched: list[Run] = []
        # Of calls that are on their way here: the errors of those that must not start, and later deadlines.
        self._early_ends: Latest[str, str] = Latest(_MOST_EARLY)
        self._early_deadlines: Latest[str, float] = Latest(_MOST_EARLY)
        self.free = settings.concurrency
        self._alone_from = settings.alone_from
        self.failure: ToolbusError | None = None
        self._handing_back: set[asyncio.Task[None]] = set()
        self._counting: set[asyncio.Task[None]] = set()
        # Services that are being withdrawn.
        self._leaving: set[str] = set()
        self._wake = asyncio.Event()
        self._waiting = Waiting()
        self._taking = Taking(self, self._waiting, self._wake)
        # Runs out some seconds after the taking was stopped; None while nothing is taken.
        self._taking_ends: asyncio.Timeout | None = None
        # A time of the clock; known when the worker leaves.
        self._grace_ends = math.inf
        # Of the listener's methods these are the taking's own.
        self.free_slots, self.flexible, self.on_room_wanted = self._taking.free_slots, self._taking.flexible, self._taking.make_room
        self._lines = Lines(
            broker, self._waiting, self.deadlines, clock, start=self.start_due, refuse=self._refuse, hand_back=self._hand_back
        )
        self.sessions = WorkerSessions(
            lambda served: OpenSessions(served, broker, self.deadlines, clock, settings.lease), self._lines.empty, close_nested
        )
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
                await self._take()
            except ToolbusError as error:
                self.on_failed(error)
            if self.failure is not None:
                telemetry.log.error("worker.failed", error=str(self.failure), running=self.running)
                await sign_off(self.broker, died=True)
            await self._finish_running()
        finally:
            if abandoned := [run.abandon() for run in [*self._runs.values()]]:
                await asyncio.wait(abandoned, timeout=_CANCEL_GRACE)
        if self.failure is not None:
            raise self.failure

    async def _take(self) -> None:
        """Take until ``stop``; a step that the server does not answer is cancelled some seconds after that.

        Raises:
            ToolbusError: it failed again and again.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None) as self._taking_ends:
                    await keep_running("taking", self._taking.run, every=0)
        finally:
            self._taking_ends = None

    def stop(self, grace_ends: float = math.inf) -> None:
        """Take nothing more; what runs has until that time of the clock, and no longer than a grace period."""
        self._grace_ends = min(self._grace_ends, grace_ends)
        self._taking.stop()
        if self._taking_ends is not None and self._taking_ends.when() is None:
            self._taking_ends.reschedule(self._loop.time() + _TAKING_ENDS_WITHIN)

    async def withdraw(self, service: str) -> None:
        """Let the calls of a service end within the grace period, and give those that wait, or run on, to other workers."""
        self._leaving.add(service)
        until = self.clock() + self.settings.grace
        while True:
            # A call that fails meanwhile waits for its next attempt.
            waiting = self._waiting.find(service=service)
            for delivery in waiting:
                self._waiting.remove(delivery)
            await hand_back(self.broker, waiting)
            if self._taking.stopped:
                # The end of all services waits for these calls, too.
                return
            # What was just taken, or is just answered, is held without running.
            if not (self._runs_of(service) or self.broker.held(service)) or self.clock() >= until:
                break
            await asyncio.sleep(_LOOK_AGAIN)
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
        # A reap that was under way, or a read, may have brought calls that wait for others of their sessions.
        await self.broker.stop_recovering(_ANSWERS_WITHIN)
        await self.hand_back_waiting()
        deadline = min(self._grace_ends, self.clock() + self.settings.grace)
        while self._runs and (left := deadline - self.clock()) > 0:
            await _change(self._wake, left)
        if self._runs:
            telemetry.log.warning("worker.grace_ended", running=len(self._runs))
        if self._handing_back:
            await asyncio.wait(self._handing_back)
        if self._counting:
            # A call whose next attempt is counted is handed back with it; one of which the server says nothing is left to its lease.
            await asyncio.wait(self._counting, timeout=_ANSWERS_WITHIN)
        interrupted = [run.delivery for run in list(self._runs.values()) if run.interrupt()]
        await hand_back(self.broker, [*interrupted, *self._waiting.clear()])

    # -- starting ---------------------------------------------------------------------------------

    def start_all(self, deliveries: Sequence[Delivery]) -> None:
        """Start deliveries while there are free slots; others may have been filled since the deliveries were asked for."""
        for at, delivery in enumerate(deliveries):
            if self.free < 1:
                self._hand_back(deliveries[at:])
                return
            self.start(delivery)
        if deliveries:
            self.broker.steps.outbox.flush_soon()

    def _hand_back(self, deliveries: Sequence[Delivery]) -> None:
        self._spawn(hand_back(self.broker, list(deliveries)), self._handing_back)

    def _turn_away(self, delivery: Delivery, served: Served, error: ErrorInfo) -> None:
        if served.is_of_other_revision(delivery.request):
            self._spawn(self._hand_over(delivery, served, error), self._handing_back)
        else:
            self._refuse(delivery, error)

    async def _hand_over(self, delivery: Delivery, served: Served, error: ErrorInfo) -> None:
        """Give a delivery to a worker of the revision that its caller knows; answer it if there is none."""
        if not await _handed_over(self.broker.hand_over(delivery)):
            self._refuse(delivery, other_revision(error, delivery.request, served.publication))

    def _spawn(self, work: Coroutine[Any, Any, None], group: set[asyncio.Task[None]]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            group.discard(task)
            self._wake.set()

        task = self._loop.create_task(work)
        group.add(task)
        task.add_done_callback(ended)

    def start(self, delivery: Delivery, *, alone: bool = False) -> None:
        """Start a delivery, answer it when it can't run, or hold it when it must run alone.

        Args:
            delivery: what to run.
            alone: whether it may run now even if it may have killed its workers.
        """
        # As ``is_held`` says; a warm call takes no step more for it.
        if delivery.queue.held.get(delivery.entry) is not delivery:
            # Lost on its way here, while the server was asked about what came with it: whoever has it now runs it.
            self._lines.lose(delivery)
            return
        # The property `tries`, without its call on each call's way.
        request, tries = delivery.request, delivery.attempt - delivery.excused_attempts
        served = self._served.get(request.service)
        error: ErrorInfo | None = None
        if self._early_deadlines:
            delivery.extended = max(delivery.extended, self._early_deadlines.pop(request.id, 0.0))
            delivery.deadline = max(delivery.deadline, delivery.extended)
        if delivery.cancelled or request.id in self._early_ends:
            error = cancelled_waiting(delivery.cancelled or self._early_ends[request.id])
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
        if request.ordered and not self._has_turn(delivery):
            return
        if tries >= self._alone_from and not alone:
            self._waiting.suspects.append(delivery)
            self._taking.interrupt()
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
        sessions = self.sessions.services.get(request.service)
        if sessions is None:
            run.task = self._loop.create_task(run.execute(), context=self._context.copy())
        else:
            run.task = self._context.copy().run(sessions.start, run)

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

    def try_again(self, run: Run, error: ErrorInfo) -> bool:
        """Keep the request of a failed run for another attempt; return False when there is to be none."""
        delivery, policy = run.delivery, run.handler.retry
        if policy is None or not policy.allows(delivery.tries, self.settings.max_deliveries):
            return False
        return self._keep(delivery, policy.after(delivery.tries, error.retry_after))

    def _keep(self, delivery: Delivery, seconds: float) -> bool:
        """Keep a failed request for so long; return False when its time is up by then."""
        at = self.clock() + seconds
        if at >= delivery.deadline:
            return False
        self._waiting.retries[delivery.run] = delivery
        self.deadlines.add(at, ("retry", delivery.run), lambda: self._count_attempt(delivery.run))
        return True

    def _count_attempt(self, run: str) -> None:
        delivery = self._waiting.retries.pop(run, None)
        if delivery is not None:
            self._spawn(self._run_again(delivery), self._counting)

    def _has_turn(self, delivery: Delivery) -> bool:
        """Return whether a call of a session may begin now; otherwise it is started when it may.

        One that waits uses no attempt meanwhile: its worker may die before it begins.
        """
        if not self._lines.admits(delivery):
            if delivery.tries > 1:
                delivery.excused = True
                delivery.excused_attempts += 1
                self._spawn(self._note_excuse(delivery), self._counting)
            return False
        if delivery.excused:
            self._spawn(self._run_again(delivery), self._counting)
        return not delivery.excused

    async def _note_excuse(self, delivery: Delivery) -> None:
        # Without the note the attempt counts, as it does where the worker dies at once.
        with contextlib.suppress(BrokerError):
            await self.broker.steps.notes.write(delivery, Note(delivery.deadline))

    async def _run_again(self, delivery: Delivery) -> None:
        """Have the server count the next attempt of a request that failed or whose turn has come, and start it."""
        try:
            again = await self.broker.retry(delivery)
        except BrokerError as error:
            telemetry.log.warning("retry.failed", id=delivery.request.id, error=str(error))
            if not self._keep(delivery, _AGAIN_AFTER):
                # Nothing runs here that could end it, and no worker takes over what one that lives holds.
                self._refuse(delivery, deadline_exceeded(f"its next attempt could not be counted in its time: {error}", NOT_FINISHED))
            return
        if again is None:
            self._lines.lose(delivery)
            return
        if again.request.ordered:
            self._lines.run_again(again)
        if self._taking.stopped or again.request.service in self._leaving:
            await hand_back(self.broker, [again])
            return
        # It has failed in this process and not killed it, or else waited for its turn and may have killed others.
        (self._waiting.ready if delivery.excused else self._waiting.due).append(again)
        self.start_due()

    def _report(self, end: End, delivery: Delivery, error: ErrorInfo | None = None) -> None:
        """Report the end of a request that was not run here, and is answered with one frame."""
        served = self._served.get(delivery.request.service)
        counts = None if served is None else served.counts_of(delivery.request.tool)
        report_end(end, delivery, counts, self.sampling, self.clock(), frames=1, error=error)

    def _refuse(self, delivery: Delivery, error: ErrorInfo) -> None:
        end: End = "withdrawn" if error.type == "cancelled" else "refused"
        error = not_run(error, delivery, once=delivery.request.effect == "once")
        self._report(end, delivery, error)
        frame = refusal(delivery, self.broker.instance, error)
        if delivery.replies or end == "withdrawn":
            self.broker.steps.endings.finish(delivery, frame, frees=True)
        else:
            # No caller learns of this failure.
            report_buried(delivery, "failed")
            self.broker.steps.endings.bury(delivery, "failed", str(error), frame)
        self._wake.set()
        if delivery.request.ordered:
            self._lines.leave(delivery)

    def _bury(self, delivery: Delivery) -> None:
        before = delivery.tries - 1
        message = f"given up at attempt {delivery.attempt}: the workers of {before} before died or lost their leases while it ran"
        error = ErrorInfo("tool_error", "max_deliveries", message)
        self._report("buried", delivery, error)
        report_buried(delivery, message)
        self.broker.steps.endings.bury(delivery, "max_deliveries", message, refusal(delivery, self.broker.instance, error))
        if delivery.request.ordered:
            self._lines.leave(delivery)

    # -- for the runs -----------------------------------------------------------------------------

    def ended(self, run: Run) -> None:
        """Free a run's slot."""
        key = run.delivery.run
        if run.slot:
            self.deadlines.remove(run.slot, key)
        del self._runs[key]
        self.free += 1
        self.finished += 1
        self._wake.set()
        if run.delivery.request.ordered and key not in self._waiting.retries:
            self._lines.leave(run.delivery)
        if self._waiting.due or self._waiting.ready:
            self.start_due()

    def extended(self, run: Run) -> None:
        """Move the timer of a run whose deadline has changed."""
        if run.slot and run.state is not _ENDED:
            key = run.delivery.run
            self.deadlines.remove(run.slot, key)
            run.slot = self.deadlines.add(run.delivery.deadline, key, run.expire)

    def stopped(self, run: Run) -> None:
        """Look some seconds later whether the handler has stopped."""
        self._wake.set()
        self.deadlines.add(self.clock() + _STOPS_WITHIN, ("stopped", run.delivery.run), self._count_stuck)

    def _count_stuck(self) -> None:
        stuck = sum(run.stuck for run in self._runs.values())
        if 2 * stuck >= self.settings.concurrency and not self.overgrown.is_set():
            telemetry.log.error("worker.stuck", runs=stuck, concurrency=self.settings.concurrency)
            self.overgrown.set()

    # -- WorkerListener ---------------------------------------------------------------------------

    def counts(self) -> Iterator[ToolStatistics]:
        """Return the counts of each tool that was called; who has no time for thousands at once may read them bit by bit."""
        # A handler that was told to stop and still runs is not counted: its attempt has ended.
        running = Counter(id(run.handler) for run in self._runs.values() if run.state < RunState.ANSWERED)
        served = self._served.values()
        counts = [(each.id, tool, handler.counts, running[id(handler)]) for each in served for tool, handler in each.handlers()]
        counts += [(each.id, "", each.unknown, 0) for each in served]
        return filter(None, (of_tool.statistics(service, tool, now) for service, tool, of_tool, now in counts))

    def answer(self, tools: Iterable[ToolStatistics] | None = None) -> InstanceAnswer:
        """Return the statistics of this worker, to which its broker adds the rest; ``tools`` are ``counts`` that were read before."""
        held = list(self._runs.values())
        opened = self.sessions.opened()
        served = self._served.values()
        return InstanceAnswer(
            instance="",
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_version(),
            python=platform.python_version(),
            slots=self.settings.concurrency,
            running=len(held),
            waiting=len(self._waiting),
            services=tuple(
                ServedService(each.id, each.publication.service.queue, each.publication.digest, sessions=len(opened.get(each.id, ())))
                for each in served
            ),
            tools=tuple(self.counts() if tools is None else tools),
            sessions=tuple(each for found in opened.values() for each in found),
            calls=tuple(map(_running, held[:MOST_CALLS])),
            lines_lost=lines_lost(),
        )

    def idle(self) -> bool:
        """Return whether nothing runs but handlers that can't be stopped."""
        return all(run.stuck for run in self._runs.values())

    def busy(self) -> bool:
        """Return whether anything runs or waits here, or has its next attempt counted."""
        return len(self._waiting) > 0 or len(self._counting) > 0 or not self.idle()

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Run deliveries taken over from dead workers."""
        self.start_all(deliveries)
        self.watch_deadlines()

    def on_failed(self, error: ToolbusError) -> None:
        """Take nothing more, since it could not be relied on; ``serve`` raises the error at its end."""
        self.failure = self.failure or error
        self.stop()

    def on_cancelled(self, call: str, why: str = "cancelled") -> None:
        """Stop a call, or remember that it must not start."""
        running, waiting, held = self._of(call)
        for delivery in held:
            delivery.cancelled = why
        if not held:
            # It is on its way here, perhaps once more.
            self._early_ends.setdefault(call, why)
        for run in running:
            # A caller whose time is up cancels, too; a handler that cleans up after its deadline is not to be cancelled out of that.
            if not run.stuck:
                run.cancel(why)
        self._refuse_all(waiting, cancelled_waiting(why))

    def on_extended(self, call: str, deadline: float) -> None:
        """Give a call the time of one that joined it, or remember that."""
        running, waiting, held = self._of(call)
        for run in running:
            if not run.stuck:
                run.join(deadline)
        for delivery in waiting:
            delivery.deadline = max(delivery.deadline, deadline)
        for delivery in held:
            delivery.extended = max(delivery.extended, deadline)
        if not held:
            self._early_deadlines[call] = deadline

    def _of(self, call: str) -> tuple[list[Run], list[Delivery], list[Delivery]]:
        """Return the runs of a call, its deliveries that wait, and those of both that are held."""
        running = [run for run in self._runs.values() if run.delivery.request.id == call]
        waiting = self._waiting.find(call=call)
        return running, waiting, [each for each in (*(run.delivery for run in running), *waiting) if each.is_held]

    def on_lost(self, delivery: Delivery) -> None:
        """Stop a run whose delivery another worker has now, or this one once more: what was heard of its call counts for that, too."""
        self._remember(delivery)
        run = self._runs.get(delivery.run)
        if run is None or run.stuck:
            # Its end here was counted, if it ran, but the answer was not taken.
            report_end("lost", delivery, None, self.sampling, self.clock())
        if run is not None:
            run.stop(None)
        else:
            self._waiting.remove(delivery)
            self._wake.set()

    def on_let_go(self, delivery: Delivery, ended: bool) -> None:
        """Let the calls behind one of a session go on, once its run has ended, too; remember what was heard of one that may come again."""
        if not ended:
            self._remember(delivery)
        if not delivery.request.ordered:
            return
        if not ended:
            self._lines.lose(delivery)
        elif delivery.run not in self._runs:
            self._lines.leave(delivery)

    def _remember(self, delivery: Delivery) -> None:
        # One whose caller seemed to be gone is to run if it comes again: its reply stream alone may have been lost.
        if delivery.cancelled and (delivery.replies or not delivery.request.agent):
            self._early_ends.setdefault(delivery.request.id, delivery.cancelled)
        if delivery.extended:
            self._early_deadlines[delivery.request.id] = delivery.extended

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """Stop every call whose answer no caller reads any more."""
        for run in [run for run in self._runs.values() if run.delivery.replies == replies]:
            run.stop(error)
        self._refuse_all(self._waiting.find(replies=replies), error)

    def _refuse_all(self, waiting: Sequence[Delivery], error: ErrorInfo) -> None:
        for delivery in waiting:
            self._waiting.remove(delivery)
            self._refuse(delivery, error)


def _running(run: Run) -> RunningCall:
    """Return a run as others see it, but with the worker's own monotonic time."""
    request = run.delivery.request
    tool, service, user, session = (shortened(each, _MOST_NAME) for each in (request.tool, request.service, request.user, request.session))
    stopped = run.state >= RunState.ANSWERED
    return RunningCall(request.id, tool, service, user, session, "", run.delivery.attempt, run.began, stopped)


@functools.cache
def _version() -> str:
    # It takes as long to load as a third of a worker's start.
    import importlib.metadata  # noqa: PLC0415

    try:
        return importlib.metadata.version("toolbus")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


_READY, _POLLING, _FULL, _STOPPED = TakingState.READY, TakingState.POLLING, TakingState.FULL, TakingState.STOPPED
_MAKING_ROOM, _CLEARING, _ALONE = TakingState.MAKING_ROOM, TakingState.CLEARING, TakingState.ALONE

# Leases for which a worker takes nothing so that a request can run alone, and for which it then takes requests again at least.
_ROOM_WITHIN = 3


class Taking:
    """Takes requests while slots are free; makes room for what must run alone, and runs it alone.

    Args:
        slots: where requests run.
        waiting: what the worker holds and does not run yet.
        wake: set whenever a run has ended or something else has changed.

    Attributes:
        state: what it does now.
    """

    def __init__(self, slots: Slots, waiting: Waiting, wake: asyncio.Event) -> None:
        self.state = _READY
        self._slots = slots
        self._broker = slots.broker
        self._clock = slots.clock
        self._limit = _ROOM_WITHIN * slots.settings.lease
        self._waiting = waiting
        self._wake = wake
        # Another worker needs an idle one, also while this one does something else first.
        self._room_wanted = False
        self._room_again = 0.0

    def _move(self, state: TakingState) -> None:
        if state not in NEXT_OF_TAKING[self.state]:
            raise BadTransitionError(self.state, state)
        self.state = state

    def _settle(self) -> None:
        """Look what to do next, unless it was stopped: every other state leads back to ``READY``."""
        if self.state is not _STOPPED:
            self.state = _READY

    @contextlib.contextmanager
    def _while(self, state: TakingState) -> Iterator[None]:
        """Be in a state, and then look what to do next."""
        self._move(state)
        try:
            yield
        finally:
            self._settle()

    # -- for the slots ----------------------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """True once the worker takes nothing more."""
        return self.state is _STOPPED

    @property
    def starts_due(self) -> bool:
        """True if requests that wait only for a slot may start: not beside a suspect, nor before one."""
        return not (self.state is _STOPPED or self.state is _ALONE or self._waiting.suspects)

    def stop(self) -> None:
        """Take nothing more."""
        if self.state is not _STOPPED:
            self._move(_STOPPED)
        self.interrupt()

    def slot_taken(self) -> None:
        """Take note that a delivery took the last free slot: waiting for requests without one would take some in vain."""
        if self.state is _POLLING:
            self._broker.steps.intake.interrupt()

    def free_slots(self) -> int:
        """Return how many more deliveries can run now."""
        if self.state >= _ALONE or self._room_wanted or self._waiting.suspects:
            return 0
        return self._slots.free

    def flexible(self) -> bool:
        """Return whether it could make room for what must run alone: not when it does, nor just after it did and other calls still ran."""
        return not self._room_wanted and self._clock() > self._room_again

    def make_room(self) -> None:
        """Take nothing, from the next turn on, until nothing runs."""
        self._room_wanted = True
        self.interrupt()

    def interrupt(self) -> None:
        """Look again what to do next, since a suspect waits here, for example."""
        self._broker.steps.intake.interrupt()
        self._wake.set()

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take until it is stopped.

        Raises:
            ToolbusError: the broker can't go on.
        """
        while self.state is not _STOPPED:
            if self._waiting.suspects:
                await self._run_suspect()
            elif self._room_wanted:
                await self._make_room()
            elif self._slots.free < 1:
                with self._while(_FULL):
                    await _change(self._wake, None)
            else:
                # Without a call more on each call's way.
                self._move(_POLLING)
                try:
                    taken = await self._broker.steps.intake.take(self._slots.free)
                finally:
                    self._settle()
                self._slots.start_all(taken)
                # What ends at once is answered before the next request is asked for.
                await asyncio.sleep(0)
                self._slots.watch_deadlines()

    async def _make_room(self) -> None:
        """Let what is here end, so that a request that must run alone finds a place; for a bounded time, since other calls wait too."""
        with self._while(_MAKING_ROOM):
            # What waits for its next attempt is here as well: a suspect might take it along.
            await self._until(lambda: not self._slots.busy(), self._clock() + self._limit)
        self._room_wanted = False
        if self._slots.busy():
            self._room_again = self._clock() + self._limit
        await self._broker.steps.upkeep.recover()
        while self._waiting.suspects and self.state is not _STOPPED:
            # Other requests may wait to run alone; they were left where they were.
            await self._run_suspect()
            await self._broker.steps.upkeep.recover()

    async def _run_suspect(self) -> None:
        """Run a request that may have killed its workers while nothing else runs here, so that it takes nothing with it."""
        with self._while(_CLEARING):
            await self._until(self._slots.idle, self._waiting.suspects[0].deadline)
            if self.state is not _STOPPED and self._waiting.suspects:
                delivery = self._waiting.suspects.popleft()
                telemetry.log.info("call.alone", id=delivery.request.id, tool=delivery.request.tool, attempt=delivery.attempt)
                self._move(_ALONE)
                self._slots.start(delivery, alone=True)
                self._slots.watch_deadlines()
                await self._until(self._slots.idle, delivery.deadline + _CANCEL_GRACE)
        self._slots.start_due()

    async def _until(self, condition: Callable[[], bool], until: float) -> None:
        """Wait for a condition that runs and waiting requests change, at most until a (monotonic) time."""
        while self.state is not _STOPPED and (left := until - self._clock()) > 0 and not condition():
            await _change(self._wake, left)


async def _change(wake: asyncio.Event, seconds: float | None) -> None:
    """Wait until a run has ended or something else has changed, at most so many seconds (None: for ever)."""
    wake.clear()
    await at_most(seconds, wake.wait())


# Seconds that a leaving worker waits for each of the server's answers.
_ANSWERS_WITHIN = 3.0
# Seconds for the last take, which waits as long until its read is aborted, and then looks at what it brought.
_TAKING_ENDS_WITHIN = 2 * _ANSWERS_WITHIN


async def sign_off(broker: WorkerBroker, *, died: bool = False) -> None:
    """Leave the registry, so that a worker that takes nothing more is not listed as live. A failure is logged.

    Args:
        broker: the worker's.
        died: whether the worker ends because of a failure.
    """
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            await broker.unregister(died=died)
    except Exception as error:  # noqa: BLE001 - the worker leaves whatever the server says
        reason = "the server did not answer" if isinstance(error, TimeoutError) else reason_of(error)
        telemetry.log.warning("worker.unregister_failed", error=reason)


async def hand_back(broker: WorkerBroker, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries to other workers. A failure is logged: their leases expire, and other workers claim them all the same."""
    if deliveries:
        telemetry.log.info("worker.handed_back", calls=len(deliveries))
        await _handed_over(broker.hand_back(deliveries))


async def _handed_over(step: Awaitable[T]) -> T | None:
    """Wait until the server has taken something from this worker; return None when it did not, and log why."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await step
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")
        return None
