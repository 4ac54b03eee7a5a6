"""The loop that decides what a worker takes next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from toolbus.bus import telemetry
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import BrokerError, ErrorInfo
from toolbus.bus.worker.definition.service import Retry
from toolbus.bus.worker.slots.lines import Waiting
from toolbus.bus.worker.transitions import BadTransitionError, by_state

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker


class TakingState(IntEnum):
    """The state of a worker that takes requests.

    Attributes:
        READY: it is about to look what to do next.
        POLLING: it waits for requests, as many as it has free slots.
        FULL: it waits for a free slot.
        MAKING_ROOM: it takes nothing until nothing runs, so that a request that must run alone finds an idle worker.
        CLEARING: it holds a suspect, and waits until nothing else runs.
        ALONE: a suspect runs, and nothing starts beside it.
        STOPPED: it takes nothing more.
    """

    READY = 0
    POLLING = 1
    FULL = 2
    MAKING_ROOM = 3
    CLEARING = 4
    ALONE = 5
    STOPPED = 6


TRANSITIONS = {
    TakingState.READY: (TakingState.POLLING, TakingState.FULL, TakingState.CLEARING, TakingState.MAKING_ROOM, TakingState.STOPPED),
    TakingState.POLLING: (TakingState.READY, TakingState.STOPPED),
    TakingState.FULL: (TakingState.READY, TakingState.STOPPED),
    TakingState.MAKING_ROOM: (TakingState.READY, TakingState.STOPPED),
    # Back to READY when the suspect was taken away meanwhile.
    TakingState.CLEARING: (TakingState.ALONE, TakingState.READY, TakingState.STOPPED),
    TakingState.ALONE: (TakingState.READY, TakingState.STOPPED),
    TakingState.STOPPED: (),
}

NEXT = by_state(TRANSITIONS)


_READY, _POLLING, _FULL, _STOPPED = TakingState.READY, TakingState.POLLING, TakingState.FULL, TakingState.STOPPED
_MAKING_ROOM, _CLEARING, _ALONE = TakingState.MAKING_ROOM, TakingState.CLEARING, TakingState.ALONE

# Leases for which a worker takes nothing so that a request can run alone, and for which it then takes requests again at least.
_ROOM_WITHIN = 5
# Seconds after its deadline in which a suspect that runs alone may still clean up.
_CANCEL_GRACE = 1.0


class Startable(Protocol):
    """The slots that taking fills.

    Attributes:
        free: how many slots are free.
    """

    free: int

    def start(self, delivery: Delivery, *, alone: bool = False) -> None:
        """Start a delivery, or answer it when it can't run."""

    def start_all(self, deliveries: Sequence[Delivery]) -> None:
        """Start deliveries while there are free slots, and hand back the rest."""

    def start_due(self) -> None:
        """Start what waits for nothing but a slot."""

    def watch_deadlines(self) -> None:
        """Give a deadline to each run that was started."""

    def idle(self) -> bool:
        """Return whether nothing runs but handlers that can't be stopped."""

    def busy(self) -> bool:
        """Return whether anything runs or waits."""


class Taking:
    """Takes requests while slots are free; makes room for what must run alone, and runs it alone.

    Args:
        slots: where requests run.
        broker: where they come from.
        waiting: what the worker holds and does not run yet.
        wake: set whenever a run has ended or something else has changed.
        lease: seconds.
        clock: returns monotonic seconds, as the event loop does.

    Attributes:
        state: what it does now.
    """

    def __init__(
        self, slots: Startable, broker: WorkerBroker, waiting: Waiting, wake: asyncio.Event, lease: float, clock: Callable[[], float]
    ) -> None:
        self.state = _READY
        self._slots = slots
        self._broker = broker
        self._waiting = waiting
        self._wake = wake
        self._limit = _ROOM_WITHIN * lease
        self._clock = clock
        # Another worker needs an idle one, also while this one does something else first.
        self._room_wanted = False
        self._room_again = 0.0

    def _move(self, state: TakingState) -> None:
        if state not in NEXT[self.state]:
            raise BadTransitionError(self.state, state)
        self.state = state

    def _settle(self) -> None:
        """Look what to do next, unless it was stopped."""
        if self.state is not _STOPPED and self.state is not _READY:
            self._move(_READY)

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
        self._interrupt()

    def slot_taken(self) -> None:
        """Take note that a delivery took the last free slot: waiting for requests without one would take some in vain."""
        if self.state is _POLLING:
            self._broker.interrupt()

    def suspect_arrived(self) -> None:
        """Take note that a suspect waits here."""
        self._interrupt()

    def free_slots(self) -> int:
        """Return how many more deliveries can run now."""
        if self.state >= _ALONE or self._room_wanted or self._waiting.suspects:
            return 0
        return self._slots.free

    def flexible(self) -> bool:
        """Return whether it could make room: not when it does, nor just after it did and other calls still ran."""
        return not self._room_wanted and self._clock() > self._room_again

    def make_room(self) -> None:
        """Take nothing, from the next turn on, until nothing runs."""
        self._room_wanted = True
        self._interrupt()

    def _interrupt(self) -> None:
        self._broker.interrupt()
        self._wake.set()

    # -- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take until it is stopped.

        Raises:
            ToolbusError: the broker can't go on.
        """
        self._settle()
        while self.state is not _STOPPED:
            if self._waiting.suspects:
                await self._run_suspect()
            elif self._room_wanted:
                await self._make_room()
            elif self._slots.free < 1:
                await self._wait_for_slot()
            else:
                self._move(_POLLING)
                try:
                    taken = await self._broker.take(self._slots.free)
                finally:
                    self._settle()
                self._slots.start_all(taken)
                # What ends at once is answered before the next request is asked for.
                await asyncio.sleep(0)
                self._slots.watch_deadlines()

    async def _wait_for_slot(self) -> None:
        self._move(_FULL)
        self._wake.clear()
        try:
            await self._wake.wait()
        finally:
            self._settle()

    async def _make_room(self) -> None:
        """Let what runs end, so that a request that must run alone finds a place; for a bounded time, since other calls wait too."""
        self._move(_MAKING_ROOM)
        try:
            await self._until_idle(self._clock() + self._limit)
        finally:
            self._settle()
        self._room_wanted = False
        if self._slots.busy():
            self._room_again = self._clock() + self._limit
        await self._broker.recover()
        while self._waiting.suspects and self.state is not _STOPPED:
            # Other requests may wait to run alone; they were left where they were.
            await self._run_suspect()
            await self._broker.recover()

    async def _run_suspect(self) -> None:
        """Run a request that may have killed its workers while nothing else runs here, so that it takes nothing with it."""
        self._move(_CLEARING)
        try:
            await self._until_idle(self._waiting.suspects[0].deadline)
            if self.state is not _STOPPED and self._waiting.suspects:
                delivery = self._waiting.suspects.popleft()
                telemetry.log.info("call.alone", id=delivery.request.id, tool=delivery.request.tool, attempt=delivery.attempt)
                self._move(_ALONE)
                self._slots.start(delivery, alone=True)
                self._slots.watch_deadlines()
                await self._until_idle(delivery.deadline + _CANCEL_GRACE)
        finally:
            self._settle()
        self._slots.start_due()

    async def _until_idle(self, until: float) -> None:
        """Wait until nothing runs but handlers that can't be stopped, at most until a (monotonic) time."""
        while self.state is not _STOPPED and (left := until - self._clock()) > 0 and not self._slots.idle():
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()


# Seconds until an attempt is counted again that the server did not take.
_AGAIN_AFTER = 1.0


class Retries:
    """Holds failed requests until their next attempt, which it has the server count.

    Args:
        waiting: where they wait.
        broker: counts attempts.
        deadlines: says when their time has come.
        most: attempts of any request, whatever its policy says.
        clock: returns monotonic seconds.
        start: takes in a delivery whose next attempt was counted.
        lost: takes in one that is not run again here.
    """

    def __init__(
        self,
        waiting: Waiting,
        broker: WorkerBroker,
        deadlines: Deadlines,
        most: int,
        clock: Callable[[], float],
        start: Callable[[Delivery], Awaitable[None]],
        lost: Callable[[Delivery], None],
    ) -> None:
        self._waiting = waiting
        self._broker = broker
        self._deadlines = deadlines
        self._most = most
        self._clock = clock
        self._start = start
        self._lost = lost
        self._counting: set[asyncio.Task[None]] = set()

    def keep(self, delivery: Delivery, policy: Retry | None, error: ErrorInfo) -> bool:
        """Hold a failed request for another attempt; return False when there is to be none."""
        if policy is None or not policy.allows(delivery.tries, self._most):
            return False
        at = self._clock() + policy.after(delivery.tries, error.retry_after)
        if at >= delivery.deadline:
            return False
        self._hold(delivery, at)
        return True

    def _hold(self, delivery: Delivery, at: float) -> None:
        self._waiting.add_retry(delivery)
        self._deadlines.add(at, ("retry", delivery.run), lambda: self._due(delivery.run))

    def _due(self, run: str) -> None:
        delivery = self._waiting.pop_retry(run)
        if delivery is not None:
            task = asyncio.get_running_loop().create_task(self._count(delivery))
            self._counting.add(task)
            task.add_done_callback(self._counting.discard)

    async def _count(self, delivery: Delivery) -> None:
        try:
            again = await self._broker.retry(delivery)
        except BrokerError as error:
            telemetry.log.warning("retry.failed", id=delivery.request.id, error=str(error))
            at = self._clock() + _AGAIN_AFTER
            if at < delivery.deadline:
                self._hold(delivery, at)
                return
            again = None
        if again is not None:
            await self._start(again)
        else:
            self._lost(delivery)


# Seconds that a leaving worker waits for each of the server's answers.
_ANSWERS_WITHIN = 3.0
# Seconds between two looks at what a service that is withdrawn still holds.
_LOOK_AGAIN = 0.02


async def sign_off(broker: WorkerBroker) -> None:
    """Leave the registry, so that a worker that takes nothing more is not listed as live. A failure is logged."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            await broker.unregister()
    except Exception as error:  # noqa: BLE001 - the worker leaves whatever the server says
        reason = "the server did not answer" if isinstance(error, TimeoutError) else reason_of(error)
        telemetry.log.warning("worker.unregister_failed", error=reason)


async def hand_back(broker: WorkerBroker, deliveries: Sequence[Delivery]) -> None:
    """Give deliveries to other workers. A failure is logged: their leases expire, and other workers claim them all the same."""
    if not deliveries:
        return
    telemetry.log.info("worker.handed_back", calls=len(deliveries))
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            await broker.hand_back(deliveries)
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")


async def hand_over(broker: WorkerBroker, delivery: Delivery) -> bool:
    """Give a delivery to a worker of the revision that its caller knows; return False when that can't be done, and log why."""
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await broker.hand_over(delivery)
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("worker.hand_back_failed", error=str(error) or "the server did not answer")
        return False


async def give_up(broker: WorkerBroker, waiting: Waiting, service: str, ended: Callable[[], bool], within: float) -> None:
    """Give what waits for one service to other workers until its calls have ended, or ``within`` seconds have passed."""
    until = time.monotonic() + within
    while True:
        # A call that fails meanwhile waits for its next attempt.
        await hand_back(broker, waiting.clear_service(service))
        if ended() or time.monotonic() >= until:
            return
        await asyncio.sleep(_LOOK_AGAIN)
