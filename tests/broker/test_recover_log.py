"""Recovery, burials, registrations and sessions as an operator sees them: log events with their fields, and counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.conftest import Observed
from tests.broker.fakes import FENCE, KEYS, Bench
from tests.broker.test_ownership import Owning
from tests.broker.test_recover import Recovery
from tests.broker.test_registration import PUBLICATION, Registering
from tests.servers import eventually
from toolbus.bus.broker.lease.dead_letters import bury
from toolbus.bus.broker.lease.recover import KeyRepair
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

GONE = BrokerUnavailable("gone")


@pytest.fixture
async def recovery() -> AsyncIterator[Recovery]:
    """A worker that holds nothing."""
    made = Recovery()
    yield made
    made.bench.forget()


@pytest.fixture
async def owning() -> AsyncIterator[Owning]:
    """A worker that has beaten."""
    made = Owning()
    made.beat()
    yield made
    made.bench.forget()


@pytest.fixture
async def registering() -> Registering:
    """A worker that has registered."""
    made = Registering()
    await made.registration.register(PUBLICATION)
    return made


async def test_a_recovery_is_a_warning_and_is_counted(recovery: Recovery, observed: Observed) -> None:
    """A worker has died, which takes somebody's notice; what was handed back is normal operation."""
    recovery.entries = [recovery.entry(1), recovery.entry(2)]
    await recovery.upkeep.recover()
    recovery.entries = [recovery.entry(3, counted=0)]
    await recovery.upkeep.take_back(recovery.bench.stream)
    assert observed.events == [
        {"level": "WARNING", "event": "requests.recovered", "service": "pool", "calls": 2},
        {"level": "INFO", "event": "requests.taken_back", "service": "pool", "calls": 1},
    ]
    assert observed.counted == {"toolbus.reclaimed": [({"messaging.destination.name": "pool"}, 3)]}


@pytest.mark.parametrize("step", ["turn", "recover", "take_back", "reap_postponed"])
async def test_upkeep_that_fails_says_why(recovery: Recovery, observed: Observed, step: str) -> None:
    """The next turn tries again, so it is a warning."""
    recovery.bench.link.answers["reap"] = GONE
    match step:
        case "turn":
            await recovery.upkeep.turn(once_a_lease=True)
        case "recover":
            await recovery.upkeep.recover()
        case "take_back":
            await recovery.upkeep.take_back(recovery.bench.stream)
        case _:
            recovery.bench.listener.slots = 0
            await recovery.upkeep.recover()
            recovery.bench.listener.slots = 1
            await recovery.upkeep.reap_postponed()
    assert observed.events == [{"level": "WARNING", "event": "upkeep.failed", "error": "gone"}]


async def test_an_abandoned_call_is_named(recovery: Recovery, observed: Observed) -> None:
    """It ended without having run, which its caller is not there to be told."""
    recovery.missing = {KEYS.replies("agent")}
    old = recovery.bench.hold(b"94000-0")
    await recovery.abandoned.without([old])
    assert observed.events == [{"level": "INFO", "event": "call.abandoned", "id": "call-94000-0", "tool": "tool", "queued_ms": 6000}]


async def test_a_repaired_key_is_an_error_with_its_types(observed: Observed) -> None:
    """Something else writes to the namespace; a lost connection is only a warning."""
    bench, looked = Bench(), asyncio.Event()

    def mended(keys: Any, args: Any) -> Any:
        looked.set()
        return [3, b"set", 1, b"group"]

    bench.link.answers["mend"] = mended
    repair = KeyRepair(bench.as_link, lambda: [{"one": "stream", "two": "hash", "three": "zset"}], lambda: None)
    running = asyncio.ensure_future(repair.run())
    repair.request()
    await looked.wait()
    await eventually(lambda: len(observed.events) > 1)
    running.cancel()
    assert observed.events == [
        {"level": "ERROR", "event": "key.wrong_type", "key": "three", "found": "set", "wanted": "zset"},
        {"level": "ERROR", "event": "key.group_moved", "key": "one"},
    ]


async def test_a_repair_that_fails_says_why(observed: Observed) -> None:
    """It is asked for again by what fails next."""
    bench = Bench()
    bench.link.answers["mend"] = GONE
    repair = KeyRepair(bench.as_link, lambda: [{}], lambda: None)
    running = asyncio.ensure_future(repair.run())
    repair.request()
    await eventually(lambda: observed.events)
    running.cancel()
    assert observed.events == [{"level": "WARNING", "event": "upkeep.failed", "error": "gone"}]


@pytest.mark.parametrize("answer", [1, ReplyError("OOM no memory")])
async def test_a_burial_is_counted_or_its_refusal_told(observed: Observed, answer: Any) -> None:
    """An entry that could not be set aside is not held either: another worker tries."""
    bench = Bench()
    held = bench.hold()
    bench.link.answers["bury"] = answer
    bury(bench.as_link, bench.stream, held.entry, FENCE, "failed", 1, "it broke", b"{}", "", b"")
    assert bench.stream.held == {}
    if answer == 1:
        assert observed.events == []
        assert observed.counted == {"toolbus.dead_letters": [({"messaging.destination.name": "pool"}, 1)]}
    else:
        assert observed.events == [{"level": "ERROR", "event": "bury.refused", "service": "pool", "entry": "1-0", "error": "OOM no memory"}]
        assert observed.counted == {}


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        ([b"ok", 4, *FENCE], {"level": "WARNING", "event": "service.registered_again", "service": "pool"}),
        (GONE, {"level": "WARNING", "event": "service.register_failed", "service": "pool", "error": "gone"}),
        ([b"refused", b"tool/echo", b"another"], {"level": "ERROR", "event": "service.refused", "service": "pool"}),
    ],
)
async def test_a_registration_that_was_lost_is_told(
    registering: Registering, observed: Observed, answer: Any, event: dict[str, Any]
) -> None:
    """A refusal is an error, since it lasts: its text names the owner."""
    registering.bench.link.answers |= {"register": lambda keys, args: answer, "HMGET": [None], "TIME": [b"1", b"0"]}
    await registering.registration.register_again(["pool"])
    [told] = observed.events
    if event["event"] == "service.refused":
        assert "tool/echo belongs to 'another'" in told.pop("error")
    assert told == event


async def test_sessions_that_could_not_be_settled_are_told(owning: Owning, observed: Observed) -> None:
    """With the number of calls that were dropped, and why."""
    owning.bench.link.answers["own"] = GONE
    await owning.settle(owning.take(), owning.take("other"))
    assert observed.events == [{"level": "WARNING", "event": "sessions.unsettled", "service": "pool", "calls": 2, "error": "gone"}]


async def test_a_server_that_does_not_answer_is_waited_for_only_so_long(
    owning: Owning, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the calls are dropped, and the reason is not left empty."""
    monkeypatch.setattr("toolbus.bus.broker.take.sessions._PATIENCE", 0.01)

    async def never(*args: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(owning.bench.link, "execute_script", never)
    call = owning.take()
    async with asyncio.timeout(10.0):
        assert await owning.settle(call) == []
    assert observed.events[0]["error"] == "the server did not answer"


async def test_a_call_that_is_handed_over_is_named_for_developers(owning: Owning, observed: Observed) -> None:
    """It happens all the time where sessions move."""
    owning.verdicts = [b"moved"]
    await owning.settle(owning.take())
    assert observed.events == [{"level": "DEBUG", "event": "session.handed_over", "service": "pool", "id": "call-1-0"}]
