"""Give the calls of a turn their places in the order of the model, in whichever order a framework starts them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.order import Place

# Seconds for which a call that the framework has not started, and may have answered itself, holds up those after it.
UNUSED_SECONDS = 2.0
_MOST_TURNS = 256


class Asked(NamedTuple):
    """A call as a part of its turn.

    Attributes:
        message: the model's message, the same object for each call of the turn.
        calls: the id and the tool's name of each call in it, in order.
        id: the call's own id.
    """

    message: object
    calls: Sequence[tuple[str, str]]
    id: str


class _Turn:
    """The places of one message's calls: those that calls have claimed, and those that are left for them."""

    def __init__(self, executor: ToolExecutor, asked: Asked) -> None:
        # Kept, so that no other object has its id meanwhile.
        self.message = asked.message
        self._free: dict[str, list[Place]] = {}
        self._claimed: set[str] = set()
        for (call, _), place in zip(asked.calls, executor.reserve([name for _, name in asked.calls]), strict=True):
            self._free.setdefault(call, []).append(place)
        self._timer = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self.leave)

    def claim(self, id: str) -> Place | None:
        """Return the place of a call, or None when it has none any more."""
        self._claimed.add(id)
        places = self._free.get(id)
        if not places:
            return None
        place = places.pop(0)
        if not any(self._free.values()):
            self._timer.cancel()
        return place

    def has_claimed(self, id: str) -> bool:
        """Return whether all places of this id are claimed: then the framework runs the turn once more."""
        return id in self._claimed and not self._free.get(id)

    def leave(self) -> None:
        """Let others go on that wait for what was not claimed."""
        self._timer.cancel()
        for places in self._free.values():
            for place in places:
                place.leave()
            places.clear()


class Places:
    """The latest turns of an executor."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    def claim(self, executor: ToolExecutor, asked: Asked) -> Place | None:
        """Return the place of a call, taken with those of the whole turn when its first call came; None for the next one."""
        turn = self._turns.get(id(asked.message))
        if turn is None or turn.has_claimed(asked.id):
            if turn is not None:
                turn.leave()
            turn = self._turns[id(asked.message)] = _Turn(executor, asked)
            self._turns.move_to_end(id(asked.message))
            if len(self._turns) > _MOST_TURNS:
                self._turns.popitem(last=False)[1].leave()
        return turn.claim(asked.id)


_places: WeakKeyDictionary[ToolExecutor, Places] = WeakKeyDictionary()


def places_of(executor: ToolExecutor) -> Places:
    """Return the turns of an executor; call this in its event loop."""
    return _places.setdefault(executor, Places())
