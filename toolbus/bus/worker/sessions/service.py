"""The open sessions of one service in a worker."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import session_of
from toolbus.bus.broker.statistics.answers import OpenSession
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.values.envelope import EntryNumbers, Request, numbers_of
from toolbus.bus.values.results import ErrorInfo
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.run.outcome import without_exits
from toolbus.bus.worker.serving.handlers import Served
from toolbus.bus.worker.sessions.session import Session, SessionRun
from toolbus.bus.worker.sessions.state import SessionState, lost

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

# Seconds that one clean-up may take, and that calls of a closed session may take to stop.
CLEANUP_WITHIN = 10.0
_STOPS_WITHIN = 5.0
_MOST_CLEANUPS = 16
# In the time until it is idle, the moments at which a session is looked at.
_MOMENTS = 64
# A session that more callers use at once ends when it is closed or idle, whichever of them leaves.
_MOST_AGENTS = 64
# Sessions that were inherited and whose first call has not begun yet.
_MOST_INHERITED = 10_000
# Sessions that operators are told of.
_MOST_TOLD = 100
# Leases for which a session outlives its last caller: a gateway that was restarted, or the next command, goes on with it.
_OUTLIVES = 2
_CLOSED = ErrorInfo("cancelled", "session_closed", "the session was closed, maybe by another agent, while the call ran")


class SessionContext(Protocol):
    """The part of a worker that its sessions use."""

    broker: WorkerBroker
    deadlines: Deadlines
    clock: Callable[[], float]
    settings: Settings

    def empty_line(self, service: str, user: str, session: str, *, moved: bool) -> None:
        """Let go of the calls that wait in a session: another worker has it, or else it was closed."""

    async def close_nested(self, user: str, session: str) -> None:
        """End a session that handlers' nested calls were made in."""


class _Open:
    """One open session: its calls, the callers that use it, and once it ends, the calls that wait for its end."""

    __slots__ = ("agents", "alone", "closed", "first", "runs", "slot", "state", "used", "waiting")

    def __init__(self, first: Request, now: float, state: SessionState) -> None:
        self.state = state
        self.first = first.id
        self.agents: set[str] | None = set()
        self.runs: set[SessionRun] = set()
        self.waiting: set[SessionRun] = set()
        self.used = now
        # Since when no caller uses it.
        self.alone = math.inf
        # Of the deadline at which it may be idle.
        self.slot = 0
        self.closed: asyncio.Event | None = None

    def enter(self, run: SessionRun) -> None:
        """Count a call in."""
        agent = run.delivery.request.agent
        if agent and self.agents is not None:
            self.agents.add(agent)
            if len(self.agents) > _MOST_AGENTS:
                self.agents = None
            self.alone = math.inf
        (self.runs if self.closed is None else self.waiting).add(run)

    def leave(self, agents: set[str], now: float) -> bool:
        """Take note that these callers are gone; return whether none is left that uses it."""
        if not self.agents or self.agents.isdisjoint(agents):
            return False
        self.agents -= agents
        if not self.agents:
            self.alone = now
        return not self.agents


class OpenSessions:
    """The open sessions of one service in this worker."""

    def __init__(self, served: Served, context: SessionContext) -> None:
        self._served = served
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._outlives = _OUTLIVES * context.settings.lease
        self._open: dict[Session, _Open] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_MOST_CLEANUPS)
        self._inherited: dict[Session, EntryNumbers] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self) -> list[OpenSession]:
        """Return the open sessions, those used last first; some hundred at most."""
        now, service = self._context.clock(), self._served.id
        newest = itertools.islice(reversed(self._open.items()), _MOST_TOLD)
        return [OpenSession(service, *session, len(each.runs), max(0.0, now - each.used)) for session, each in newest]

    # -- calls ------------------------------------------------------------------------------------

    def start(self, run: SessionRun) -> asyncio.Task[None]:
        """Start a call in its session, which opens with its first one; one whose session is ending waits for the end."""
        request = run.delivery.request
        pair = session_of(request)
        if pair is None:
            return self._loop.create_task(run.execute())
        session = Session(*pair)
        found = self._open.pop(session, None)
        if found is None:
            if len(self._open) >= self._served.max_sessions:
                self._make_room()
            found = self._begin(session, request)
        # The order in which they were used.
        self._open[session] = found
        found.enter(run)
        task = self._loop.create_task(self._execute(session, run, found.closed))
        task.add_done_callback(lambda _: self._left(session, run))
        return task

    def opened_by(self, request: Request) -> bool:
        """Return whether a running call is the one that opened its session here."""
        pair = session_of(request)
        found = self._open.get(Session(*pair)) if pair is not None else None
        return found is not None and found.first == request.id

    def inherit(self, session: Session, upto: EntryNumbers) -> None:
        """Take in that an earlier state of a session was lost; calls up to this entry may have been meant for it."""
        if len(self._inherited) >= _MOST_INHERITED:
            del self._inherited[next(iter(self._inherited))]
        self._inherited[session] = upto

    def token(self, request: Request) -> str:
        """Return the token of the state of a running call's session; empty when no state is kept."""
        found = self._of(request) if self._served.sticky else None
        return "" if found is None else found.state.token

    def value(self, request: Request) -> Any:
        """Return the state of a running call's session, as its service made it."""
        found = self._of(request)
        return None if found is None else found.state.value

    def enter(self, delivery: Delivery) -> None:
        """Take note that a call's handler may change the state of its session from now on."""
        found = self._of(delivery.request)
        if found is not None:
            found.state.enter(delivery)

    async def leave(self, delivery: Delivery, *, keep: bool, done: bool) -> bool:
        """Take note that a call's handler changes the state no more; keep a snapshot, for a call that is ``done`` or is tried again."""
        found = self._of(delivery.request)
        return found is None or await found.state.leave(delivery, self._context.broker, keep=keep, done=done)

    def forget(self, delivery: Delivery) -> None:
        """Forget the snapshot of a delivery's session, because it is out of date."""
        found = self._of(delivery.request)
        if found is not None:
            found.state.forget(delivery, self._context.broker)

    def _of(self, request: Request) -> _Open | None:
        pair = session_of(request)
        return None if pair is None else self._open.get(Session(*pair))

    async def _execute(self, session: Session, run: SessionRun, closed: asyncio.Event | None) -> None:
        if closed is not None:
            await closed.wait()
        found = self._open.get(session)
        if found is not None and self._served.sticky:
            if not await self._context.broker.holds_session(run.delivery):
                run.stop(None)
                return
            # Another worker may have had the session while this process was paused, so the state that is here is out of date.
            stale = found.closed is not None
            error = lost(session, again=run.delivery.attempt > 1) if stale else await self._begun(found, run)
            if error is not None:
                # Another call opens the session.
                found.first = ""
                run.stop(error)
                return
            found.first = found.first or run.delivery.request.id
            run.restarted = self._served.sticky and found.state.is_lost_for(run.delivery)
        await run.execute()

    async def _begun(self, found: _Open, run: SessionRun) -> ErrorInfo | None:
        """Begin the state of a session if no call did; return why a call does not run."""
        try:
            return await without_exits(found.state.begin(run.delivery, self._context.broker))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if run.abandoned or not run.unbegun or (task is not None and task.cancelling()):
                raise
            return ErrorInfo("tool_error", "CancelledError", "opening the session was cancelled from within")
        except Exception as error:  # noqa: BLE001 - the service's own code
            telemetry.log.exception("session.unopened", service=self._served.id, id=run.delivery.request.id)
            return run.error_info(error)

    def _left(self, session: Session, run: SessionRun) -> None:
        found = self._open.get(session)
        if found is not None:
            found.runs.discard(run)
            found.waiting.discard(run)
            found.used = self._context.clock()

    def _begin(self, session: Session, first: Request, inherited: EntryNumbers = ()) -> _Open:
        inherited = max(inherited, self._inherited.pop(session, ()))
        found = _Open(first, self._context.clock(), SessionState(self._served, session, inherited))
        self._look_later(session, found)
        return found

    # -- ends -------------------------------------------------------------------------------------

    def end(self, session: Session, reason: str, *, stop: bool = False) -> None:
        """End a session: its calls are stopped or waited for, and then the service cleans up after it."""
        found = self._open.get(session)
        if found is None:
            return
        if found.closed is not None:
            # It ends already; what waits to begin it anew is over as well.
            for run in list(found.waiting) if stop else ():
                run.stop(_CLOSED)
            return
        found.closed = asyncio.Event()
        self._look_no_more(found)
        task = self._loop.create_task(self._end(session, found, found.closed, reason, stop=stop))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def left(self, agents: set[str]) -> None:
        """Let the sessions that no other caller uses, now that these are gone, end soon."""
        for session, found in self._open.items():
            if found.leave(agents, self._context.clock()) and found.closed is None:
                self._look_no_more(found)
                self._look_later(session, found)

    def agents(self) -> set[str]:
        """Return the callers that use open sessions."""
        return set().union(*(found.agents for found in self._open.values() if found.agents))

    async def aclose(self) -> None:
        """End every session; returns when all are cleaned up, or a bounded time has passed."""
        for session in list(self._open):
            self.end(session, "drain")
        if self._ending:
            _, late = await asyncio.wait(self._ending, timeout=CLEANUP_WITHIN)
            for task in late:
                task.cancel()
            if late:
                telemetry.log.error("session.cleanup_failed", service=self._served.id, error=f"{len(late)} sessions were not done in time")
                await asyncio.wait(late, timeout=1.0)

    async def _end(self, session: Session, found: _Open, closed: asyncio.Event, reason: str, *, stop: bool) -> None:
        try:
            tasks = [run.task for run in found.runs if run.task is not None]
            if stop:
                for run in list(found.runs):
                    run.stop(_CLOSED)
            if tasks:
                await asyncio.wait(tasks, timeout=_STOPS_WITHIN if stop else None)
            await self._clean(session, found)
            telemetry.log.info("session.ended", service=self._served.id, user=session.user, session=session.id, reason=reason)
        finally:
            self._settle(session, found, reason)
            closed.set()

    async def _clean(self, session: Session, found: _Open) -> None:
        async with self._turns:
            try:
                async with asyncio.timeout(CLEANUP_WITHIN):
                    await without_exits(self._served.cleanup(session, found.state.value))
            except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
                telemetry.log.exception("session.cleanup_failed", service=self._served.id, user=session.user, session=session.id)

    def _settle(self, session: Session, found: _Open, reason: str) -> None:
        """Give the session up, or begin it anew for the calls that waited for its end."""
        del self._open[session]
        wanted = reason == "closed"
        if not found.waiting:
            self._context.broker.release_session(self._served.id, *session, lost=not wanted and found.state.is_begun)
            return
        runs = sorted(found.waiting, key=lambda run: numbers_of(run.delivery.entry))
        if wanted and self._served.restores_sessions:
            # Their session is another one than that which its callers ended.
            found.state.forget(runs[0].delivery, self._context.broker)
        upto = () if wanted else numbers_of(runs[-1].delivery.entry)
        anew = self._open[session] = self._begin(session, runs[0].delivery.request, upto)
        for run in runs:
            anew.enter(run)

    def _make_room(self) -> None:
        """End the session that was not used for the longest. All of them are in use only while as many calls run."""
        idle = next((session for session, found in self._open.items() if not found.runs and found.closed is None), None)
        if idle is not None:
            self.end(idle, "room")

    def _look_later(self, session: Session, found: _Open) -> None:
        # Sessions share few moments, since each moment costs memory until it has passed.
        step = min(self._served.session_idle, self._outlives) / _MOMENTS
        when = math.ceil(self._end_of(found)[1] / step) * step
        found.slot = self._context.deadlines.add(when, (self, id(found)), lambda: self._look(session, found))

    def _look_no_more(self, found: _Open) -> None:
        self._context.deadlines.remove(found.slot, (self, id(found)))

    def _look(self, session: Session, found: _Open) -> None:
        if self._open.get(session) is not found or found.closed is not None:
            return
        reason, due = self._end_of(found)
        if due <= self._context.clock():
            self.end(session, reason)
        else:
            self._look_later(session, found)

    def _end_of(self, found: _Open) -> tuple[str, float]:
        """Return why and when a session ends if no call comes."""
        used = self._context.clock() if found.runs else found.used
        idle, left = used + self._served.session_idle, max(used, found.alone) + self._outlives
        return ("idle", idle) if idle <= left else ("left", left)
