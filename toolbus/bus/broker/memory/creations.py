"""The tasks of coding agents of one event loop, for ``memory://``."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec

from toolbus.bus.broker.creations import ids_of, refused, refused_key, submitted
from toolbus.bus.broker.protocols.documents import (
    KEPT,
    MOST_ENDED,
    MOST_LINE,
    MOST_LINES,
    MOST_OPEN,
    ClaimedCreation,
    Creation,
    CreationOverview,
    CreationStatus,
    Spent,
    Written,
)
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.settings import Settings


class _Kept(msgspec.Struct):
    """One task, the token of its submission, and the claim of who runs it; times in seconds."""

    creation: Creation
    token: str
    due: float
    claim: str = ""
    until: float = 0.0

    def change(self, **changes: object) -> None:
        """Change the task."""
        self.creation = msgspec.structs.replace(self.creation, **changes)


class MemoryCreations:
    """``Creations`` within one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.lease = min(settings.lease, 30.0)
        self._kept: dict[str, _Kept] = {}
        self.changes = 0
        self._changed: set[asyncio.Event] = set()

    async def submit(self, spec: str, *, by: str = "", key: str = "", about: str = "") -> Creation:
        """Queue a task and return it; with a ``key`` the same one each time."""
        self._forget_old()
        spec, token = submitted(spec, by, key, about)
        for ident in ids_of(token, keyed=bool(key)):
            kept = self._kept.get(ident)
            if kept is None:
                break
            if kept.token == token:
                if (kept.creation.spec, kept.creation.about) != (spec, about):
                    raise refused_key(key)
                return kept.creation
        count = sum(each.creation.open for each in self._kept.values())
        if count >= MOST_OPEN:
            raise refused(count)
        made = Creation(id=ident, status="queued", spec=spec, by=by, about=about, created=time.time())
        self._kept[ident] = _Kept(made, token, made.created)
        self._tell()
        return made

    async def get(self, id: str) -> Creation | None:
        """Return a task with its log."""
        self._forget_old()
        kept = self._kept.get(id)
        return None if kept is None else kept.creation

    async def overview(self, recent: int = 20) -> CreationOverview:
        """Return the tasks that wait or run, and so many that have ended."""
        self._forget_old()
        found = [msgspec.structs.replace(kept.creation, log=()) for kept in self._kept.values()]
        by_age = sorted(found, key=lambda each: (each.created, each.id))
        ended = sorted((each for each in found if not each.open), key=lambda each: (-each.ended, each.id))
        running, queued = ([each for each in by_age if each.status == status] for status in ("running", "queued"))
        return CreationOverview(running, queued, ended[: max(0, min(recent, MOST_ENDED))])

    async def cancel(self, id: str) -> CreationStatus | None:
        """End a task, or tell its process to; return its status now."""
        kept = self._kept.get(id)
        if kept is None:
            return None
        if kept.creation.status == "queued":
            kept.change(status="cancelled", ended=time.time())
        elif kept.creation.status == "running":
            kept.change(cancelled=True)
        self._tell()
        return kept.creation.status

    async def claim(self, worker: str) -> ClaimedCreation | None:
        """Begin the oldest queued task, or go on with one whose process has died."""
        now = time.time()
        due = [kept for kept in self._kept.values() if kept.creation.status == "running" and kept.until <= now]
        due += sorted(
            (kept for kept in self._kept.values() if kept.creation.status == "queued" and kept.due <= now), key=lambda kept: kept.due
        )
        for kept in due:
            if kept.creation.cancelled:
                kept.change(status="cancelled", ended=now)
                continue
            kept.change(status="running", attempts=kept.creation.attempts + 1, started=kept.creation.started or now, worker=worker)
            kept.claim, kept.until = new_id(), now + self.lease
            return ClaimedCreation(kept.creation, kept.claim)
        return None

    async def write(
        self,
        claimed: ClaimedCreation,
        *,
        first: int = 0,
        lines: tuple[str, ...] = (),
        progress: str | None = None,
        spent: Spent | None = None,
    ) -> Written:
        """Renew the lease, and keep what is given."""
        kept = self._held(claimed)
        if kept is None:
            return "lost"
        was = kept.creation
        new = tuple(line[:MOST_LINE] for line in lines[max(0, was.lines - first) :])
        kept.change(
            log=(*was.log, *new)[-MOST_LINES:],
            lines=was.lines + len(new),
            progress=was.progress if progress is None else progress[:MOST_LINE],
            spent=was.spent if spent is None else spent,
        )
        kept.until = time.time() + self.lease
        return "cancel" if was.cancelled else "kept"

    async def end(self, claimed: ClaimedCreation, status: CreationStatus, result: str = "", *, delay: float = 0.0) -> bool:
        """End a task, or give it back."""
        kept = self._held(claimed)
        if kept is None:
            known = self._kept.get(claimed.id)
            return known is not None and known.claim == claimed.token and known.creation.status == status
        if status == "queued":
            kept.change(status=status, attempts=max(0, kept.creation.attempts - 1))
            kept.due = time.time() + delay
        else:
            kept.change(status=status, result=result, ended=time.time(), progress="")
        self._tell()
        return True

    async def wait(self, seconds: float, since: int) -> None:
        """Wait until ``changes`` is another number than ``since``, and no longer than ``seconds``."""
        changed = asyncio.Event()
        self._changed.add(changed)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while self.changes == since:
                        await changed.wait()
        finally:
            self._changed.discard(changed)

    def _held(self, claimed: ClaimedCreation) -> _Kept | None:
        kept = self._kept.get(claimed.id)
        return kept if kept is not None and kept.claim == claimed.token and kept.creation.status == "running" else None

    def _tell(self) -> None:
        self.changes += 1
        for changed in self._changed:
            changed.set()

    def _forget_old(self) -> None:
        limit = time.time() - KEPT
        for ident in [ident for ident, kept in self._kept.items() if not kept.creation.open and kept.creation.ended < limit]:
            del self._kept[ident]
