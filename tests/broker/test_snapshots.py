"""Snapshots of sessions at the server: who may write one, and what is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.broker.fakes import FENCE
from tests.broker.test_ownership import LEASE, Owning
from toolbus.bus.broker.protocols import MOST_SNAPSHOT, NO_SNAPSHOT, Snapshot
from toolbus.bus.broker.take.sessions import Snapshots
from toolbus.bus.broker.transport.command import ReplyError

pytestmark = pytest.mark.anyio

STATE = Snapshot("token", "call", b"{}")


@pytest.fixture
async def owning() -> AsyncIterator[Owning]:
    """A worker that has beaten."""
    made = Owning()
    made.beat()
    yield made
    made.bench.forget()


@pytest.fixture
def snapshots(owning: Owning) -> Snapshots:
    """The snapshots of its sessions."""
    owning.bench.link.answers["save"] = lambda _keys, _args: 1
    return Snapshots(*owning.bench.own, owning.ownership)


@pytest.mark.parametrize(("ordered", "lapsed", "needs"), [(True, False, 0), (False, False, 1), (True, True, 1)])
async def test_a_call_in_order_needs_its_entry_alone(owning: Owning, snapshots: Snapshots, ordered: bool, lapsed: bool, needs: int) -> None:
    """A call beside the order needs the session too, and so does any whose worker may have been thought dead meanwhile."""
    delivery = owning.bench.hold(b"1-0", user="u", session="s", ordered=ordered)
    await owning.settle(delivery)
    if lapsed:
        owning.bench.times.now += LEASE
    assert await snapshots.save(delivery, STATE)
    await snapshots.forget(delivery)
    caller = ("mine", *FENCE, b"1-0", 1, needs)
    assert owning.bench.link.args("save") == [(*caller, "token", "call", b"{}", 86_400_000), (*caller, "", "", "", 86_400_000)]
    assert owning.asked == 1 + lapsed


async def test_nothing_is_saved_in_a_session_that_another_worker_turns_out_to_have(owning: Owning, snapshots: Snapshots) -> None:
    """The lease has lapsed, and another worker took the session: its snapshot stays as it is."""
    delivery = owning.bench.hold(b"1-0", user="u", session="s", ordered=True)
    await owning.settle(delivery)
    owning.bench.times.now += LEASE
    owning.verdicts = [b"moved"]
    assert not await snapshots.save(delivery, STATE)
    assert owning.bench.link.args("save") == []


async def test_a_snapshot_that_the_server_refuses_is_forgotten(
    owning: Owning, snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before it is out of date: a full server still lets go of it, and a later loss is told."""
    owning.bench.link.answers["save"] = ReplyError("OOM command not allowed")
    delivery = owning.bench.hold(b"1-0", user="u", session="s", ordered=True)
    await owning.settle(delivery)
    assert await snapshots.save(delivery, STATE)
    assert [args[6] for args in owning.bench.link.args("save")] == ["token", ""]
    assert "OOM command not allowed" in caplog.text


async def test_forgetting_waits_while_the_server_refuses_every_write(owning: Owning, snapshots: Snapshots) -> None:
    """The end of the call would be accepted with the first write, and leave a snapshot that is out of date."""
    answers = iter([ReplyError("MISCONF can't persist"), ReplyError("MISCONF still"), 1])
    owning.bench.link.answers["save"] = lambda *_: next(answers)
    await snapshots.forget(owning.take())
    assert [args[6] for args in owning.bench.link.args("save")] == ["", "", ""]


@pytest.mark.parametrize("held", [True, False])
async def test_a_snapshot_waits_while_the_server_refuses_every_write(owning: Owning, snapshots: Snapshots, held: bool) -> None:
    """Nor could the one before it be forgotten, and the end of the call is accepted with the first write; a call that is lost ends that."""
    asked = 0

    def answer(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2 and not held:
            owning.bench.stream.lose(delivery)
        return ReplyError("MISCONF can't persist") if asked < 3 else 1

    owning.bench.link.answers["save"] = answer
    delivery = owning.bench.hold(b"1-0", user="u", session="s", ordered=True)
    await owning.settle(delivery)
    assert await snapshots.save(delivery, STATE)
    assert [args[6] for args in owning.bench.link.args("save")] == ["token", "token", "token" if held else ""]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_call_waits_for_the_servers_word(owning: Owning, snapshots: Snapshots, ordered: bool) -> None:
    """It may say that another worker has the call or its session by now."""
    delivery = owning.bench.hold(b"1-0", user="u", session="s", ordered=ordered)
    await owning.settle(delivery)
    owning.bench.link.answers["save"] = lambda _keys, _args: 0
    assert not await snapshots.save(delivery, STATE)


@pytest.mark.parametrize(
    "answer",
    [[], [b"its field d has 9 bytes, and may have 8"], [b"WRONGTYPE"], [b"\xff", b"call", b"{}"], [b"t" * 65, b"call", b"{}"]],
    ids=["none", "large", "type", "no text", "long"],
)
async def test_a_snapshot_that_can_not_be_used_is_told_from_none(owning: Owning, snapshots: Snapshots, answer: list[bytes]) -> None:
    """The state counts as lost then; where nothing was kept, there is nothing to lose."""
    owning.bench.link.answers["load"] = lambda _keys, _args: answer
    assert await snapshots.load(owning.take()) == (NO_SNAPSHOT if answer else None)
    assert owning.bench.link.args("load") == [(MOST_SNAPSHOT, 64)]
