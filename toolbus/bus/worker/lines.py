"""The deliveries that wait in a worker: for a slot, for an earlier call of their session, for their next attempt."""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.envelope import NOT_TAKEN, EntryNumbers, numbers_of
from toolbus.bus.values.results import BrokerError, ErrorInfo, deadline_exceeded

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker


class Waiting(msgspec.Struct, eq=False):
    """Deliveries that wait in a worker. None takes a slot; all of their leases are renewed.

    Attributes:
        due: failed requests that wait for nothing but a slot.
        suspects: requests that may have killed their workers; each waits until nothing else runs.
        lined: calls by run that wait for others of their session. Nothing waits for them, so they make no worker a busy one.
        ready: those of them whose turn has come, which wait for nothing but a slot.
        retries: failed requests by run that wait for the time of their next attempt.
    """

    due: deque[Delivery] = msgspec.field(default_factory=deque)
    suspects: deque[Delivery] = msgspec.field(default_factory=deque)
    lined: dict[str, Delivery] = {}
    ready: deque[Delivery] = msgspec.field(default_factory=deque)
    retries: dict[str, Delivery] = {}

    def __len__(self) -> int:
        return len(self.retries) + len(self.due) + len(self.suspects) + len(self.ready)

    def find(self, *, call: str = "", replies: str = "", service: str = "") -> list[Delivery]:
        """Return what waits for one call, for one caller, or for one service."""
        return [
            each
            for each in self._everything()
            if each.request.id == call or (replies and each.replies == replies) or each.request.service == service
        ]

    def remove(self, delivery: Delivery) -> None:
        """Take a delivery away; nothing happens when it does not wait here."""
        self.retries.pop(delivery.run, None)
        self.lined.pop(delivery.run, None)
        for queue in (self.due, self.suspects, self.ready):
            if delivery in queue:
                queue.remove(delivery)

    def clear(self) -> list[Delivery]:
        """Take everything away, and return it."""
        everything = self._everything()
        for held in (self.retries, self.due, self.suspects, self.lined, self.ready):
            held.clear()
        return everything

    def _everything(self) -> list[Delivery]:
        return [*self.retries.values(), *self.due, *self.suspects, *self.lined.values(), *self.ready]


# Seconds between two questions about calls that are elsewhere; they usually come within one.
_ASK_FIRST, _ASK_MOST = 0.02, 0.5

_MOST_FLOORS = 10_000
_CLOSED = ErrorInfo("cancelled", "session_closed", "the session was closed, maybe by another agent, before the call ran")

LineName = tuple[str, str, str]
"""Service, user and session."""


class _Line(msgspec.Struct, eq=False):
    """The calls of one session: the one whose turn it is, those that wait, and up to where all before are known to have ended.

    Attributes:
        run: the last start of the one whose turn it is.
        checked: the first one, when the server said that nothing before it is elsewhere.
    """

    floor: EntryNumbers
    current: bytes = b""
    run: str = ""
    waiting: list[tuple[EntryNumbers, Delivery]] = []
    checked: bytes = b""

    def forget(self, delivery: Delivery) -> None:
        """Take a call away from those that wait, if it is one of them: a request can be large, and the wait behind it long."""
        at = bisect.bisect_left(self.waiting, numbers_of(delivery.entry), key=lambda each: each[0])
        while at < len(self.waiting) and self.waiting[at][1].entry == delivery.entry:
            if self.waiting[at][1] is delivery:
                del self.waiting[at]
                return
            at += 1


class Lines(msgspec.Struct, eq=False):
    """Lets one call of a session run at a time, the one that was published first. Those that wait take no slot.

    A call says which one of its session was published before it. When that one has not been seen here, another worker may have it and
    be about to hand it over: then the server is asked until every earlier call has come here or ended.

    Args:
        broker: knows what is elsewhere.
        waiting: where the calls wait.
        deadlines: says when the time of one that waits is up.
        clock: returns monotonic seconds.
        start: starts those that wait for nothing but a slot.
        refuse: answers one that is not to run.
        hand_back: gives some to other workers.
    """

    broker: WorkerBroker
    waiting: Waiting
    deadlines: Deadlines
    clock: Callable[[], float]
    start: Callable[[], None]
    refuse: Callable[[Delivery, ErrorInfo], None]
    hand_back: Callable[[Sequence[Delivery]], None]
    _lines: dict[LineName, _Line] = {}
    # Of sessions where nothing runs; one that was forgotten costs a question to the server.
    _floors: Latest[LineName, EntryNumbers] = msgspec.field(default_factory=lambda: Latest(_MOST_FLOORS))
    _asking: asyncio.Task[None] | None = None
    _news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._lines)

    def admits(self, delivery: Delivery) -> bool:
        """Return whether it is a call's turn; otherwise it waits, and is started when it is."""
        name = _name(delivery)
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(self._floors.pop(name, ()))
        if line.current == delivery.entry:
            line.run = delivery.run
            return True
        bisect.insort(line.waiting, (numbers_of(delivery.entry), delivery), key=lambda each: each[0])
        self.waiting.lined[delivery.run] = delivery
        first = self._next(name, line)
        if first is delivery:
            return True
        if first is not None:
            self.waiting.ready.append(first)
            self.start()
        self._news.set()
        self._look_later(delivery)
        return False

    def run_again(self, delivery: Delivery) -> None:
        """Take note of the next attempt of a call whose turn it is: it may end before it starts, while it waits for a slot."""
        line = self._lines.get(_name(delivery))
        if line is not None and line.current == delivery.entry:
            line.run = delivery.run

    def _look_later(self, delivery: Delivery) -> None:
        # By its run alone, so that one that has ended is not kept until then.
        run = delivery.run
        self.deadlines.add(delivery.deadline, ("line", run), lambda: self._expire(run))

    def _expire(self, run: str) -> None:
        delivery = self.waiting.lined.get(run)
        if delivery is None:
            return
        if delivery.deadline > self.clock():
            # It was given more time.
            self._look_later(delivery)
            return
        self.refuse(delivery, deadline_exceeded("the deadline passed while earlier calls of its session ran", NOT_TAKEN))

    def leave(self, delivery: Delivery) -> None:
        """Let the next call go on when this one has ended here and the server has accepted its end; call it at both.

        Until then another worker may take this one over and run it again: not after the next one has begun.
        """
        if delivery.is_held:
            self._forget(delivery)
        else:
            self._pass_turn(delivery)

    def lose(self, delivery: Delivery) -> None:
        """Let go of a call that goes on elsewhere: those behind it wait for its end there."""
        name = _name(delivery)
        line = self._lines.get(name)
        self._floors.pop(name, None)
        if line is not None:
            line.floor, line.checked = (), b""
        self._pass_turn(delivery)

    def _forget(self, delivery: Delivery) -> _Line | None:
        """Let a call wait no longer, and return its line, if it has one."""
        self.waiting.lined.pop(delivery.run, None)
        line = self._lines.get(_name(delivery))
        if line is not None:
            line.forget(delivery)
        return line

    def _pass_turn(self, delivery: Delivery) -> None:
        line = self._forget(delivery)
        if line is None:
            return
        if line.current == delivery.entry and line.run == delivery.run:
            line.current = b""
        self._advance(_name(delivery), line)

    def empty(self, name: LineName, moved: bool) -> None:
        """Let go of the calls that wait in a session: another worker has it, or else it was closed."""
        line = self._lines.get(name)
        waiting = [] if line is None else [each for _, each in line.waiting if each.run in self.waiting.lined]
        for delivery in waiting:
            self.waiting.remove(delivery)
            if moved:
                self.lose(delivery)
            else:
                self.refuse(delivery, _CLOSED)
        if moved and waiting:
            self.hand_back(waiting)

    def forget(self, service: str) -> None:
        """Forget the sessions of a service that is not served any more."""
        for known in (self._lines, self._floors):
            for name in [name for name in known if name[0] == service]:
                del known[name]

    def close(self) -> None:
        """Ask nothing more."""
        if self._asking is not None:
            self._asking.cancel()

    def _advance(self, name: LineName, line: _Line) -> None:
        first = self._next(name, line)
        if first is not None:
            self.waiting.ready.append(first)
            self.start()

    def _next(self, name: LineName, line: _Line) -> Delivery | None:
        """Take the first one off the line if it may run now."""
        if line.current:
            return None
        while line.waiting and line.waiting[0][1].run not in self.waiting.lined:
            del line.waiting[0]
        if not line.waiting:
            del self._lines[name]
            if line.floor:
                self._floors[name] = line.floor
            return None
        position, first = line.waiting[0]
        before = first.after
        if before and line.checked != first.entry and not (line.floor and numbers_of(before) <= line.floor):
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._ask())
            return None
        del line.waiting[0], self.waiting.lined[first.run]
        line.current, line.run, line.floor = first.entry, first.run, position
        return first

    # -- calls that are elsewhere -----------------------------------------------------------------

    async def _ask(self) -> None:
        """Ask the server about the lines whose first call waits for one that is not here, until there is none."""
        pause = _ASK_FIRST
        try:
            while blocked := [(name, line, line.waiting[0][1]) for name, line in self._lines.items() if line.waiting and not line.current]:
                self._news.clear()
                try:
                    answers: Sequence[list[bytes]] = await self.broker.steps.ownership.before([first for _, _, first in blocked])
                except BrokerError as error:
                    telemetry.log.warning("sessions.unordered", calls=len(blocked), error=str(error))
                    answers = [[first.entry] for _, _, first in blocked]
                for (name, line, first), earlier in zip(blocked, answers, strict=True):
                    if self._lines.get(name) is line and not earlier:
                        line.checked = first.entry
                        self._advance(name, line)
                await at_most(pause, self._news.wait())
                if self._news.is_set():
                    await asyncio.sleep(_ASK_FIRST)
                else:
                    pause = min(2 * pause, _ASK_MOST)
        finally:
            self._asking = None


def _name(delivery: Delivery) -> LineName:
    request = delivery.request
    return request.service, request.user, request.session
