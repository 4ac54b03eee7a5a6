"""The open sessions of a worker, service by service."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import session_of
from toolbus.bus.broker.statistics.answers import OpenSession
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.envelope import EntryNumbers, Request, numbers_of
from toolbus.bus.values.results import ErrorInfo, ToolbusError
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.lines import LineName
from toolbus.bus.worker.outcome import without_exits
from toolbus.bus.worker.run import Run
from toolbus.bus.worker.service import Session
from toolbus.bus.worker.session_state import SessionState
from toolbus.bus.worker.transitions import RunState

if TYPE_CHECKING:
    from toolbus.bus.broker.take.sessions import StateLeft
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


class _Open(msgspec.Struct, eq=False):
    """One open session: its calls, the callers that use it, and once it ends, the calls that wait for its end.

    Attributes:
        alone: since when no caller uses it.
        slot: of the deadline at which it may be idle.
        empty: set when the calls of one that ends have left.
        closed: set when it has ended.
    """

    used: float
    state: SessionState
    agents: set[str] | None = set()
    runs: set[Run] = set()
    waiting: set[Run] = set()
    alone: float = math.inf
    slot: int = 0
    empty: asyncio.Event | None = None
    closed: asyncio.Event | None = None

    def enter(self, run: Run) -> None:
        """Count a call in, and give it the state."""
        run.session = self.state
        agent = run.delivery.request.agent
        if agent and self.agents is not None:
            self.agents.add(agent)
            if len(self.agents) > _MOST_AGENTS:
                self.agents = None
            self.alone = math.inf
        (self.runs if self.closed is None else self.waiting).add(run)

    def leave_run(self, run: Run) -> None:
        """Count a call out."""
        self.runs.discard(run)
        self.waiting.discard(run)
        if self.empty is not None and not self.runs:
            self.empty.set()

    def leave(self, agents: set[str], now: float) -> bool:
        """Take note that these callers are gone; return whether none is left that uses it."""
        if not self.agents or self.agents.isdisjoint(agents):
            return False
        self.agents -= agents
        if not self.agents:
            self.alone = now
        return not self.agents


class OpenSessions(msgspec.Struct, eq=False):
    """The open sessions of one service in this worker.

    Args:
        served: the service.
        broker: knows which worker has which session, and keeps snapshots.
        deadlines: says when it is time to look at a session.
        clock: returns monotonic seconds.
        lease: seconds.
    """

    _served: Served
    _broker: WorkerBroker
    _deadlines: Deadlines
    _clock: Callable[[], float]
    lease: float
    _loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    _open: dict[Session, _Open] = {}
    _ending: set[asyncio.Task[None]] = set()
    _turns: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(_MOST_CLEANUPS))
    _inherited: Latest[Session, EntryNumbers] = msgspec.field(default_factory=lambda: Latest(_MOST_INHERITED))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, session: Session) -> bool:
        return session in self._open

    def opened(self) -> list[OpenSession]:
        """Return the open sessions, those used last first; some hundred at most."""
        now, service = self._clock(), self._served.id
        newest = itertools.islice(reversed(self._open.items()), _MOST_TOLD)
        return [OpenSession(service, *session, len(each.runs), max(0.0, now - each.used)) for session, each in newest]

    # -- calls ------------------------------------------------------------------------------------

    def start(self, run: Run) -> asyncio.Task[None]:
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

    def inherit(self, session: Session, upto: EntryNumbers) -> None:
        """Take in that an earlier state of a session was lost; calls up to this entry may have been meant for it."""
        self._inherited[session] = upto

    async def _execute(self, session: Session, run: Run, closed: asyncio.Event | None) -> None:
        found: _Open | None = None
        while True:
            if closed is not None:
                await closed.wait()
            found = self._open.get(session)
            if found is None or not self._served.sticky:
                break
            if not await self._broker.steps.ownership.holds(run.delivery):
                run.stop(None)
                return
            closed = found.closed
            if closed is None:
                error = await self._begun(found, run)
                if error is not None:
                    # Another call opens the session.
                    found.state.first = ""
                    run.stop(error)
                    return
                if not run.delivery.is_held:
                    # The server said so when the state was kept.
                    run.stop(None)
                    return
                found.state.first = found.state.first or run.delivery.request.id
                run.restarted = found.state.is_lost_for(run.delivery)
                break
            # Another worker may have had the session while this process was paused, so the state that is here is out of date.
            found.leave_run(run)
            found.enter(run)
        await run.execute()

    async def _begun(self, found: _Open, run: Run) -> ErrorInfo | None:
        """Begin the state of a session if no call did; return why a call does not run."""
        try:
            return await without_exits(found.state.begin(run.delivery, self._broker.steps.snapshots))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if run.abandoned or run.state is not RunState.CREATED or (task is not None and task.cancelling()):
                raise
            return ErrorInfo("tool_error", "CancelledError", "opening the session was cancelled from within")
        except Exception as error:  # noqa: BLE001 - the service's own code
            telemetry.log.exception("session.unopened", service=self._served.id, id=run.delivery.request.id)
            return run.error_info(error)

    def _left(self, session: Session, run: Run) -> None:
        found = self._open.get(session)
        if found is not None:
            found.leave_run(run)
            found.used = self._clock()

    def _begin(self, session: Session, first: Request, inherited: EntryNumbers = ()) -> _Open:
        inherited = max(inherited, self._inherited.pop(session, ()))
        found = _Open(self._clock(), SessionState(self._served, session, first.id, inherited))
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
                run.close()
            return
        found.empty, found.closed = asyncio.Event(), asyncio.Event()
        self._look_no_more(found)
        for run in list(found.runs) if stop else ():
            # Now: one that has not taken its first step would find its session ended, and call it lost.
            run.close()
        task = self._loop.create_task(self._end(session, found, found.closed, reason, _STOPS_WITHIN if stop else None))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def left(self, agents: set[str]) -> None:
        """Let the sessions that no other caller uses, now that these are gone, end soon."""
        for session, found in self._open.items():
            if found.leave(agents, self._clock()) and found.closed is None:
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

    async def _end(self, session: Session, found: _Open, closed: asyncio.Event, reason: str, timeout: float | None) -> None:
        try:
            if found.runs and found.empty is not None:
                await at_most(timeout, found.empty.wait())
            await self._clean(session, found)
            if reason == "closed" and self._served.restores_sessions and found.waiting:
                # The session of these calls is another one than that which its callers ended.
                first = min(found.waiting, key=lambda run: numbers_of(run.delivery.entry))
                await self._broker.steps.snapshots.forget(first.delivery)
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
            state: StateLeft = "closed" if wanted else "lost" if found.state.is_begun else "kept"
            self._broker.steps.ownership.release(self._served.id, session, state)
            return
        runs = sorted(found.waiting, key=lambda run: numbers_of(run.delivery.entry))
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
        step = min(self._served.session_idle, _OUTLIVES * self.lease) / _MOMENTS
        when = math.ceil(self._end_of(found)[1] / step) * step
        found.slot = self._deadlines.add(when, (self, id(found)), lambda: self._look(session, found))

    def _look_no_more(self, found: _Open) -> None:
        self._deadlines.remove(found.slot, (self, id(found)))

    def _look(self, session: Session, found: _Open) -> None:
        if self._open.get(session) is not found or found.closed is not None:
            return
        reason, due = self._end_of(found)
        if due <= self._clock():
            self.end(session, reason)
        else:
            self._look_later(session, found)

    def _end_of(self, found: _Open) -> tuple[str, float]:
        """Return why and when a session ends if no call comes."""
        used = self._clock() if found.runs else found.used
        idle, left = used + self._served.session_idle, max(used, found.alone) + _OUTLIVES * self.lease
        return ("idle", idle) if idle <= left else ("left", left)


class WorkerSessions(msgspec.Struct, eq=False):
    """The open sessions of a worker, by service: the broker's ``SessionListener``.

    Args:
        make: makes the sessions of one service.
        empty_line: lets go of the calls that wait in a session: another worker has it (``moved``), or else it was closed.
        close_nested: ends a session, of a user, that handlers' nested calls were made in.

    Attributes:
        services: the open sessions of each service that has any.
    """

    make: Callable[[Served], OpenSessions]
    empty_line: Callable[[LineName, bool], None]
    close_nested: Callable[[str, str], Awaitable[None]]
    services: dict[str, OpenSessions] = {}
    _closing: set[asyncio.Task[None]] = set()

    def open(self, served: Served) -> None:
        """Keep the sessions of a service that wants it."""
        if served.has_sessions:
            self.services[served.id] = self.make(served)

    async def close(self, served: Served) -> None:
        """End every session of one service, and keep no more of it."""
        found = self.services.pop(served.id, None)
        if found is not None:
            await found.aclose()

    async def aclose(self) -> None:
        """End every session of every service, side by side."""
        await asyncio.gather(*(each.aclose() for each in self.services.values()))
        for task in self._closing:
            task.cancel()

    def __len__(self) -> int:
        return sum(map(len, self.services.values()))

    def opened(self) -> dict[str, list[OpenSession]]:
        """Return the open sessions by service, those used last first."""
        return {service: each.opened() for service, each in self.services.items()}

    # -- SessionListener --------------------------------------------------------------------------

    def closed(self, service: str, user: str, session: str) -> None:
        """End a session that its caller closed."""
        self.empty_line((service, user, session), False)
        if service in self.services:
            self.services[service].end(Session(user, session), "closed", stop=True)
        # What handlers called in it ends too.
        task = asyncio.get_running_loop().create_task(self._end_nested(user, session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _end_nested(self, user: str, session: str) -> None:
        try:
            await self.close_nested(user, session)
        except ToolbusError as error:
            telemetry.log.warning("session.untold", error=str(error))

    def left(self, service: str, agent: str) -> None:
        """Let the sessions that only a leaving caller used end soon."""
        if service in self.services:
            self.services[service].left({agent})

    def moved(self, service: str, user: str, session: str) -> None:
        """End a session that another worker has, or had."""
        self.empty_line((service, user, session), True)
        if service in self.services:
            self.services[service].end(Session(user, session), "moved")

    def inherited(self, service: str, user: str, session: str, upto: tuple[int, ...]) -> None:
        """Take in that a session is this worker's whose state was lost, which calls up to an entry can't know."""
        if service in self.services:
            self.services[service].inherit(Session(user, session), upto)

    def is_open(self, service: str, user: str, session: str) -> bool:
        """Return whether a session is open here."""
        return service in self.services and Session(user, session) in self.services[service]

    def agents(self) -> set[str]:
        """Return the callers that use open sessions."""
        return set().union(*(each.agents() for each in self.services.values()))

    def gone(self, agents: set[str]) -> None:
        """Let the sessions that only dead callers used end soon."""
        for each in self.services.values():
            each.left(agents)
