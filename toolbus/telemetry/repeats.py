"""Keep one cause from filling the log: limit repeated events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from toolbus.telemetry.events import EVENTS

ABOUT: Mapping[str, tuple[str, ...]] = {
    "confirmation.unreadable": ("id", "error"),
    "descriptor.invalid": ("key", "error"),
    "descriptor.mended": ("service", "tools", "changes"),
    "registry.unreadable": ("service", "error"),
    "server.no_permission": ("server", "error"),
    "tool.name_taken": ("tool", "service", "holder"),
    "value.unreadable": ("key", "error"),
}
"""Events that are logged once for each combination of these fields, since each further reading would repeat them."""

_EACH = frozenset(
    {
        # A line for each call, request, session or answer, which somebody may look for.
        "call.abandoned", "call.alone", "call.cancelled", "call.crashed", "call.failed", "call.finished", "call.handed_back",
        "cancel.done", "confirmation.asked", "confirmation.settled", "execution.crashed", "execution.failed", "execution.finished",
        "execution.started", "request.buried",
        "session.ended", "session.handed_over", "session.lost", "session.restored", "session.unopened", "session.unrestored",
        # A line for each step in the life of a process, and for each part of its own program.
        "nanoclaw.left_out", "project.unreadable", "service.registered", "service.withdrawn", "supervisor.killing", "supervisor.reloading",
        "supervisor.restarting", "task.given_up", "tool.left_out", "tool.return_ignored", "tool.unresolved_annotation", "tools.refused",
        "tools.undeclared_effect", "worker.close_incomplete",
        "worker.draining", "worker.failed", "worker.grace_ended", "worker.hand_back_failed", "worker.handed_back", "worker.killed",
        "worker.serving", "worker.stopped", "worker.stuck", "worker.unregister_failed",
    }
)  # fmt: skip

BOUNDED = frozenset(EVENTS) - _EACH
"""Events of which at most ``MOST_LINES`` or ``FEWER`` are logged per minute; ``more`` in the next line is the number left out."""

MOST_LINES = 30
FEWER: Mapping[str, int] = {"telemetry.export_failed": 3}
_PERIOD = 60.0
_MOST_REMEMBERED = 8_192


class Repeats:
    """Decides whether an event is logged.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: OrderedDict[tuple[str, ...], None] = OrderedDict()
        # For each event: when its minute began, its lines since then, and how many were left out.
        self._minutes: dict[str, tuple[float, int, int]] = {}

    def left_out(self, name: str, fields: Mapping[str, object]) -> int | None:
        """Return how many lines were left out before this one, or None when this one must be left out, too."""
        if name not in BOUNDED:
            return 0
        about = (name, *(str(fields.get(field)) for field in ABOUT[name])) if name in ABOUT else None
        if about is not None and about in self._told:
            self._told.move_to_end(about)
            return None
        began, lines, missed = self._minutes.get(name, (self._clock(), 0, 0))
        if self._clock() - began > _PERIOD:
            began, lines = self._clock(), 0
        if lines >= FEWER.get(name, MOST_LINES):
            self._minutes[name] = (began, lines, missed + 1)
            return None
        self._minutes[name] = (began, lines + 1, 0)
        if about is not None:
            self._told[about] = None
            if len(self._told) > _MOST_REMEMBERED:
                self._told.popitem(last=False)
        return missed

    def forget(self) -> None:
        """Forget what was logged, so that everything is logged again."""
        self._told.clear()
        self._minutes.clear()


repeats = Repeats()
"""The events that this process has logged."""
