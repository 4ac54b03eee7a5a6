"""A person's word from anywhere: confirmation requests that any process answers, over every transport."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place, first_of, withdrawn
from tests.servers import eventually
from toolbus import ToolBus, ToolResult, ToolService, tool
from toolbus.bus.broker.agent import AgentBroker
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.executor.observers import Confirming
from toolbus.bus.values.canonical import own_digest
from toolbus.bus.values.confirmations import ConfirmationAnswer, digest_of
from toolbus.bus.values.results import ConfirmationClosed

pytestmark = pytest.mark.anyio


@tool(service="careful", effect="once", confirm=True, timeout=5)
async def erase(rows: int, note: str = "") -> str:
    """Erase rows."""
    return f"erased {rows}"


def keys_like(place: Place, pattern: str) -> list[str]:
    """Return the namespace's keys that match a pattern."""
    with redis.Redis.from_url(place.settings.url, decode_responses=True) as client:
        return sorted(client.scan_iter(match=f"tb:{{{place.settings.namespace}}}:{pattern}", count=1000))


async def test_another_process_allows(place: Place) -> None:
    """A call of a tool that declares `confirm` waits in the namespace, says what it is about, and runs when another bus allows it."""
    async with place.serving(erase) as bus, place.bus() as other:
        executor = bus.executor(user="alice", session="s1", timeout=1.0)
        call = asyncio.create_task(executor.execute("erase", {"rows": 12, "note": "\u202eold"}))
        request = await first_of(other)
        assert (request.tool, request.service, request.user, request.session, request.asker) == ("erase", "careful", "alice", "s1", "agent")
        assert json.loads(request.arguments) == {"rows": 12, "note": "\u202eold"}
        assert str(request).startswith("Allow erase for alice?\n  Erase rows.\n  This tool takes effect each time it runs.\n  Arguments: {")
        assert "\u202e" not in str(request)
        assert 290 < request.expires_at - request.asked_at <= 300
        assert (await other.confirmations.get(request.id)) == request
        assert await other.confirmations.pending(user="bob") == []
        # Longer than the tool's own time: waiting does not count.
        asked = time.monotonic()
        await eventually(lambda: time.monotonic() > asked + 1.1)
        await other.confirmations.allow(request.id, "go ahead", by="bob")
        assert (await call).output == "erased 12"
        assert await other.confirmations.pending() == []


LONG = {"rows": 12, "note": "", "memo": "m" * 12_345, "account": "DE02", "amount": 99_999, "footer": "f" * 9_876}


@tool(service="careful-too", effect="once", confirm=True)
async def transfer(rows: int, memo: str, account: str, amount: int, footer: str, note: str = "") -> str:
    """Transfer an amount."""
    return f"{len(memo)} {account} {amount} {len(footer)}"


async def test_an_approver_sees_every_argument(place: Place) -> None:
    """Between long texts account and amount are there whole; the rest can be had, and all of it is what the digest is of."""
    async with place.serving(transfer) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor(user="alice", session="s").execute("transfer", LONG))
        request = await first_of(other)
        assert (request.shortened, request.whole) == (True, "")
        for line in ('"account": "DE02",', '"amount": 99999,'):
            assert f"\n    {line}\n" in str(request)
        assert "(12,345 characters, shortened)" in str(request)
        assert f"toolbus confirm show {request.id} --full" in str(request)
        whole = await other.confirmations.get(request.id)
        assert json.loads(whole.whole) == LONG
        assert "m" * 12_345 in whole.text(full=True)
        assert "shortened" not in whole.text(full=True)
        assert digest_of("agent", "careful-too", "transfer", "alice", "s", "", json.loads(whole.whole)) == request.digest
        await other.confirmations.allow(request.id, digest=request.digest)
        assert (await call).output == "12345 DE02 99999 9876"


@pytest.mark.parametrize("digest", ["", "0" * 64])
async def test_a_permission_is_for_what_was_shown(place: Place, digest: str) -> None:
    """An answer that allows something else, or does not say what, allows nothing; a refusal needs no digest."""
    async with place.serving(erase) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        request = await first_of(other)
        await other.shared_confirmations.answer(request.id, ConfirmationAnswer(True, by="bob", digest=digest))
        error = (await call).error
        assert error is not None
        assert (error.type, error.code) == ("forbidden", "denied")
        assert "the permission names" in error.message
        assert request.digest[:16] in error.message


async def test_what_nobody_can_be_shown_is_not_asked(place: Place) -> None:
    """More keys than a person can read, and more than travels, are refused before anybody is asked."""

    class OpenEnded(ToolService):
        """A tool that takes whatever it is given."""

        id = "open-ended"
        effect = "once"
        tools = [{"name": "open-ended", "description": "Take anything", "confirm": True, "arguments": []}]  # noqa: RUF012 - as users write it

        async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
            """Take it."""
            return len(arguments)

    async with place.serving(OpenEnded) as bus, place.bus() as other:
        executor = bus.executor(confirm_timeout=30)
        for arguments in ({f"key{number}": number for number in range(5_000)}, {"v": "x" * bus.settings.max_request}):
            error = (await executor.execute("open-ended", arguments)).error
            assert error is not None
            assert (error.type, error.code) == ("invalid_arguments", "unreadable")
            assert await other.confirmations.pending() == []
        nested = asyncio.create_task(executor.execute("open-ended", {"v": arguments["v"][:200_000], "w": 1}))
        assert (await other.confirmations.get((await first_of(other)).id)).whole.startswith('{"v":"xxx')
        nested.cancel()


@pytest.mark.parametrize("hostile", ["al\nAllow erase for bob?", "al\r\x1b[2J\u202e", "al\u2028x", "\x9b31m", "a" * 5_000])
async def test_no_field_forges_another_request(place: Place, hostile: str) -> None:
    """A user or session whose name ends the line, commands the terminal or is endless stays in its line, and is answered like others."""
    async with place.serving(erase) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor(user=hostile, session=hostile).execute("erase", {"rows": 1, "note": hostile}))
        request = await first_of(other)
        lines = str(request).split("\n")
        assert lines[0].startswith("Allow erase for ")
        assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
        assert lines[0].isprintable()
        assert len(lines[0]) < 400
        await other.confirmations.allow(request.id, by="b\no\x1bb")
        assert (await call).success
        with pytest.raises(ConfirmationClosed) as late:
            await other.confirmations.allow(request.id)
        assert str(late.value).isprintable()


# The digest that an agent of an earlier release makes of a whole number that is a float.
_FORMERLY = own_digest(("agent", "careful", "erase", "alice", "", "", {"rows": 1.0}), 32)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"arguments": {"rows": 2}}, "unconfirmed"), ({"user": "bob"}, "unconfirmed"), ({"digest": "another"}, "other_revision"), ({}, ""),
        ({"arguments": {"rows": 1.0}}, ""), ({"arguments": {"rows": 1.0}, "confirmed": _FORMERLY}, ""),
        ({"confirmed": _FORMERLY}, "unconfirmed"),
    ],
)  # fmt: skip
async def test_a_worker_runs_what_was_allowed(place: Place, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: str) -> None:
    """A worker compares a confirmed call with the digest of what was allowed, and with its own descriptor, before it begins."""
    allowed = digest_of("agent", "careful", "erase", "alice", "", "", {"rows": 1})
    made = Dispatcher._send

    def send(self: Any, call: Any, request: Any, *others: Any) -> Any:
        return made(self, call, msgspec.structs.replace(request, **{"confirmed": allowed, **change}), *others)

    monkeypatch.setattr(Dispatcher, "_send", send)
    async with place.serving(erase) as bus:
        await bus.wait_for_tool("erase")
        result = await bus.call("erase", {"rows": 1}, user="alice")
        assert (result.error.code if result.error else "") == code
        assert result.success == (not code)
        if code == "other_revision":
            assert result.error is not None
            assert result.error.retryable
            assert "another" in result.error.message


async def test_a_sibling_that_changes_leaves_a_confirmed_tool_callable(place: Place) -> None:
    """After another tool of the service changed, calls name the current publication, and are run."""

    def sibling(text: str) -> Any:
        async def changed() -> str:
            return text

        return tool(service="careful", name="sibling", description=text, effect="read", replace=True)(changed)

    async with place.bus() as bus:
        executor = bus.executor(confirmer=lambda confirmation: True)
        digests = []
        for text in ("one", "two"):
            async with place.worker(erase, sibling(text)):
                await eventually(lambda text=text: "sibling" in bus.tools and bus.tools["sibling"].description == text)
                digests.append(bus.tools["erase"].digest)
                assert (await executor.execute("erase", {"rows": 1})).success
        assert digests[0] != digests[1]


async def test_another_process_denies(place: Place) -> None:
    """A denied call is forbidden with the reason and the person's name, and never runs."""
    async with place.serving(erase) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        await other.confirmations.deny((await first_of(other)).id, "too many", by="bob")
        error = (await call).error
        assert error is not None
        assert (error.type, error.code, error.message) == ("forbidden", "denied", "bob did not allow this call of 'erase': too many")


async def test_nobody_answers(place: Place) -> None:
    """Without an answer in time the call ends as deadline_exceeded, and its request is gone."""
    async with place.serving(erase) as bus:
        error = (await bus.executor(confirm_timeout=0.2).execute("erase", {"rows": 1})).error
        assert error is not None
        assert (error.type, error.code) == ("deadline_exceeded", "unconfirmed")
        assert await bus.confirmations.pending() == []
        assert not bus.confirmations


async def test_of_many_answers_one_wins(place: Place) -> None:
    """Of twenty answers given at once exactly one wins, the call ends as that one says, and the others are told."""
    async with place.serving(erase) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        opened = (await first_of(other)).id
        asked = [
            (bus, other)[number % 2].confirmations.allow(opened, by=f"p{number}")
            if number % 3
            else (bus, other)[number % 2].confirmations.deny(opened, by=f"p{number}")
            for number in range(20)
        ]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        [winner] = [number for number, end in enumerate(ends) if end is None]
        lost = [end for end in ends if end is not None]
        said = f"was already {'allowed' if winner % 3 else 'denied'} by p{winner}"
        assert all(isinstance(end, ConfirmationClosed) and end.answered and str(end).endswith(said) for end in lost)
        result: ToolResult = await call
        assert result.success == bool(winner % 3)


async def test_wrong_ids_are_told(place: Place) -> None:
    """Unknown ids, malformed ones, and requests that are over are clear errors."""
    async with place.serving(erase) as bus:
        for wrong in ("nothing", "", "a b", "x" * 99, "{y}"):
            for doing in (bus.confirmations.allow(wrong), bus.confirmations.deny(wrong), bus.confirmations.get(wrong)):
                with pytest.raises(ConfirmationClosed, match="there never was one"):
                    await doing
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        request = await first_of(bus)
        await bus.confirmations.allow(request.id, by="bob")
        with pytest.raises(ConfirmationClosed, match="was already allowed by bob"):
            await bus.confirmations.get(request.id)
        assert (await call).success


async def test_a_cancelled_call_withdraws_its_request(place: Place) -> None:
    """A request is withdrawn when its caller stops waiting."""
    async with place.serving(erase) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        request = await first_of(other)
        call.cancel()
        await withdrawn(other, request)


async def test_requests_are_watched(place: Place) -> None:
    """A watcher hears of what is open and of each new request, once, until its bus is closed."""
    heard: list[str] = []

    async def watch(bus: ToolBus) -> None:
        async for request in bus.confirmations.watch():
            heard.append(json.loads(request.arguments)["rows"])
            await bus.confirmations.allow(request.id)

    async with place.serving(erase) as bus:
        executor = bus.executor()
        first = asyncio.create_task(executor.execute("erase", {"rows": 0}))
        await first_of(bus)
        async with place.bus() as other:
            watching = asyncio.create_task(watch(other))
            assert (await first).success
            for number in range(1, 4):
                assert (await executor.execute("erase", {"rows": number})).success
        await asyncio.wait([watching], timeout=5)
        assert watching.done()
    assert heard == [0, 1, 2, 3]  # type: ignore[comparison-overlap]


async def test_a_confirmer_here_is_asked_alone(place: Place) -> None:
    """With a confirmer of its own an executor asks nobody else, unless it is told to; then the first answer wins."""
    go = asyncio.Event()

    async def slow(confirmation: Any) -> bool:
        await go.wait()
        return True

    async with place.serving(erase) as bus, place.bus() as other:
        alone = asyncio.create_task(bus.executor(confirmer=slow).execute("erase", {"rows": 1}))
        await eventually(lambda: bus.confirmations)
        assert await other.confirmations.pending() == []
        [own] = bus.confirmations
        await bus.confirmations.deny(own, "not so")
        assert "not so" in str((await alone).error)
        both = asyncio.create_task(bus.executor(confirmer=slow, confirm_anywhere=True).execute("erase", {"rows": 2}))
        await other.confirmations.allow((await first_of(other)).id)
        assert (await both).output == "erased 2"
        here = asyncio.create_task(bus.executor(confirmer=slow, confirm_anywhere=True).execute("erase", {"rows": 3}))
        request = await first_of(other)
        go.set()
        assert (await here).output == "erased 3"
        with pytest.raises(ConfirmationClosed, match="was already allowed"):
            await other.confirmations.deny(request.id)


async def test_the_reader_of_events_learns_the_id(place: Place) -> None:
    """The event `Confirming` carries the id under which any process can answer."""
    async with place.serving(erase) as bus, place.bus() as other:
        message = [{"id": "c1", "type": "function", "function": {"name": "erase", "arguments": '{"rows": 4}'}}]
        async with bus.stream_tool_calls(message) as turn:
            async for event in turn:
                if isinstance(event.event, Confirming):
                    told = event.event.confirmation.id
                    assert (await first_of(other)).id == told
                    await other.confirmations.allow(told)
            [answer] = await turn.messages()
    assert answer["content"] == "erased 4"


async def test_open_requests_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace holds so many open requests; one more is refused as overloaded."""
    monkeypatch.setattr("toolbus.bus.broker.held.confirmations.MOST_OPEN", 2)
    async with place.serving(erase) as bus:
        executor = bus.executor()
        waiting = [asyncio.create_task(executor.execute("erase", {"rows": number})) for number in range(2)]

        async def open_now() -> bool:
            return len(await bus.confirmations.pending()) == 2

        await eventually(open_now)
        error = (await executor.execute("erase", {"rows": 3})).error
        assert error is not None
        assert (error.type, error.retryable) == ("overloaded", True)
        # Whoever can ask somebody here does without the others.
        both = bus.executor(confirmer=lambda confirmation: asyncio.sleep(0.1, True), confirm_anywhere=True)
        assert (await both.execute("erase", {"rows": 4})).output == "erased 4"
        for request in await bus.confirmations.pending():
            await bus.confirmations.deny(request.id)
        assert [(await each).success for each in waiting] == [False, False]


async def test_the_answer_wakes_without_polling(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a call waits its agent sends nothing, with a lease that is long enough, and the answer arrives at once by its own stream."""
    async with place.worker(erase, lease=60.0), place.bus(lease=60.0) as bus, place.bus() as other:
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 1}))
        request = await first_of(other)
        broker = bus._dispatcher.opened().broker
        assert isinstance(broker, AgentBroker)
        sent, asked = bus.statistics()["commands"], time.monotonic()
        await eventually(lambda: time.monotonic() > asked + 0.3)
        # One blocking read at most.
        assert bus.statistics()["commands"] <= sent + 1
        assert bus.statistics()["connects"] == 1
        await other.confirmations.allow(request.id)
        async with asyncio.timeout(2):
            assert (await call).success


async def test_no_key_stays(place: Place) -> None:
    """After an answer a mark says who gave it, for a bounded time; a withdrawn or expired request leaves nothing."""
    async with place.serving(erase) as bus:
        await bus.executor(confirm_timeout=0.1).execute("erase", {"rows": 1})
        assert keys_like(place, "confirm*") == []
        call = asyncio.create_task(bus.executor().execute("erase", {"rows": 2}))
        request = await first_of(bus)
        with redis.Redis.from_url(place.settings.url) as client:
            for key in keys_like(place, "confirm*"):
                assert 0 < client.pttl(key) <= 10_000, key
            await bus.confirmations.allow(request.id)
            assert (await call).success
            [mark] = keys_like(place, "confirm*")
            assert mark.endswith(f"confirm:{request.id}")
            assert 0 < client.pttl(mark) <= 60_000
            assert b"doc" not in client.hgetall(mark)
