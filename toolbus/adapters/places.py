"""Let the calls of a turn that depend on their order begin in the order of the model, in whichever order a framework starts them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.tools.tool import Tool

# Seconds that a call waits for one before it, which the framework may have answered itself.
PATIENCE = 2.0
_MOST_TURNS = 256


class Place(NamedTuple):
    """A call's place in its turn.

    Attributes:
        message: the model's message, the same object for each call of the turn.
        calls: the id and the tool's name of each call in it, in order.
        id: the call's own id.
    """

    message: object
    calls: Sequence[tuple[str, str]]
    id: str


class _Turn:
    """The calls of one message that have begun, and how often each did."""

    __slots__ = ("begun", "changed", "message")

    def __init__(self, message: object) -> None:
        self.message = message
        self.begun: Counter[str] = Counter()
        self.changed = asyncio.Event()


class Places:
    """The latest turns of an executor."""

    def __init__(self) -> None:
        self._turns: OrderedDict[int, _Turn] = OrderedDict()

    async def take(self, executor: ToolExecutor, place: Place) -> None:
        """Wait until the calls of the turn that this one follows have begun, or it is clear that they will not; then begin.

        What follows at once, without a wait in between, happens before the next call begins.
        """
        turn = self._of(place.message)
        time = turn.begun[place.id] + 1
        before = _before(executor, place)
        try:
            async with asyncio.timeout(PATIENCE):
                while any(turn.begun[other] < time for other in before):
                    turn.changed.clear()
                    await turn.changed.wait()
        except TimeoutError:
            pass
        finally:
            turn.begun[place.id] = time
            turn.changed.set()

    def _of(self, message: object) -> _Turn:
        found = self._turns.get(id(message))
        # The message is kept, so that no other object has its id meanwhile.
        if found is None:
            found = self._turns[id(message)] = _Turn(message)
            if len(self._turns) > _MOST_TURNS:
                self._turns.popitem(last=False)
        return found


_places: WeakKeyDictionary[ToolExecutor, Places] = WeakKeyDictionary()


def places_of(executor: ToolExecutor) -> Places:
    """Return the turns of an executor; call this in its event loop."""
    return _places.setdefault(executor, Places())


def _before(executor: ToolExecutor, place: Place) -> list[str]:
    """Return the ids of the calls before this one whose order matters to it."""
    found: list[str] = []
    own: Tool | None = None
    tools = [(id, executor.find(name)) for id, name in place.calls]
    for id, tool in tools:
        if id == place.id:
            own = tool
            break
        found.append(id)
    else:
        return []
    if own is None:
        return []
    return [id for id, tool in tools[: len(found)] if tool is not None and _are_ordered(executor, tool, own)]


def _are_ordered(executor: ToolExecutor, one: Tool, other: Tool) -> bool:
    if executor.is_sequential(one) or executor.is_sequential(other):
        return True
    service = one.service_descriptor
    return one.service == other.service and service is not None and service.sticky_sessions and bool(executor.session)
