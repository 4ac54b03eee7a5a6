"""``BusConnection``: the state of a bus between its opening and its close."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from toolbus.broker import AgentBroker, agent_broker
from toolbus.client.calls.assembly import GAP_SECONDS
from toolbus.client.calls.call import Call
from toolbus.client.tools.catalogue import Catalogue
from toolbus.client.tools.view import ToolView
from toolbus.deadlines import Deadlines
from toolbus.results import ErrorInfo, deadline_exceeded
from toolbus.settings import Settings

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

    def watch_gap(self, call: Call, missing: tuple[str, int]) -> None:
        """Let a call check whether a frame is still missing when a dead worker's run would have been replaced by another.

        Only time in which frames could arrive counts: not that of an event loop that stands still, or of a lost connection.
        """
        self._watch_gap(call, missing, self._gap)

    def _watch_gap(self, call: Call, missing: tuple[str, int], left: float) -> None:
        step = min(left, _GAP_STEP)
        due = time.monotonic() + step

        def look() -> None:
            stood_still = time.monotonic() - due > _GAP_STEP / 2
            still = left if stood_still or not self._reading() else left - step
            if still > 0:
                self._watch_gap(call, missing, still)
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
        self.loop, self.thread, self.forks = asyncio.get_running_loop(), threading.get_ident(), process_forks[0]
        self.deadlines = Deadlines(self.loop)
        self.catalogue = Catalogue(require_approval=settings.require_approval)
        self.tools = ToolView(self.catalogue)
        self.broker: AgentBroker = agent_broker(settings)
        self.agent = self.broker.agent
        self.timers = CallTimers(self.deadlines, settings.lease, lambda: bool(self.broker.statistics().get("connected", 1)))
        self.failure: ErrorInfo | None = None
        self.is_open = False
