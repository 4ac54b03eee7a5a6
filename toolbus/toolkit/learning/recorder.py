"""``Recorder``: write the calls of an agent's executors to a store, each with its episode and action."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Self

from toolbus.bus import telemetry
from toolbus.bus.client.executor.observers import EventBus, ToolEvent
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.events import Finished
from toolbus.bus.values.results import ConfigurationError, ToolResult
from toolbus.toolkit.learning.stores import Execution, ExecutionStore, RecordError, encode, outcome_of

WAITING = 10_000
_BATCH = 500


class Place(NamedTuple):
    """The place in the graph at which a call is made.

    Attributes:
        action: action in which the tool is called.
        target: id of the tool or group that the action leads to; empty when it is not known.
        shown, next_shown: the tools, and following actions, that the model may have been shown, each with the probability.
        revision: revision of the scores that decided it.
    """

    action: str
    target: str = ""
    shown: Mapping[str, float] = {}
    next_shown: Mapping[str, float] = {}
    revision: str = ""


Locate = Callable[[str], Place | None]
"""Returns the place of a call from the tool's name; None when the call is not to be recorded."""

# Tasks start with a copy of their parent's context, so each call knows its place even when many turns run at once.
_now: ContextVar[tuple[Episode, Locate] | None] = ContextVar("toolbus_toolkit_place", default=None)


class Episode:
    """One request of a user; ``Recorder.episode()`` makes it.

    Attributes:
        id: name of the episode in the log.
        query: the user's sentence.
    """

    def __init__(self, id: str, query: str) -> None:
        self.id = id
        self.query = query
        # The position of the next call that ends.
        self.positions = itertools.count()

    @contextmanager
    def action(
        self, name: str, *, shown: Mapping[str, float] | None = None, next_shown: Mapping[str, float] | None = None, revision: str = ""
    ) -> Iterator[None]:
        """Record calls that start within this ``with`` as made in the action ``name``.

        Args:
            shown: the tools that the model may have been shown, with the probability of each; 1.0 for those that always are.
            next_shown: the same for the actions that may follow.
            revision: revision of the scores that decided it.

        Raises:
            RecordError: one of these values can't be recorded, such as a probability of 0.
        """
        place = Place(name, "", dict(shown or {}), dict(next_shown or {}), revision)
        encode(_record(self, place, "tool", 0, ToolResult(), 0.0))
        with self.located(lambda tool: place):
            yield

    @contextmanager
    def located(self, locate: Locate) -> Iterator[None]:
        """Record calls that start within this ``with`` at the place that ``locate`` returns when they end."""
        token = _now.set((self, locate))
        try:
            yield
        finally:
            _now.reset(token)


class Recorder:
    """Records what executors do: use ``with Recorder(store, bus.events) as recorder:``, then episodes and their actions.

    A separate thread writes, so that a slow disk delays no call. Calls outside of an action or a walk are not recorded. Leaving
    the ``with`` writes the waiting calls; the store stays open.

    Attributes:
        dropped: number of calls that were not recorded, because 10,000 were waiting or the store refused them.
    """

    def __init__(self, store: ExecutionStore, *events: EventBus) -> None:
        self._store = store
        self._events = events
        self._waiting: queue.Queue[Execution | None] = queue.Queue(WAITING)
        self._leave: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def __enter__(self) -> Self:
        """Start recording.

        Raises:
            ConfigurationError: it is already running.
        """
        if self._thread is not None:
            raise ConfigurationError("this recorder is in use; make another")
        self._thread = threading.Thread(target=self._write, name="toolbus-recorder", daemon=True)
        self._thread.start()
        self._leave = [events.subscribe(self.observe) for events in self._events]
        return self

    def __exit__(self, *exception: object) -> None:
        for leave in self._leave:
            leave()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    @property
    def running(self) -> bool:
        """True within ``with``."""
        return self._thread is not None

    def episode(self, query: str = "", *, id: str = "") -> Episode:
        """Return a new episode, or the one called ``id``; the first 4,096 characters of the user's sentence ``query`` are kept."""
        return Episode(id or new_id(), query[:4096])

    def observe(self, event: ToolEvent) -> None:
        """Record an event of an event bus; ``with`` subscribes this observer to the recorder's buses."""
        now = _now.get()
        if now is None or type(event.event) is not Finished or self._thread is None:
            return
        result, (episode, locate) = event.event.result, now
        if result.error is not None and result.error.type == "not_found" and result.error.origin == "bus":
            return  # an unknown tool has no edge
        place = locate(event.tool)
        if place is None:
            return
        record = _record(episode, place, event.tool, next(episode.positions), result, time.time())
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._drop(1, "too many wait to be written")

    def _write(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch: list[Execution | None] = [first]
            while batch[-1] is not None and len(batch) < _BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            self._append([each for each in batch if each is not None])
            if batch[-1] is None:
                return

    def _append(self, batch: list[Execution]) -> None:
        good = [each for each in batch if _writable(each)]
        if len(good) < len(batch):
            self._drop(len(batch) - len(good), "a field is out of bounds")
        try:
            self._store.append(good)
        except Exception as error:  # noqa: BLE001 - a full disk, say, must not end the recording of what follows
            self._drop(len(good), reason_of(error))

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        telemetry.log.warning("executions.dropped", count=count, reason=reason)


def _record(episode: Episode, place: Place, tool: str, position: int, result: ToolResult, at: float) -> Execution:
    return Execution(
        episode=episode.id,
        position=position,
        action=place.action,
        tool=tool,
        outcome=outcome_of(result),
        at=at,
        ms=result.meta.ms,
        shown=dict(place.shown),
        next_shown=dict(place.next_shown),
        revision=place.revision,
        query=episode.query,
        target=place.target,
    )


def _writable(execution: Execution) -> bool:
    try:
        encode(execution)
    except RecordError:
        return False
    return True
