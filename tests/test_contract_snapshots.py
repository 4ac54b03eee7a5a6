"""Snapshots of sessions' states, over every transport: when one is kept, and when one is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis

from tests.contract import Place
from tests.servers import eventually
from tests.test_contract_lost_sessions import Basket, replaced, told
from toolbus import Retry, Session, ToolBus, invocation, tool
from toolbus.bus.broker.server.keys import Keys, session_digest

pytestmark = pytest.mark.anyio


class Kept(Basket):
    """A basket that outlives its worker, whose snapshots do as the test says."""

    session_lost = "restore"

    def __init__(self, **settings: Any) -> None:
        self.saved: list[list[str]] = []
        self.saving: BaseException | None = None
        self.loading: BaseException | None = None
        self.save = asyncio.Event()
        self.save.set()
        self.clean = asyncio.Event()
        self.clean.set()
        self.attempts: list[int] = []
        super().__init__(**settings)

    async def save_session(self, session: Session, state: list[str]) -> list[str]:
        """Write down what is in it."""
        if self.saving is not None:
            raise self.saving
        self.saved.append(list(state))
        await self.save.wait()
        return state

    async def load_session(self, session: Session, saved: Any) -> list[str]:
        """Fill a basket."""
        failure, self.loading = self.loading, None
        if failure is not None:
            raise failure
        return list(saved)

    async def cleanup(self, session: Session | None = None, state: Any = None) -> None:
        """Take the time that the test wants."""
        await super().cleanup(session, state)
        await self.clean.wait()

    @tool(effect="idempotent")
    async def hold(self, what: str) -> str:
        """Put something in, and hold on."""
        invocation().state.append(what)
        self.attempts.append(invocation().attempt)
        await self.go.wait()
        return " ".join(invocation().state)

    @tool(effect="idempotent", retry=Retry(attempts=3, delay=2.0, jitter=0.0))
    async def insist(self, what: str) -> str:
        """Put something in at the second attempt."""
        self.attempts.append(invocation().attempt)
        if invocation().attempt == 1:
            raise RuntimeError("not now")
        invocation().state.append(what)
        return " ".join(invocation().state)


EXITS = [RuntimeError("away"), asyncio.CancelledError("away"), SystemExit(1)]


async def ready(bus: ToolBus) -> Any:
    """Wait for the basket, and return a view of a session with one thing in it."""
    await bus.wait_for_tool("put")
    view = bus.bind(session="s")
    assert told(await view.call("put", {"what": "a"})) == "a"
    return view


async def test_a_call_beside_another_one_saves_nothing(place: Place) -> None:
    """A snapshot never has the half effect of a call that still runs and may be run again."""
    service = Kept()
    async with place.serving(service) as bus:
        view = await ready(bus)
        service.go.clear()
        holding = asyncio.create_task(view.call("hold", {"what": "b"}))
        await eventually(lambda: service.attempts)
        assert told(await view.call("look")) == "a b"
        assert service.saved == [[], ["a"]]
        service.go.set()
        assert told(await holding) == "a b"
        assert service.saved == [[], ["a"], ["a", "b"]]


@pytest.mark.parametrize("failure", EXITS, ids=repr)
async def test_a_state_that_can_not_be_loaded_is_lost_for_good(place: Place, failure: BaseException) -> None:
    """The loss is told once; the next call begins anew, and the old state never comes back."""
    worker = place.worker(Kept())
    second = Kept(loading=failure)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        async with replaced(place, worker, second):
            said = [told(await view.call("put", {"what": "b"})) for _ in range(3)]
    assert said == ["session_lost", "b", "b b"]
    assert len(second.opened) == 1


@pytest.mark.parametrize("failure", EXITS, ids=repr)
async def test_a_snapshot_that_can_not_be_made_is_forgotten(place: Place, failure: BaseException) -> None:
    """The call succeeds whatever the service raises, and a later loss of the state is told."""
    first = Kept()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        first.saving = failure
        assert told(await view.call("put", {"what": "b"})) == "a b"
        async with replaced(place, worker, Kept()):
            assert [told(await view.call("put", {"what": "c"})) for _ in range(2)] == ["session_lost", "c"]


@pytest.mark.parametrize("during", ["handler", "save"])
@pytest.mark.parametrize("how", ["deadline", "cancelled"])
async def test_a_call_that_is_stopped_leaves_no_old_snapshot(place: Place, during: str, how: str) -> None:
    """Its effect may be in the state and is in no snapshot: the next worker tells of the loss, and does not go on silently."""
    first = Kept()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        (first.go if during == "handler" else first.save).clear()
        call = asyncio.create_task(view.call("hold", {"what": "b"}, timeout=1.5 if how == "deadline" else 60.0))
        await eventually(lambda: first.attempts if during == "handler" else ["a", "b"] in first.saved)
        if how == "cancelled":
            call.cancel()
            await asyncio.wait([call])
        else:
            assert str((await call).error).startswith("deadline_exceeded")
        await eventually(lambda: worker.statistics()["running"] == 0)
        async with replaced(place, worker, Kept()):
            assert [told(await view.call("put", {"what": "c"})) for _ in range(2)] == ["session_lost", "c"]


async def test_a_state_that_outlives_a_stopped_call_is_kept_after_the_next_one(place: Place) -> None:
    """The same worker goes on with it, and its next snapshot has it."""
    first = Kept()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        first.go.clear()
        assert (await view.call("hold", {"what": "b"}, timeout=1.0)).error is not None
        first.go.set()
        assert told(await view.call("put", {"what": "c"})) == "a b c"
        async with replaced(place, worker, Kept()):
            assert told(await view.call("put", {"what": "d"})) == "a b c d"


@pytest.mark.parametrize("looks", [True, False])
async def test_a_call_that_is_in_the_snapshot_does_not_run_again(place: Place, looks: bool) -> None:
    """Whichever call restores the state: the one that took effect before its worker died, or another one that comes first."""
    worker = place.worker(Kept())
    async with worker, place.bus() as bus:
        view = await ready(bus)
        async with replaced(place, worker, Kept()):
            call = view.stream("put", {"what": "b"})
            # As its first worker leaves it that dies after the snapshot and before the end.
            with redis.Redis.from_url(place.settings.url) as server:
                key = Keys(place.settings.namespace).snapshot("basket", session_digest("", "s"))
                assert server.hset(key, mapping={"c": call.id, "d": b'["a","b"]'}) == 0
            if looks:
                assert told(await view.call("look")) == "a b"
            async with call:
                error = (await call.result()).error
            assert error is not None
            assert (error.type, error.code) == ("outcome_unknown", "answer_lost")
            assert told(await view.call("put", {"what": "c"})) == "a b c"


async def test_an_attempt_that_is_tried_again_may_move_to_another_worker(place: Place) -> None:
    """The snapshot after a failed attempt does not say that the call took effect."""
    first = Kept()
    worker = place.worker(first)
    async with worker, place.bus() as bus:
        view = await ready(bus)
        call = asyncio.create_task(view.call("insist", {"what": "b"}, timeout=60.0))
        await eventually(lambda: len(first.saved) == 3)
        async with replaced(place, worker, Kept()):
            assert told(await call) == "a b"


async def test_a_session_that_was_left_goes_on_behind_its_clean_up(place: Place) -> None:
    """A call that comes meanwhile finds the state as it was kept, as one that comes later does."""
    service = Kept()
    worker = place.worker(service, lease=0.7)
    async with worker, place.bus() as other:
        await other.wait_for_tool("put")
        async with place.bus() as bus:
            await ready(bus)
            service.clean.clear()
        await eventually(lambda: service.cleaned)
        call = asyncio.create_task(other.call("put", {"what": "b"}, session="s"))
        await eventually(lambda: worker.statistics()["running"] == 1)
        service.clean.set()
        assert told(await call) == "a b"
    assert len(service.opened) == 1


async def test_a_session_that_was_idle_and_then_closed_begins_anew(place: Place) -> None:
    """A snapshot is not taken up again by whoever closed its session."""
    service = Kept(session_idle=0.2)
    async with place.serving(service) as bus:
        view = await ready(bus)
        await eventually(lambda: service.cleaned)
        await view.close_session()
        assert told(await view.call("put", {"what": "b"})) == "b"


@pytest.mark.parametrize("field", ["t", "c", "d"])
async def test_a_snapshot_of_any_size_is_not_loaded(place: Place, field: str, caplog: pytest.LogCaptureFixture) -> None:
    """One that no worker writes stays at the server, and the loss of the state is told."""
    worker = place.worker(Kept())
    async with worker, place.bus() as bus:
        view = await ready(bus)
        key = Keys(place.settings.namespace).snapshot("basket", session_digest("", "s"))
        with redis.Redis.from_url(place.settings.url) as server:
            assert server.hset(key, field, "7" * 300_000) == 0
        second = Kept()
        async with replaced(place, worker, second):
            assert [told(await view.call("put", {"what": "c"})) for _ in range(2)] == ["session_lost", "c"]
        assert f"its field {field} has 300000 bytes" in caplog.text
