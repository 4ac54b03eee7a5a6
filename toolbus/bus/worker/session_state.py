"""The state of one open session: how it begins, how it is kept, and what calls are told that were meant for another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import MOST_SNAPSHOT, NO_SNAPSHOT, Snapshot
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.envelope import NEW_STATE, SESSION_LOST, EntryNumbers, new_run, numbers_of
from toolbus.bus.values.results import BrokerError, ErrorInfo
from toolbus.bus.worker.handlers import Served
from toolbus.bus.worker.outcome import without_exits
from toolbus.bus.worker.service import Session

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.take.sessions import Snapshots

_SAVED_WITHIN = 10.0
# Seconds between two looks at calls that run elsewhere.
_LOOK_FIRST, _LOOK_MOST = 0.02, 0.5
_REPEATED = ErrorInfo(
    "outcome_unknown", "answer_lost", "the call took effect before its worker died, and its answer was lost; it was not run again"
)


class SessionState(msgspec.Struct, eq=False):
    """The state of one session in this worker.

    Args:
        served: the service.
        session: whose state it is.
        first: the id of the call that opens the session.
        inherited: the last call that can't know of this state, when another one was lost; empty when none was.

    Attributes:
        first: the id of the call that opened the session here; empty when it did not begin.
        token: tells this state from those before and after it; callers send the one that they know.
        value: what ``open_session`` or ``load_session`` returned.
    """

    served: Served
    session: Session
    first: str
    inherited: EntryNumbers = ()
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _begun: bool = False
    # Runs whose handlers may be changing the state now, and how many there ever were.
    _changing: set[str] = set()
    _entered: int = 0
    # The last call in the snapshot that was restored; its end may have been lost with its worker.
    _included: str = ""
    token: str = msgspec.field(default_factory=new_run)
    value: Any = None

    @property
    def is_begun(self) -> bool:
        """True once a call may have run on the state."""
        return self._begun or not (self.served.opens_sessions or self.served.restores_sessions)

    async def begin(self, delivery: Delivery, snapshots: Snapshots) -> ErrorInfo | None:
        """Make or restore the state, once; return why a call may not run on it, or None.

        Raises:
            Exception: whatever the service raises; the next call tries again.
        """
        if not self.is_begun:
            try:
                # Not under the lock: one in the order of the session has waited already, and may begin the state meanwhile.
                await self._until_here(delivery, snapshots)
                async with self._lock:
                    error = None if self._begun else await self._begin(delivery, snapshots)
            except BrokerError as failure:
                error = ErrorInfo("unavailable", "state_unread", f"the state of the session could not be read: {failure}", retryable=True)
            if error is not None:
                return error
        if delivery.request.id == self._included:
            return _REPEATED
        if delivery.request.state == NEW_STATE:
            # Its caller has closed the session: those behind it are meant for this state, and not for the one that was lost.
            self.inherited = min(self.inherited, numbers_of(delivery.entry))
        if not self.is_lost_for(delivery) or self.served.session_lost == "restart":
            return None
        telemetry.log.warning("session.lost", service=self.served.id, user=self.session.user, session=self.session.id)
        return lost(self.session, again=delivery.attempt > 1)

    def is_lost_for(self, delivery: Delivery) -> bool:
        """Return whether a call was meant for a state that was lost: the one that its caller knew, or any before this one."""
        known = delivery.request.state
        if known:
            return known not in {self.token, NEW_STATE}
        return bool(self.inherited) and numbers_of(delivery.entry) <= self.inherited

    async def _until_here(self, delivery: Delivery, snapshots: Snapshots) -> None:
        """Wait until a worker that leaves has kept what its last calls in the session changed. Calls in its order have waited before."""
        pause = _LOOK_FIRST
        while self.served.restores_sessions and not (delivery.request.ordered or self._begun) and await snapshots.is_elsewhere(delivery):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LOOK_MOST)

    async def _begin(self, delivery: Delivery, snapshots: Snapshots) -> ErrorInfo | None:
        snapshot = await self._snapshot(delivery, snapshots) if self.served.restores_sessions else None
        if snapshot is not None:
            self.token, self.inherited, self._included, self._begun = snapshot.state, (), snapshot.call, True
            telemetry.log.info("session.restored", service=self.served.id, user=self.session.user, session=self.session.id)
            return None
        if self.is_lost_for(delivery) and self.served.session_lost != "restart":
            # The first call that runs makes the state, of what its own caller says.
            return None
        self.value = await self.served.open_session(self.session, dict(delivery.request.initial or {}))
        self._begun = True
        await self._save(delivery, snapshots, "")
        return None

    async def _snapshot(self, delivery: Delivery, snapshots: Snapshots) -> Snapshot | None:
        if delivery.request.state == NEW_STATE:
            # Nobody had the session when its caller closed it, so that its snapshot is still there.
            await snapshots.forget(delivery)
            return None
        snapshot = await snapshots.load(delivery)
        if snapshot is None:
            # The first snapshot is kept when a state is made, so that none was lost.
            self.inherited = ()
        if not snapshot or snapshot == NO_SNAPSHOT:
            return None
        try:
            saved = msgspec.json.decode(snapshot.document)
            self.value = await without_exits(self.served.load_session(self.session, saved))
        except Exception:  # noqa: BLE001 - the service's own code, or what stands on the server: then the state is lost, which is told
            telemetry.log.exception("session.unrestored", service=self.served.id, user=self.session.user, session=self.session.id)
            self.inherited = max(self.inherited, numbers_of(delivery.entry))
            # The loss is told now, so that state must not come back later.
            await snapshots.forget(delivery)
            return None
        return snapshot

    def enter(self, delivery: Delivery) -> None:
        """Take note that a call's handler may change the state from now on."""
        self._changing.add(delivery.run)
        self._entered += 1

    async def leave(self, delivery: Delivery, snapshots: Snapshots, *, keep: bool, done: bool) -> bool:
        """Take note that a call's handler changes the state no more.

        Args:
            delivery: the call's.
            snapshots: keeps them.
            keep: keep a snapshot. A failure is logged, and forgets the last one: it would be out of date.
            done: the call is over; False if it is tried again.

        Returns:
            False when another worker has the session, so that what the call changed is lost.
        """
        self._changing.discard(delivery.run)
        # The half effect of a call that still runs would stand twice once it is run again; the state is kept at its end.
        if keep and self._begun and (delivery.request.ordered or not self._changing):
            return await self._save(delivery, snapshots, delivery.request.id if done else "")
        return True

    async def _save(self, delivery: Delivery, snapshots: Snapshots, call: str) -> bool:
        if not self.served.restores_sessions:
            return True
        document = b""
        entered = self._entered
        try:
            async with asyncio.timeout(_SAVED_WITHIN):
                document = encode_data(await without_exits(self.served.save_session(self.session, self.value)))
            reason = f"{len(document):,} bytes are more than {MOST_SNAPSHOT:,}" if len(document) > MOST_SNAPSHOT else ""
        except Exception as error:  # noqa: BLE001 - the service's own code
            reason = reason_of(error)
        if reason:
            telemetry.log.error("session.unsaved", service=self.served.id, user=self.session.user, session=self.session.id, error=reason)
            await snapshots.forget(delivery)
            return True
        if self._entered != entered and not delivery.request.ordered:
            # What began meanwhile may be in the snapshot by half.
            return True
        return await snapshots.save(delivery, Snapshot(self.token, call, document))


def lost(session: Session, *, again: bool) -> ErrorInfo:
    """Return what a call is told that was meant for a state that is gone; ``again`` if an earlier attempt may have run on that state."""
    which = f"session {session.id!r}" if session.id else "the session"
    ran = "this call was not run again" if again else "this call did not run"
    message = f"the state of {which} was lost, as its worker or the session in it ended, so {ran}; the next one begins anew"
    return ErrorInfo("tool_error", SESSION_LOST, message)
