"""The cache: requests that it tells apart, and requests that it never answers."""

from __future__ import annotations

import datetime
import math
import time
from typing import Any, cast

import msgspec
import pytest

from tests.contract import Place
from tests.middleware.cached import echo, render, rows, seen, switch
from toolbus import ConfigurationError, ToolBus, ToolResult, Worker, tool
from toolbus.bus.broker.take.requests import Delivery, Fence, RequestStream
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.envelope import Request
from toolbus.bus.worker.handlers import Handler
from toolbus.bus.worker.handling import MiddlewareCall
from toolbus.bus.worker.invocation import Invocation
from toolbus.middleware import Cache
from toolbus.testing.environment import OwnTallies

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
DECIDES = {"effect", "ordered", "state", "initial"}
"""Whether the call is answered from the cache at all: one of a session that keeps something in its worker is not."""


REQUEST = Request("1", "a", "cached", "rows", "al", "s", effect="read")


async def answered(cache: Cache, request: Request, *, digest: str = "d") -> int:
    """Run a request through the cache, and return how often the handler ran."""
    ran = 0

    async def handle(call: MiddlewareCall) -> ToolResult:
        nonlocal ran
        ran += 1
        return ToolResult.ok("x")

    delivery = Delivery(request, "", b"", 0, 1, time.monotonic() + 60, 0.0, "run", cast("RequestStream", None), Fence(b"", b""))
    handler = Handler(rows, rows, "", None)
    within = MiddlewareCall(delivery, handler, digest, OwnTallies())
    await within.run((cache,), handle, lambda error: pytest.fail(str(error)), lambda: None)
    return ran


def test_every_field_of_a_request_is_classified() -> None:
    """A new field is either seen by handlers, and part of what the cache tells apart, or it is said why it does not count."""
    assert set(Request.__struct_fields__) == SEEN.keys() | UNSEEN.keys() | DECIDES


def test_everything_that_an_invocation_tells_is_classified() -> None:
    """Everything that handlers can ask their invocation for comes from fields that count, or differs from call to call by its nature."""
    told = {name for name, value in vars(Invocation).items() if isinstance(value, property)}
    by_nature = {"id", "session_is_new", "state", "remaining", "cancelled"}
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


@pytest.mark.parametrize("changed", [{"ordered": True}, {"state": "t"}])
async def test_what_a_session_keeps_is_asked_each_time(changed: dict[str, Any]) -> None:
    """The state of a sticky session is in no field, so that no earlier answer is known to be true still."""
    cache, request = Cache(), msgspec.structs.replace(REQUEST, **changed)
    assert [await answered(cache, request) for _ in range(2)] == [1, 1]


async def test_sessions_share_answers_where_that_is_said(place: Place) -> None:
    """``by`` says whose answers may be given to whom."""
    async with Worker([rows], settings=place.settings, middleware=[Cache(by=lambda call: call.user)]), place.bus() as bus:
        await bus.wait_for_tool("rows")
        assert [(await bus.call("rows", user="al", session=each)).output for each in ("a", "b")] == ["al/a/"] * 2


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
async def test_what_json_can_not_say_is_passed_on(odd: dict[str, Any], like: dict[str, Any]) -> None:
    """It is neither answered from what its JSON looks like, nor kept as that."""
    for field in ("arguments", "config", "metadata"):
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
