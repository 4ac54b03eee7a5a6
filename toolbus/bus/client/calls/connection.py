"""``BusConnection``: the state of a bus between its opening and its close."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import Fate
from toolbus.bus.client.calls.assembly import GAP_SECONDS
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.calls.refusals import unfinished, unpublished, untaken
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.envelope import NEW_STATE
from toolbus.bus.values.results import BrokerError, ErrorInfo, deadline_exceeded
from toolbus.bus.values.settings import Settings

if TYPE_CHECKING:
    from toolbus.bus.broker.agent import AgentBroker

# Seconds between two looks at whether frames could be read meanwhile.
_GAP_STEP = 1.0


class CallTimers:
    """Ends calls that hear nothing for too long, looks for missing frames, and moves deadlines.

    Args:
        lease: seconds after which a worker counts as dead; others look for its calls three times in it.
        reading: whether frames can arrive now.
    """

    def __init__(self, deadlines: Deadlines, lease: float, reading: Callable[[], bool]) -> None:
        self._deadlines = deadlines
        self._gap = lease * 4 / 3 + GAP_SECONDS
        self._reading = reading

    def rearm(self, call: Call, now: float) -> None:
        """Move a call's timers after its deadline changed, or a pause began or ended."""
        self._deadlines.remove(call.slot, call.id)
        call.slot = self._deadlines.add(call.ends, call.id, call.expire)
        if call.idle_slot:
            self._deadlines.remove(call.idle_slot, (call.id, "idle"))
            call.last_heard = now
            self.watch_idle(call)

    def watch_idle(self, call: Call) -> None:
        """End a call when nothing was heard of it for its ``idle_timeout``."""
        heard = call.last_heard if call.pause is None else call.pause.until
        left = heard + call.idle_timeout - time.monotonic()
        if left <= 0:
            message = f"nothing was heard for {call.idle_timeout:g} s (idle timeout)"
            call.give_up(deadline_exceeded(message, "idle_timeout"))
            return
        call.idle_slot = self._deadlines.add(time.monotonic() + left, (call.id, "idle"), lambda: self.watch_idle(call))

    def watch_gap(self, call: Call, missing: tuple[str, int], left: float | None = None) -> None:
        """Let a call check whether a frame is still missing when a dead worker's run would have been replaced by another.

        Only time in which frames could arrive counts: not that of an event loop that stands still, or of a lost connection. As long as
        there are seconds ``left`` of it, the call is looked at again.
        """
        rest = self._gap if left is None else left
        step = min(rest, _GAP_STEP)
        due = time.monotonic() + step

        def look() -> None:
            stood_still = time.monotonic() - due > _GAP_STEP / 2
            still = rest if stood_still or not self._reading() else rest - step
            if still > 0:
                self.watch_gap(call, missing, still)
            else:
                call.look_for(missing)

        call.gap_slot = self._deadlines.add(due, (call.id, "gap"), look)

    def remove(self, call: Call) -> None:
        """Drop the timers of a call that has ended, beside that of its deadline."""
        if call.idle_slot:
            self._deadlines.remove(call.idle_slot, (call.id, "idle"))
        if call.gap_slot:
            self._deadlines.remove(call.gap_slot, (call.id, "gap"))


# The number of forks above this process, since asking for the pid at each call cost 6 % of a caller's time.
process_forks = [0]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: process_forks.__setitem__(0, process_forks[0] + 1))


class BusConnection:
    """The state from one opening of a bus to its close; only the event loop, thread and process that opened it may use it.

    Attributes:
        is_open: False before the registry's snapshot is loaded, and after the close.
        failure: why nothing arrives any more, or None.
    """

    __slots__ = ("agent", "broker", "catalogue", "deadlines", "failure", "forks", "is_open", "loop", "thread", "timers", "tools")

    def __init__(self, settings: Settings) -> None:
        # A bus that is described and never opened needs no client of Redis.
        from toolbus.bus.broker.agent import AgentBroker  # noqa: PLC0415

        self.loop, self.thread, self.forks = asyncio.get_running_loop(), threading.get_ident(), process_forks[0]
        self.deadlines = Deadlines(self.loop)
        self.catalogue = Catalogue(require_approval=settings.require_approval)
        self.tools = ToolView(self.catalogue)
        self.broker = AgentBroker(settings)
        self.agent = self.broker.agent
        self.timers = CallTimers(self.deadlines, settings.lease, lambda: bool(self.broker.statistics().get("connected", 1)))
        self.failure: ErrorInfo | None = None
        self.is_open = False


# Errors that a newly registered worker may remove.
_MAY_APPEAR = frozenset({"not_found", "unavailable"})


class Arrival(msgspec.Struct, eq=False):
    """The wait of a model's call for its tool, before there is a ``Call``."""

    options: Mapping[str, Any]
    error: ErrorInfo | None = None

    def complete_with(self, error: ErrorInfo) -> None:
        """End the wait."""
        self.error = error


class WaitingCalls(dict[Call | Arrival, float]):
    """The calls that wait for a worker to register, each with the monotonic time since when; to end one, wake the catalogue, too."""

    def left(self, call: Call, timeout: float) -> float:
        """Return the seconds that are left of a timeout that counts from the call's begin, at least a millisecond."""
        since = self.get(call)
        return timeout if since is None else max(0.001, timeout - (time.monotonic() - since))

    async def publish(self, call: Call, publish: Callable[[Call], ErrorInfo | None], catalogue: Catalogue, limit: float) -> None:
        """Try to publish a call after each change of the registry, until it is published or ended, at most ``limit`` seconds.

        Args:
            call: the call.
            catalogue: the catalogue that reports changes.
            limit: seconds.
            publish: returns why the call could not be published, or None.
        """
        problem: ErrorInfo | None = None

        def ready() -> bool:
            nonlocal problem
            problem = None if call.done else publish(call)
            return problem is None or not may_appear(call, problem)

        await self._until(ready, call, catalogue, limit)
        if problem is not None:
            call.complete_with(problem)

    async def until_callable(
        self, find: Callable[[], Tool | None], options: Mapping[str, Any], catalogue: Catalogue, limit: float
    ) -> ErrorInfo | None:
        """Wait until ``find`` returns an available tool, at most ``limit`` seconds.

        Returns:
            An error when the bus or the session of ``options`` was closed first.
        """
        arrival = Arrival(options)

        def ready() -> bool:
            found = None if arrival.error is not None else find()
            return arrival.error is not None or (found is not None and found.available)

        await self._until(ready, arrival, catalogue, limit)
        return arrival.error

    async def _until(self, ready: Callable[[], bool], waiting: Call | Arrival, catalogue: Catalogue, limit: float) -> None:
        self[waiting] = time.monotonic()
        try:
            await at_most(limit, catalogue.wait(ready))
        finally:
            del self[waiting]


def may_appear(call: Call, problem: ErrorInfo) -> bool:
    """Return whether a newly registered worker may remove what keeps a call from being published."""
    return problem.type in _MAY_APPEAR and not (call.grant is not None and call.grant.superseded)


# Beyond, the one that was not used for the longest is forgotten: its services notice that it is idle, or that the agent is gone.
_MOST_SESSIONS = 10_000
_NOTIFYING = 2.0


class UsedSessions(msgspec.Struct, eq=False):
    """Records the queues to which each session's calls went, and which state of a session its answers came from."""

    # Tokens by user, session and queue.
    _states: dict[tuple[str, str, str], str] = {}
    _sessions: dict[tuple[str, str], set[str]] = {}
    _queues: set[str] = set()

    def add(self, user: str, session: str, queue: str) -> None:
        """Take note of a call."""
        queues = self._sessions.pop((user, session), None)
        if queues is None:
            queues = set()
            if len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        # The order in which they were used.
        self._sessions[user, session] = queues
        queues.add(queue)
        self._queues.add(queue)

    def learn(self, user: str, session: str, queue: str, state: str) -> None:
        """Take note of the state that answered a call: later calls are meant for it."""
        if self._states.pop((user, session, queue), None) is None and len(self._states) >= _MOST_SESSIONS:
            del self._states[next(iter(self._states))]
        self._states[user, session, queue] = state

    def state(self, user: str, session: str, queue: str) -> str:
        """Return the token of the state that answered last, or an empty text; ``NEW_STATE`` for the first call after the session's end."""
        known = self._states.get((user, session, queue), "")
        if known == NEW_STATE:
            # Those behind it are meant for the state that it begins.
            del self._states[user, session, queue]
        return known

    async def close(self, broker: AgentBroker, user: str, session: str) -> None:
        """Notify every service that was called in a session that it is over; returns after two seconds at most."""
        queues = self._sessions.pop((user, session), None)
        for queue in queues or ():
            self.learn(user, session, queue, NEW_STATE)
        if queues:
            await _notified(broker.close_session(user, session, queues))

    async def leave(self, broker: AgentBroker) -> None:
        """Notify every service that was called in any session that this agent leaves them all; returns after two seconds at most."""
        self._sessions.clear()
        self._states.clear()
        queues, self._queues = self._queues, set()
        if queues:
            await _notified(broker.leave_sessions(queues))


async def _notified(services: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(_NOTIFYING):
            await services
    except (BrokerError, TimeoutError) as error:
        telemetry.log.warning("session.untold", error=str(error) or "the server did not answer")


# Seconds that a `once` call whose time is up waits to learn whether it began.
_INQUIRY = 1.0
# Seconds that another call whose time is up waits to learn whether a worker took it.
_MOMENT = 0.2


def inquire(call: Call, error: ErrorInfo, connection: BusConnection) -> None:
    """End a call when it is known whether a worker took it, and after a moment in any case."""
    once, expired = call.request is not None and call.request.effect == "once", error.type == "deadline_exceeded"
    published = bool(call.entry)

    def on_fate(fate: Fate) -> None:
        if fate in {"removed", "signalled"}:
            # The broker has cancelled it.
            call.entry = ""
        if fate == "removed":
            late = untaken(error, _service(call), available=_is_served(call, connection)) if published else unpublished(error)
            call.complete_with(late if expired else error)
        elif fate != "gone" or not connection.is_open:
            # When it is gone it was answered, and the answer may be on its way.
            end(unfinished_of(call, error, connection) if expired and fate == "signalled" else error)

    def end(error: ErrorInfo) -> None:
        unknown = ErrorInfo("outcome_unknown", error.type, f"{error.message}; it may or may not have taken effect")
        call.complete_with(unknown if once else error)

    connection.deadlines.add(time.monotonic() + (_INQUIRY if once else _MOMENT), (call.id, "inquiry"), lambda: end(error))
    if call.request is not None and connection.is_open:
        connection.broker.requests.cancel(call.request, call.queue, call.entry, on_fate, waited=call.waited_in_all, why=error.type)


def unfinished_of(call: Call, error: ErrorInfo, connection: BusConnection) -> ErrorInfo:
    """Return the error of a call whose time was up while a worker had it."""
    timeout = 0.0 if call.request is None else call.request.timeout
    return unfinished(error, _service(call), timeout, call.queued_ms, available=_is_served(call, connection))


def _service(call: Call) -> str:
    return call.target.service if call.request is None else call.request.service


def _is_served(call: Call, connection: BusConnection) -> bool:
    return connection.catalogue.service(_service(call))[1]
