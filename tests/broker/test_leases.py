"""When a worker beats, and what it makes of late answers."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.lease.thread import Beat, LeaseThread, until_next_beat
from toolbus.bus.broker.registry.registry import Registry


@pytest.mark.parametrize(("took", "rest"), [(0.0, 2.0), (0.5, 1.5), (2.0, 0.0), (7.0, 0.0)])
def test_a_late_answer_leaves_less_time_until_the_next_beat(took: float, rest: float) -> None:
    """The lease runs from when the server heard the last one, so a process that was stopped meanwhile beats at once."""
    assert until_next_beat(100.0, 100.0 + took, lease=6.0) == pytest.approx(rest)


@tool(service="beaten", effect="read")
async def rest() -> str:
    """Do nothing."""
    return "rested"


@pytest.mark.anyio
@pytest.mark.parametrize("early", [True, False], ids=["before it registers", "while it serves"])
async def test_a_beat_from_before_a_pause_does_not_lift_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, early: bool
) -> None:
    """An answer that is late says what was true when it was asked for; the pause is known by then."""
    caplog.set_level(logging.INFO, "toolbus")
    held, let_go, told = threading.Event(), threading.Event(), threading.Event()
    beat, tell, register = LeaseThread._beat, LeaseThread._call, Registry.register

    def late(self: LeaseThread, client: object) -> Beat:
        answer = beat(self, client)  # type: ignore[arg-type]
        held.set()
        assert let_go.wait(10.0)
        return answer

    def telling(self: LeaseThread, *said: Any) -> None:
        tell(self, *said)
        self._loop.call_soon_threadsafe(told.set)

    async def registering(self: Registry, *args: Any) -> Any:
        if early:
            await eventually(held.is_set)
        return await register(self, *args)

    monkeypatch.setattr(Registry, "register", registering)
    monkeypatch.setattr(LeaseThread, "_beat", late)
    monkeypatch.setattr(LeaseThread, "_call", telling)
    async with Admin(place.settings) as admin:
        if early:
            await admin.pause("beaten")
        async with Worker([rest], settings=place.settings):
            await eventually(held.is_set)
            if not early:
                await admin.pause("beaten")
                await eventually(lambda: "service.paused" in caplog.text)
            let_go.set()
            await eventually(told.is_set)
        assert "service.resumed" not in caplog.text
        await admin.resume("beaten")
