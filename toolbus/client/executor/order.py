"""The order of an executor's calls, by service."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

Manner = Literal["alone", "in turn", "beside"]
"""The way in which a call goes with the other calls of its service.

``alone``: it runs after the calls before it have ended, and before those after it begin.
``in turn``: it is published after the calls before it, and may run beside them as far as its caller is concerned.
``beside``: it waits for calls that run alone, and for nothing else.
"""


class Place:
    """A call's place in the order of its service. Whoever takes one leaves it, whatever becomes of the call."""

    __slots__ = ("_admitted", "_lane", "_left", "_published", "_waiter", "in_vain", "manner")

    def __init__(self, lane: _Lane | None, manner: Manner) -> None:
        self.manner = manner
        # Set when an earlier call has found out that what this one was meant for is gone.
        self.in_vain = False
        self._lane = lane
        self._waiter: asyncio.Future[None] | None = None
        self._admitted = lane is None
        self._published = manner != "in turn"
        self._left = False

    async def wait(self) -> None:
        """Wait until the call may begin. A wait that is cancelled keeps the place until it is left."""
        while not (self._admitted or self._left):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def published(self) -> None:
        """Let the next call be published. Returns at once; without effect when repeated."""
        if not self._published and self._lane is not None:
            self._published = True
            if self._admitted and not self._left:
                self._lane.publishing = False
                self._lane.admit()

    def leave(self) -> None:
        """Let the calls go on that wait for this one. Returns at once; without effect when repeated."""
        if self._left or self._lane is None:
            return
        self.published()
        self._left = True
        if self._admitted:
            self._lane.leave(self)
        self._lane.admit()
        self._wake()

    def spoil(self) -> None:
        """Let the calls that wait behind this one be in vain."""
        for place in self._lane.waiting if self._lane is not None else ():
            place.in_vain = True

    def may_go(self, lane: _Lane) -> bool:
        """Return whether the first that waits may go on."""
        if self._left:
            return True
        if self.manner == "alone":
            return not lane.running
        return not lane.alone and not (self.manner == "in turn" and lane.publishing)

    def go(self, lane: _Lane) -> None:
        """Count the call in, unless it was left, and let it begin."""
        if self._left:
            return
        self._admitted = True
        lane.running += 1
        lane.alone = self.manner == "alone"
        lane.publishing = lane.publishing or not self._published
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Lane:
    """The calls of one service: how many run, whether one does so alone, whether one is being published, and those that wait."""

    __slots__ = ("alone", "publishing", "running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.alone = self.publishing = False
        self.waiting: deque[Place] = deque()

    def leave(self, place: Place) -> None:
        """Count a call out that had begun."""
        self.running -= 1
        if place.manner == "alone":
            self.alone = False

    def admit(self) -> None:
        """Let those begin that wait for nothing more."""
        while self.waiting and self.waiting[0].may_go(self):
            self.waiting.popleft().go(self)


class CallOrder:
    """One first-in-first-out order for each service that an executor calls.

    A place is taken at once, without waiting, so the order is that in which ``place`` is called, in one event loop. Whoever takes places
    for several calls takes them all before it waits for any: then no two calls can wait for each other.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}

    def __len__(self) -> int:
        """Return how many calls run or wait."""
        return sum(lane.running + len(lane.waiting) for lane in self._lanes.values())

    def place(self, service: str, manner: Manner) -> Place:
        """Take the next place among the calls of a service; without a service, one that waits for nothing."""
        if not service:
            return Place(None, "beside")
        lane = self._lanes.get(service)
        if lane is None:
            lane = self._lanes[service] = _Lane()
        place = Place(lane, manner)
        lane.waiting.append(place)
        lane.admit()
        return place
