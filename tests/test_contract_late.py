"""Calls whose time is up: the error says whether a worker took them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from tests.tiers import some
from toolbus import invocation, tool
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.command import ELSEWHERE, REFUSES_ALL, SOON
from toolbus.bus.broker.transport.wire import Wire, pack
from toolbus.bus.client.executor.observers import next_step, observe
from toolbus.bus.values.results import ErrorInfo

pytestmark = pytest.mark.anyio


async def test_the_error_says_whether_a_worker_took_the_call(place: Place) -> None:
    """A model is told to ask for less only when its call ran."""
    begun: list[None] = []

    @tool(service="late", effect="read", replace=True)
    async def linger() -> str:
        """Take a while."""
        begun.append(None)
        await asyncio.sleep(60)
        return ""

    async with place.serving(linger, concurrency=1) as bus:
        await bus.wait_for_tool("linger")
        running = asyncio.create_task(bus.call("linger", timeout=2.0))
        await eventually(lambda: begun)
        queued = await bus.call("linger", timeout=0.3)
        assert queued.error is not None
        assert (queued.error.type, queued.error.code, queued.error.retryable) == ("deadline_exceeded", "not_taken", True)
        assert "no result within 0.3 s: no worker took the call, so it did not run; every worker of 'late' was busy" in queued.error.message
        assert "asking for less does not help" in observe(queued)
        ran = await running
        assert ran.error is not None
        assert (ran.error.type, ran.error.retryable) == ("deadline_exceeded", True)
        assert "did not finish" in ran.error.message
        assert "ask for less" in observe(ran)
        assert len(begun) == 1


@pytest.mark.parametrize("code", some({"MISCONF", "NOREPLICAS", "CLUSTERDOWN"}, sorted(ELSEWHERE | SOON | REFUSES_ALL)))
@pytest.mark.parametrize("key", ["", "key"])
async def test_the_error_says_what_kept_the_call_from_being_published(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: str, key: str
) -> None:
    """A server that refuses the publication until the call's time is over is named with its reason."""

    @tool(service="late", effect="read", replace=True)
    async def soon() -> str:
        """Answer."""
        return ""

    send = Wire.send

    def refused(wire: Wire, args: tuple[Any, ...], *rest: Any, **options: Any) -> None:
        send(wire, args, *rest, **options)
        if args[0] == "EVALSHA" and args[1] in {scripts.PUBLISH.sha, scripts.SHARE.sha}:
            packed = pack(("EVAL", "return redis.error_reply(ARGV[1])", 0, f"{code} not now"))
            # The answer to an earlier try was lost.
            wire._unsent[-1] = wire._unsent[-1]._replace(packed=packed, renew=None, lost=code in REFUSES_ALL)

    async with place.serving(soon) as bus:
        await bus.wait_for_tool("soon")
        monkeypatch.setattr(Wire, "send", refused)
        error = (await bus.call("soon", timeout=0.5, idempotency_key=key)).error
        monkeypatch.setattr(Wire, "send", send)
        assert error is not None
        assert error.type == "deadline_exceeded"
        assert f"{code} not now" in error.message or (code in ELSEWHERE and "can't speak to the server" in error.message), error.message
        assert "waits to be published" in error.message


@pytest.mark.parametrize("why", ["deadline_exceeded", "cancelled", "slow_consumer"])
async def test_a_worker_knows_why_its_caller_gave_a_call_up(place: Place, why: str) -> None:
    """The caller's timer is not taken for the caller's wish, whichever of both timers is first."""
    told: list[ErrorInfo] = []

    @tool(service="late", effect="read", replace=True)
    async def linger() -> str:
        """Take a while, and note why it ends."""
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped = invocation()._run.stopped
            assert stopped is not None
            told.append(stopped)
            raise
        return ""

    begun = asyncio.Event()
    async with place.serving(linger) as bus:
        await bus.wait_for_tool("linger")
        async with bus.stream("linger") as call:
            waiting = asyncio.create_task(call.result())
            await begun.wait()
            if why == "deadline_exceeded":
                call.expire()
            else:
                call.complete_with(ErrorInfo(why))
            await waiting
            await eventually(lambda: told)
    expected = {"deadline_exceeded": ("deadline_exceeded", "not_finished", True), "cancelled": ("cancelled", "", False)}
    [error] = told
    assert (error.type, error.code, error.retryable) == expected.get(why, ("cancelled", why, False))


async def test_a_call_that_waited_most_of_its_time_says_so(place: Place) -> None:
    """It is not the tool that takes too long: asking for less does not help."""

    @tool(service="late", effect="read", replace=True)
    async def linger(seconds: float) -> str:
        """Take a while."""
        begun.set()
        await asyncio.sleep(seconds)
        return ""

    begun = asyncio.Event()
    async with place.serving(linger, concurrency=1) as bus:
        await bus.wait_for_tool("linger")
        first = asyncio.create_task(bus.call("linger", {"seconds": 1.5}))
        await begun.wait()
        async with bus.stream("linger", {"seconds": 60}, timeout=2.5) as call:
            async for _ in call.events():
                pass
            late = await call.result()
        assert (await first).success
    assert late.error is not None
    assert (late.error.type, late.error.code, late.error.retryable) == ("deadline_exceeded", "began_late", True)
    assert "of which it had waited 1." in late.error.message
    assert "asking for less does not help" in observe(late)


def test_the_next_step_after_a_call_that_ran_is_to_ask_for_less() -> None:
    """Its workers are there."""
    assert next_step(ErrorInfo("deadline_exceeded", "not_finished")).startswith("it runs too long: ask for less")
