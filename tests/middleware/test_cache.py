"""The cache: requests that it tells apart, requests that it never answers, and changes that make it forget."""

from __future__ import annotations

import asyncio
import datetime
import math
import threading
import time
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ConfigurationError, ErrorInfo, ToolBus, ToolResult, Worker, invocation, tool
from toolbus.broker.memory.tallies import MemoryTallies
from toolbus.broker.protocols import Delivery
from toolbus.descriptors import ToolDescriptor
from toolbus.envelope import Request
from toolbus.middleware import Answers, Cache, ToolCall
from toolbus.results import ErrorType
from toolbus.worker.run.invocation import Invocation
from toolbus.worker.run.middleware import MiddlewareCall
from toolbus.worker.serving.handlers import Handler

pytestmark = pytest.mark.anyio

# Every field of a request: those that a handler sees, each with another value, and the others with the reason why they do not count.
SEEN: dict[str, Any] = {
    "service": "other",
    "tool": "other",
    "user": "other",
    "session": "other",
    "config": {"k": 1},
    "arguments": {"a": 1},
    "metadata": {"k": "v"},
    "idempotency_key": "other",
}
UNSEEN: dict[str, tuple[Any, str]] = {
    "id": ("other", "each call has its own"),
    "agent": ("other", "no handler sees it"),
    "timeout": (5.0, "an answer is an answer however long it may take"),
    "digest": ("other", "what the caller checked against; the publication that runs the call counts"),
    "events": (True, "what the caller wants to hear on the way"),
    "priority": (1, "reserved"),
    "traceparent": ("00-1-1-00", "telemetry"),
    "v": (2, "how it travelled"),
    "shared": (True, "where the answer goes"),
    "confirmed": ("other", "looked at before anything runs, and seen by no handler"),
}
DECIDES = {"effect"}
"""Whether the call is answered from the cache at all."""

power: dict[str, bool] = {}
seen: list[str] = []
late = threading.Event()
switched = threading.Event()
measured = threading.Event()


@tool(service="cached", effect="read")
async def rows() -> str:
    """The rows of this session."""
    seen.append(invocation().session)
    return f"{invocation().user}/{invocation().session}/{invocation().metadata.get('k', '')}"


@tool(service="cached", effect="read")
async def light() -> bool:
    """Return whether the light is on."""
    return power.get("on", False)


@tool(service="cached", effect="idempotent")
async def switch(on: bool) -> str:
    """Switch the light."""
    power["on"] = on
    return "switched"


@tool(service="cached", effect="idempotent", cache=True)
async def render(text: str) -> int:
    """Draw a text, as often as it is really drawn."""
    seen.append(text)
    return len(seen)


@tool(service="cached", effect="once")
def switch_late() -> str:
    """Switch the light on when the test says so, in a thread that nobody can stop."""
    assert late.wait(60)
    power["on"] = True
    switched.set()
    return "switched"


@tool(service="cached", effect="read")
async def echo(n: float | None = None, k: str = "") -> str:
    """Return the arguments."""
    seen.append(k)
    return f"{n} {k}"


@tool(service="cached", effect="read")
async def measure(text: str) -> int:
    """Measure until the test says that it is done."""
    seen.append(text)
    await eventually(measured.is_set, timeout=60)
    return len(seen)


@tool(service="cached", effect="read", cache=False)
async def clock() -> int:
    """Something else each time."""
    seen.append("clock")
    return len(seen)


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    """Forget what earlier tests did."""
    power.clear()
    seen.clear()
    late.clear()
    switched.clear()
    measured.clear()


REQUEST = Request("1", "a", "cached", "rows", "al", "s", effect="read")


async def answered(cache: Cache, request: Request, *, digest: str = "d") -> int:
    """Run a request through the cache, and return how often the handler ran."""
    ran = 0

    async def handle(call: MiddlewareCall) -> ToolResult:
        nonlocal ran
        ran += 1
        return ToolResult.ok("x")

    delivery = Delivery(request, "", b"", 0, 1, time.monotonic() + 60, 0.0, "run")
    handler = Handler(rows, rows, "", None)
    within = MiddlewareCall(delivery, handler, digest, MemoryTallies())
    await within.run((cache,), handle, lambda error: pytest.fail(str(error)), lambda: None)
    return ran


def test_every_field_of_a_request_is_classified() -> None:
    """A new field is either seen by handlers, and part of what the cache tells apart, or it is said why it does not count."""
    assert set(Request.__struct_fields__) == SEEN.keys() | UNSEEN.keys() | DECIDES


def test_everything_that_an_invocation_tells_is_classified() -> None:
    """Everything that handlers can ask their invocation for comes from fields that count, or differs from call to call by its nature."""
    told = {name for name, value in vars(Invocation).items() if isinstance(value, property)}
    by_nature = {"id", "session_is_new", "remaining", "cancelled"}
    assert told == (SEEN.keys() - {"config", "arguments"}) | by_nature


@pytest.mark.parametrize("field", SEEN)
async def test_what_handlers_see_is_told_apart(field: str) -> None:
    """Calls that differ in it are both run; equal ones are not."""
    cache, other = Cache(), msgspec.structs.replace(REQUEST, **{field: SEEN[field]})
    assert [await answered(cache, each) for each in (REQUEST, other, REQUEST, other)] == [1, 1, 0, 0]


@pytest.mark.parametrize("field", UNSEEN)
async def test_what_handlers_do_not_see_does_not_count(field: str) -> None:
    """Calls that differ in it alone share an answer."""
    cache, other = Cache(), msgspec.structs.replace(REQUEST, **{field: UNSEEN[field][0]})
    assert [await answered(cache, each) for each in (REQUEST, other)] == [1, 0]


async def test_publications_are_told_apart() -> None:
    """An answer of one revision of the service is not given for another revision."""
    cache = Cache()
    assert [await answered(cache, REQUEST, digest=each) for each in ("d", "e", "d")] == [1, 1, 0]


@pytest.mark.parametrize("effect", ["", "idempotent", "once"])
async def test_only_reading_is_answered(effect: str) -> None:
    """Other effects are run each time."""
    cache, request = Cache(), msgspec.structs.replace(REQUEST, effect=effect)
    assert [await answered(cache, request) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_nobody_reads_what_another_session_was_told(place: Place, side: str) -> None:
    """Users, their sessions and metadata have answers of their own, in a worker and at a caller, and are told again what they were told."""
    cache = Cache()
    worker = Worker([rows], settings=place.settings, middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("rows")
        told = [
            (await bus.call("rows", user=user, session=session, metadata={"k": key})).output
            for _ in range(2)
            for user in ("al", "bo")
            for session in ("a", "b")
            for key in ("", "k")
        ]
    expected = [f"{user}/{session}/{key}" for user in ("al", "bo") for session in ("a", "b") for key in ("", "k")]
    assert told == expected * 2
    assert len(seen) == len(expected)


async def test_sessions_share_answers_where_that_is_said(place: Place) -> None:
    """``by`` says whose answers may be given to whom."""
    async with Worker([rows], settings=place.settings, middleware=[Cache(by=lambda call: call.user)]), place.bus() as bus:
        await bus.wait_for_tool("rows")
        assert [(await bus.call("rows", user="al", session=each)).output for each in ("a", "b")] == ["al/a/"] * 2


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_a_switch_is_switched_each_time_and_seen_at_once(place: Place, side: str) -> None:
    """An idempotent call is never answered from an earlier one, and what is read after it is read anew."""
    cache = Cache()
    worker = Worker([light], settings=place.settings, middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("light")
        for on in (True, False, True):
            assert (await bus.call("switch", {"on": on})).output == "switched"
            assert power["on"] is on
            assert [(await bus.call("light")).data for _ in range(2)] == [on, on]


async def test_a_reading_that_a_change_overtook_is_not_kept() -> None:
    """It began before the change ended, so it may tell of the time before."""
    cache, reading, go = Cache(), _call("light", effect="read"), asyncio.Event()

    async def slow(call: ToolCall) -> ToolResult:
        await go.wait()
        return ToolResult.ok("off")

    async def quick(call: ToolCall) -> ToolResult:
        return ToolResult.ok("on")

    early = asyncio.create_task(cache(reading, slow))
    await asyncio.sleep(0)
    await cache(_call("switch", effect="idempotent"), quick)
    go.set()
    assert (await early).data == "off"
    assert (await cache(reading, quick)).data == "on"


@pytest.mark.parametrize("raises", [asyncio.CancelledError, RuntimeError])
async def test_a_change_that_did_not_end_well_counts_as_one(raises: type[BaseException]) -> None:
    """A call that was cancelled, or failed, may have changed something all the same."""
    cache, reading = Cache(), _call("light", effect="read")
    answers = iter(("before", "after"))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(answers))

    async def fail(call: ToolCall) -> ToolResult:
        raise raises

    assert (await cache(reading, read)).data == "before"
    with pytest.raises(raises):
        await cache(_call("switch"), fail)
    assert (await cache(reading, read)).data == "after"


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_a_change_that_comes_after_its_call_has_ended_is_seen(place: Place, side: str) -> None:
    """A thread that outlives its call's timeout may write later, so what was read between is not told again."""
    cache = Cache()
    worker = Worker([light], settings=place.settings, middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("light")
        try:
            error = (await bus.call("switch_late", timeout=0.5)).error
            assert error is not None
            assert error.type == "outcome_unknown"
            assert (await bus.call("light")).data is False
        finally:
            late.set()
        assert await asyncio.to_thread(switched.wait, 60)
        assert (await bus.call("light")).data is True


@pytest.mark.parametrize("type_", get_args(ErrorType))
async def test_nothing_is_kept_while_a_change_may_go_on(monkeypatch: pytest.MonkeyPatch, type_: ErrorType) -> None:
    """After a change whose handler may go on its service, and no other, is read anew for as long as an answer is kept."""
    clock_ = _Clock(monkeypatch)
    cache, runs = Cache(ttl=60), iter(range(100))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(runs))

    async def fail(call: ToolCall) -> ToolResult:
        return ToolResult.fail(ErrorInfo(type_))

    async def differ(service: str = "cached") -> bool:
        first, second = [(await cache(_call("light", effect="read", service=service), read)).data for _ in range(2)]
        return bool(first != second)

    goes_on = type_ in {"outcome_unknown", "deadline_exceeded", "cancelled", "slow_consumer"}
    await cache(_call("switch"), fail)
    clock_.now += 59
    assert await differ() is goes_on
    await cache(_call("switch"), read)
    assert await differ() is goes_on
    assert not await differ("another")
    clock_.now += 1.5
    assert not await differ()


@pytest.mark.parametrize("raises", [asyncio.CancelledError, RuntimeError])
async def test_nothing_is_kept_after_a_change_that_was_given_up(monkeypatch: pytest.MonkeyPatch, raises: type[BaseException]) -> None:
    """A call that was cancelled from outside, or broke, may go on; with too many of them, all services are read anew."""
    monkeypatch.setattr("toolbus.middleware.invalidation._MOST_CHANGED", 3)
    clock_ = _Clock(monkeypatch)
    cache, runs = Cache(ttl=60), iter(range(100))

    async def read(call: ToolCall) -> ToolResult:
        return ToolResult.ok(next(runs))

    async def fail(call: ToolCall) -> ToolResult:
        raise raises

    async def told() -> list[Any]:
        return [(await cache(_call("light", effect="read", service="service 0"), read)).data for _ in range(2)]

    for number in range(5):
        with pytest.raises(raises):
            await cache(_call("switch", service=f"service {number}"), fail)
        first, second = await told()
        assert first != second
    clock_.now += 60.5
    first, second = await told()
    assert first == second


@pytest.mark.parametrize(
    ("odd", "like"),
    [
        ({"n": math.nan}, {"n": None}),
        ({"n": -math.inf}, {"n": None}),
        ({"k": b"x"}, {"k": "eA=="}),
        ({"k": [{"deep": (bytearray(b"x"),)}]}, {"k": [{"deep": ["eA=="]}]}),
        ({"k": {1}}, {"k": [1]}),
        ({"k": datetime.date(2026, 1, 2)}, {"k": "2026-01-02"}),
    ],
)
@pytest.mark.parametrize("field", ["arguments", "config", "metadata"])
async def test_what_json_can_not_say_is_passed_on(odd: dict[str, Any], like: dict[str, Any], field: str) -> None:
    """It is neither answered from what its JSON looks like, nor kept as that."""
    cache = Cache()
    requests = [msgspec.structs.replace(REQUEST, **{field: each}) for each in (like, odd, odd, like)]
    assert [await answered(cache, each) for each in requests] == [1, 1, 1, 0]


async def test_arguments_that_are_refused_are_refused_beside_a_cache(place: Place) -> None:
    """A cache at the caller does not answer what validation would refuse."""
    async with Worker([echo], settings=place.settings), ToolBus(settings=place.settings, middleware=[Cache()]) as bus:
        await bus.wait_for_tool("echo")
        for valid, invalid in (({"n": None}, {"n": math.nan}), ({"k": "eA=="}, {"k": b"x"})):
            assert (await bus.call("echo", valid)).error is None
            error = (await bus.call("echo", invalid)).error
            assert error is not None
            assert error.type == "invalid_arguments"
    assert seen == ["", "eA=="]


async def test_many_services_that_change_are_forgotten_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The knowledge of changes is bounded; beyond it nothing stale comes back."""
    monkeypatch.setattr("toolbus.middleware.invalidation._MOST_CHANGED", 3)
    cache, runs = Cache(), 0

    async def read(call: ToolCall) -> ToolResult:
        nonlocal runs
        runs += 1
        return ToolResult.ok(str(runs))

    for number in range(10):
        told = (await cache(_call("light", effect="read"), read)).data
        await cache(_call("switch", service=f"service {number}"), read)
        again = (await cache(_call("light", effect="read"), read)).data
        await cache(_call("switch"), read)
        assert (await cache(_call("light", effect="read"), read)).data not in {told, again}


async def test_a_tool_says_whether_it_may_be_answered(place: Place) -> None:
    """``cache=True`` lets an idempotent tool be answered, ``cache=False`` keeps one that reads from it; `once` work can't say so."""
    async with Worker([render], settings=place.settings, middleware=[Cache()]), place.bus() as bus:
        tool_ = await bus.wait_for_tool("render")
        assert tool_.descriptor.extensions == {"cache": True}
        first = (await bus.call("render", {"text": "a"})).data
        assert (await bus.call("render", {"text": "a"})).data == first
        assert (await bus.call("clock")).data != (await bus.call("clock")).data
    with pytest.raises(ConfigurationError, match="once"):
        tool("never", service="never", effect="once", cache=True)(switch)


@pytest.mark.parametrize(
    ("effect", "declared", "cacheable"),
    [
        ("read", {}, True),
        ("idempotent", {}, False),
        ("", {"cache": True}, True),
        ("once", {"cache": True}, False),
        ("read", {"cache": 1}, True),
    ],
)
def test_a_descriptor_says_whether_it_may_be_answered(effect: Any, declared: dict[str, Any], cacheable: bool) -> None:
    """``x-toolbus`` has the last word, but for `once` work, and only a boolean is one."""
    assert ToolDescriptor("t", "T.", "s", effect=effect, extensions=declared).cacheable is cacheable


@pytest.mark.parametrize("side", ["worker", "bus"])
async def test_equal_calls_at_once_run_once(place: Place, side: str) -> None:
    """Fifty of them are one run, and each has the answer."""
    cache = Cache()
    worker = Worker([rows], settings=place.with_(concurrency=64), middleware=[cache] if side == "worker" else [])
    async with worker, ToolBus(settings=place.settings, middleware=[cache] if side == "bus" else []) as bus:
        await bus.wait_for_tool("measure")
        calls = [asyncio.create_task(bus.call("measure", {"text": "a"})) for _ in range(50)]
        await eventually(lambda: len(seen) == 1)
        if side == "worker":
            await eventually(lambda: worker.statistics()["running"] == 50)
        measured.set()
        assert {(await each).data for each in calls} == {1}
        assert (await bus.call("measure", {"text": "b"})).data == 2


async def test_a_call_that_waits_for_an_equal_one_keeps_its_own_timeout(place: Place) -> None:
    """It ends when its own time is up, and the one that runs goes on."""
    async with Worker([rows], settings=place.settings), ToolBus(settings=place.settings, middleware=[Cache()]) as bus:
        await bus.wait_for_tool("measure")
        first = asyncio.create_task(bus.call("measure", {"text": "a"}, timeout=30))
        await eventually(lambda: len(seen) == 1)
        error = (await bus.call("measure", {"text": "a"}, timeout=0.3)).error
        assert error is not None
        assert (error.type, error.message) == ("deadline_exceeded", "no result within 0.3 s")
        measured.set()
        assert (await first).data == 1


async def test_when_the_call_that_runs_is_given_up_one_that_waited_runs() -> None:
    """Cancelling one call cancels no other, and those that wait still run once."""
    cache, reading, begun, go = Cache(), _call("light", effect="read"), 0, asyncio.Event()

    async def slow(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        await go.wait()
        return ToolResult.ok(begun)

    calls = [asyncio.create_task(cache(reading, slow)) for _ in range(4)]
    await eventually(lambda: begun == 1)
    calls[0].cancel()
    await eventually(lambda: begun == 2)
    calls[2].cancel()
    go.set()
    told = await asyncio.gather(*calls, return_exceptions=True)
    assert [each.data if isinstance(each, ToolResult) else type(each) for each in told] == [
        asyncio.CancelledError,
        2,
        asyncio.CancelledError,
        2,
    ]


@pytest.mark.parametrize("ends", ["error", "exception", "no JSON"])
async def test_what_can_not_be_shared_is_run_by_each(ends: str) -> None:
    """A failure is the failure of one call, so those that waited for it run side by side."""
    cache, reading, begun, go = Cache(), _call("light", effect="read"), 0, asyncio.Event()

    async def fail(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        if begun > 1:
            return ToolResult.ok(begun)
        await go.wait()
        if ends == "exception":
            raise RuntimeError("down")
        return ToolResult.ok(object()) if ends == "no JSON" else ToolResult.fail(ErrorInfo("tool_error"))

    calls = [asyncio.create_task(cache(reading, fail)) for _ in range(4)]
    await eventually(lambda: begun == 1)
    go.set()
    first, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert begun == 4
    assert isinstance(first, RuntimeError if ends == "exception" else ToolResult)
    assert sorted(each.data for each in others if isinstance(each, ToolResult)) == [2, 3, 4]


async def test_an_answer_too_large_to_keep_is_shared_with_those_who_wait() -> None:
    """It exists, so nobody has to compute it again at the same time."""
    cache, reading, begun, go = Cache(most_bytes=1000), _call("light", effect="read"), 0, asyncio.Event()

    async def large(call: ToolCall) -> ToolResult:
        nonlocal begun
        begun += 1
        await go.wait()
        return ToolResult.ok("x" * 5000)

    calls = [asyncio.create_task(cache(reading, large)) for _ in range(3)]
    await eventually(lambda: begun == 1)
    go.set()
    assert {len((await each).data) for each in calls} == {5000}
    assert (begun, cache.statistics()) == (1, {"kept": 0, "bytes": 0})


async def test_a_call_after_a_change_does_not_join_one_from_before() -> None:
    """A call that runs since before the change may tell of the time before it."""
    cache, reading, answers, go = Cache(), _call("light", effect="read"), iter(("before", "after")), asyncio.Event()
    begun = asyncio.Event()

    async def read(call: ToolCall) -> ToolResult:
        answer = next(answers)
        if answer == "before":
            begun.set()
            await go.wait()
        return ToolResult.ok(answer)

    async def change(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    early = asyncio.create_task(cache(reading, read))
    await begun.wait()
    await cache(_call("switch"), change)
    assert (await cache(reading, read)).data == "after"
    go.set()
    assert (await early).data == "before"
    assert (await cache(reading, read)).data == "after"


CALLS = [(service, name, text, user) for service in ("s1", "s2") for name in ("t1", "t2") for text in ("a", "b") for user in ("al", "bo")]


@pytest.mark.parametrize("how", ["invalidate", "a call"])
@pytest.mark.parametrize("by", [None, "al"])
@pytest.mark.parametrize("arguments", [None, {"text": "a"}])
@pytest.mark.parametrize("name", ["", "t1"])
@pytest.mark.parametrize("service", ["", "s1"])
async def test_only_the_answers_that_changed_are_forgotten(service: str, name: str, arguments: Any, by: str | None, how: str) -> None:
    """They are told by service, tool, arguments and whose they are; what is not told is any."""
    gone = Answers(service=service, tool=name, arguments=arguments, by=by)
    cache, ran = Cache(by=lambda call: call.user, invalidates=lambda call: [gone]), set()

    async def told(*which: str) -> None:
        async def read(call: ToolCall) -> ToolResult:
            ran.add(which)
            return ToolResult.ok()

        of, tool_name, text, user = which
        call = msgspec.structs.replace(_call(tool_name, effect="read", service=of), arguments={"text": text}, user=user)
        await cache(call, read)

    async def change(call: ToolCall) -> ToolResult:
        return ToolResult.ok()

    for each in CALLS:
        await told(*each)
    assert ran == set(CALLS)
    ran.clear()
    if how == "a call":
        await cache(_call("switch", service="s9"), change)
    else:
        cache.invalidate(name, arguments, service=service, by=by)
    for each in CALLS:
        await told(*each)
    assert ran == {
        each
        for each in CALLS
        if each[0] == (service or each[0])
        and each[1] == (name or each[1])
        and each[2] == (arguments or {"text": each[2]})["text"]
        and each[3] == (by or each[3])
    }


async def test_a_wrong_change_fails_before_anything_is_changed() -> None:
    """Afterwards it would be too late to say so."""
    cache = Cache(invalidates=lambda call: [Answers(arguments={"odd": object()})])

    async def change(call: ToolCall) -> ToolResult:
        pytest.fail("it ran")

    with pytest.raises(TypeError):
        await cache(_call("switch"), change)
    with pytest.raises(ConfigurationError, match="JSON"):
        cache.invalidate("light", {"odd": object()})


class _Clock:
    """The cache's time, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("toolbus.middleware.cache.time", SimpleNamespace(monotonic=lambda: self.now))


def _call(name: str, effect: str = "", service: str = "cached") -> ToolCall:
    return ToolCall(
        id="1", tool=name, service=service, user="", session="", arguments={}, config={}, effect=effect, side="handler", attempt=1,
        tallies=MemoryTallies(),
    )  # fmt: skip
