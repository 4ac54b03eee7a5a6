"""``Watch``: takes snapshots of a namespace, and knows the rates between them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Awaitable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.broker.recent import RecentCall
from toolbus.bus.broker.statistics.asking import Statistics
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.results import BrokerError, EnvelopeError
from toolbus.bus.values.settings import Settings
from toolbus.bus.watch.assembly import (
    Activity,
    ToolViews,
    dead_letter_view,
    instance_views,
    running_calls,
    service_views,
    session_views,
)
from toolbus.bus.watch.views import DeadLetterView, PinView, Snapshot

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import ServiceOverview

T = TypeVar("T")

WINDOW = 10.0
"""Seconds over which rates are computed."""

# What no change of the registry tells of is found all the same.
_READ_ANEW_AFTER = 30.0
_MOST_DEAD = 50
_MOST_PAGES = 20


class Watch:
    """Takes snapshots; use it with ``async with``. It connects when it first needs to, and again after a lost connection.

    Args:
        settings: which namespace of which server.
        window: seconds over which rates are computed.
        patience: seconds for workers to answer; those that do not are said to be ``silent``.
        calls: how many recent calls a snapshot has.
    """

    def __init__(self, settings: Settings, *, window: float = WINDOW, patience: float = 0.5, calls: int = 200) -> None:
        self._settings = settings
        self._activity = Activity(window)
        self._tools = ToolViews()
        self._patience = patience
        self._admin: Admin | None = None
        self._revision: bytes | None = None
        self._records: list[ServiceRecord] = []
        self._read_at = 0.0
        self._pins: tuple[bytes | None, tuple[PinView, ...]] = (None, ())
        self._calls: deque[RecentCall] = deque(maxlen=calls)
        self._last_call = ""
        self._dead: dict[str, tuple[int, list[DeadLetterView]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(BrokerError):
                await admin.__aexit__(None, None, None)

    async def sample(self) -> Snapshot:
        """Take a snapshot. Parts of it that can't be read are its ``problems``.

        Raises:
            BrokerError: the server can't be reached; the next sample tries again.
        """
        began = time.monotonic()
        if self._admin is None:
            self._admin = await Admin(self._settings).__aenter__()
        try:
            return await self._sample(self._admin, began)
        except ReplyError:
            raise
        except BaseException:
            # It is cancelled, perhaps, or the connection is lost: a link that waits for an answer is of no use any more.
            await self.aclose()
            raise

    async def _sample(self, admin: Admin, began: float) -> Snapshot:
        problems: list[str] = []

        async def read(part: str, step: Awaitable[T], otherwise: T) -> T:
            try:
                return await step
            except (ReplyError, EnvelopeError) as error:
                problems.append(f"{part}: {error}")
                return otherwise

        at = await admin.now()
        overviews: list[ServiceOverview] = await read("services", self._services(admin), [])
        statistics = await read("statistics", admin.statistics(patience=self._patience), Statistics({}, {}))
        activity = self._activity
        activity.take_in(statistics.answers)
        calls: list[RecentCall] = await read("recent calls", self._recent(admin), [])
        dead: list[DeadLetterView] = await read("dead letters", self._dead_letters(admin, overviews), [])
        waiting: list[ConfirmationRequest] = await read("confirmations", admin.confirmations.pending(), [])
        pins: tuple[PinView, ...] = await read("pins", self._approved(admin), ())
        answers = statistics.answers.values()
        return Snapshot(
            at=at,
            took_ms=round((time.monotonic() - began) * 1000, 1),
            window=round(activity.window, 2),
            services=service_views(overviews, activity),
            instances=instance_views(statistics, activity),
            tools=self._tools.make(overviews, activity),
            recent=tuple(calls),
            dead=tuple(dead),
            confirmations=tuple(waiting),
            sessions=session_views(answers),
            running=tuple(running_calls(answers)),
            pins=pins,
            silent=tuple(statistics.silent),
            problems=tuple(problems),
        )

    async def _services(self, admin: Admin) -> list[ServiceOverview]:
        """Return what goes on in the services; their descriptions, which are long, are read when they have changed."""
        revision, now = await admin.revision(), time.monotonic()
        if revision != self._revision or now - self._read_at > _READ_ANEW_AFTER:
            if now - self._read_at > _READ_ANEW_AFTER:
                # A stranger's record with an id of the future would hide all later ones.
                self._last_call = ""
            self._records = await admin.records()
            self._revision, self._read_at = revision, now
        return await admin.overviews(self._records)

    async def _approved(self, admin: Admin) -> tuple[PinView, ...]:
        """Return the approved descriptors, which are read when the registry has changed, whose items they are."""
        if self._pins[0] != self._revision:
            found = await admin.pins.all()
            self._pins = self._revision, tuple(PinView(name=each.name, digest=each.approved) for each in found if each.state == "approved")
        return self._pins[1]

    async def _recent(self, admin: Admin) -> list[RecentCall]:
        """Return the recent calls, the newest first, of which only new ones are read."""
        if not self._last_call:
            self._calls.clear()
            self._calls.extend(reversed(await admin.recent(self._calls.maxlen or 1)))
            self._last_call = self._calls[-1].entry if self._calls else "0-0"
        else:
            for _ in range(_MOST_PAGES):
                found, last = await admin.recent_after(self._last_call)
                self._calls.extend(found)
                if last == self._last_call:
                    break
                self._last_call = last
        return list(reversed(self._calls))

    async def _dead_letters(self, admin: Admin, overviews: list[ServiceOverview]) -> list[DeadLetterView]:
        """Return the newest dead letters of services, which are read again when their number has changed."""
        queues = {each.publication.service.queue: each.dead for each in overviews if each.dead}
        self._dead = {queue: kept for queue, kept in self._dead.items() if queue in queues}
        for queue, count in queues.items():
            if queue not in self._dead or self._dead[queue][0] != count or count > _MOST_DEAD:
                letters = [dead_letter_view(each) for each in await admin.dead_letters.newest(queue, _MOST_DEAD)]
                # There may be others by now than those that were counted.
                self._dead[queue] = len(letters), letters
        return sorted((letter for _, letters in self._dead.values() for letter in letters), key=lambda each: each.at, reverse=True)
