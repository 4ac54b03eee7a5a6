"""The state of a session: which calls run on it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from toolbus.bus.broker.protocols import Snapshot
from toolbus.bus.worker.service import Session
from toolbus.bus.worker.session_state import SessionState

pytestmark = pytest.mark.anyio


class Basket:
    """A service that keeps snapshots, and the server that has them."""

    id, opens_sessions, restores_sessions, session_lost = "basket", True, True, "restore"

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def open_session(self, session: Session, initial: object) -> list[str]:
        """Begin with nothing."""
        return []

    async def save_session(self, session: Session, state: list[str]) -> list[str]:
        """Write down what there is."""
        return state

    async def load(self, delivery: object) -> None:
        """Have none yet."""

    async def save(self, delivery: object, snapshot: Snapshot) -> bool:
        """Keep one, and note whose effect it has."""
        self.kept.append(snapshot.call)
        return True


def delivery(id: str, attempt: int = 1) -> Any:
    """Return a delivery of an ordered call."""
    request = SimpleNamespace(id=id, state="", ordered=True, initial=None)
    return SimpleNamespace(request=request, run=f"{id}-{attempt}", attempt=attempt, entry=b"1-0")


@pytest.mark.parametrize("done", [True, False])
async def test_a_call_that_comes_back_to_its_worker_does_not_take_effect_twice(done: bool) -> None:
    """Its end was not accepted, and its state is open still; an attempt that is to be tried again runs, and so does the next call."""
    basket: Any = Basket()
    state = SessionState(basket, Session("", "s"), "one")
    first = delivery("one")
    assert await state.begin(first, basket) is None
    state.enter(first)
    assert await state.leave(first, basket, keep=True, done=done)
    assert basket.kept == ["", "one" if done else ""]
    again = await state.begin(delivery("one", 2), basket)
    assert (again is not None and cast("Any", again).code == "answer_lost") == done
    assert await state.begin(delivery("two"), basket) is None
