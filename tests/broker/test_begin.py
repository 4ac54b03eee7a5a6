"""The begin of ``once`` work: under the fence, on a server that is surely the master and remembers what began."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.connection import ServerInfo
from toolbus.bus.broker.worker import Beginnings
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


class Master:
    """A mastership that is sure as the test says, and replication that answers as it says."""

    def __init__(self, *sure: bool, reply: bytes | Exception = b"started", confirmed: bool = True) -> None:
        self._sure = [*sure, True]
        self.answer = reply, confirmed
        self.waits = 0
        self.args: list[Any] = []

    @property
    def sure(self) -> bool:
        """Return whether the server is surely the master."""
        return self._sure.pop(0)

    async def wait(self) -> None:
        """Count."""
        self.waits += 1

    def write(self, script: Any, keys: Any, args: Any, done: Any) -> None:
        """Answer as start.lua would."""
        assert script is scripts.START
        self.args.append((keys, args))
        reply, confirmed = self.answer
        done(reply if isinstance(reply, Exception) else [reply] * (len(keys) - 2), confirmed)


def beginnings(bench: Bench, master: Master) -> Beginnings:
    """Return what marks beginnings."""
    both = cast("Any", master)
    bench.settings = msgspec.structs.replace(SETTINGS, retention=60.0)
    return Beginnings(*bench.own, bench.as_link, both, both)


async def begun(bench: Bench, master: Master, delivery: Any) -> str:
    """Begin a delivery."""
    return await beginnings(bench, master).begin(delivery)


@pytest.mark.parametrize(
    ("reply", "confirmed", "beginning"),
    [(b"started", True, "started"), (b"started", False, "unconfirmed"), (b"began", True, "began"), (b"lost", True, "lost")],
)
async def test_once_work_begins_under_the_fence(reply: bytes, confirmed: bool, beginning: str) -> None:
    """The mark outlives the deadline by the retention."""
    bench = Bench()
    one, master = bench.hold(b"1-0", attempt=2), Master(reply=reply, confirmed=confirmed)
    assert await begun(bench, master, one) == beginning
    # What is this worker's all the same would not be found again while it is held.
    assert one.is_held is (beginning != "lost")
    left = int((one.deadline - bench.times.now + 60.0) * 1000)
    keys = (bench.stream.key, bench.stream.fence, KEYS.started(one.request.id))
    assert master.args == [(keys, ("mine", *FENCE, b"1-0", 2, one.run, left))]


@pytest.mark.parametrize(("recovered", "beginning"), [(False, "lost"), (True, "began")])
async def test_a_first_delivery_whose_work_has_begun_is_left_alone(recovered: bool, beginning: str) -> None:
    """The group was set back and somebody runs it, unless nobody renewed it and it was taken over."""
    bench = Bench()
    one = bench.hold(b"1-0")
    one.recovered = recovered
    assert await begun(bench, Master(reply=b"began"), one) == beginning
    assert bench.stream.held == ({b"1-0": one} if recovered else {})
    assert bench.listener.lost == []


async def test_the_mark_outlives_a_deadline_that_has_passed() -> None:
    """By the retention, from now on."""
    bench, master = Bench(), Master()
    one = bench.hold()
    one.deadline = bench.times.now - 5.0
    await begun(bench, master, one)
    [(_, args)] = master.args
    assert args[-1] == 60_000


async def test_once_work_begins_again_until_the_master_is_sure() -> None:
    """A beginning that a master which was replaced has taken is no beginning."""
    bench = Bench()
    master = Master(False, False)
    assert await begun(bench, master, bench.hold(b"1-0")) == "started"
    assert (master.waits, len(master.args)) == (3, 3)


async def test_another_server_process_starts_no_once_work() -> None:
    """It may have been a replica, or have been restored, and lack the mark of a run; a restart is no proof that it was not."""
    bench, master = Bench(), Master()
    one = bench.hold(b"1-0")
    one.server = b"run-two"
    bench.link.answers["TIME"] = [b"5", b"0"]
    assert await begun(bench, master, one) == "unsure"
    assert master.args == []
    one.server = b"run-one"
    assert await begun(bench, master, one) == "started"


async def test_once_work_that_this_server_accepted_begins_although_the_link_knew_another() -> None:
    """After a restart a worker may have taken it before its writing link has connected again."""
    bench = Bench()
    one = bench.hold(b"1-0")
    one.server = b"run-two"

    def connect(*_: Any) -> list[bytes]:
        bench.link.server = ServerInfo("valkey", "9", "run-two", 1)
        return [b"5", b"0"]

    bench.link.answers["TIME"] = connect
    assert await begun(bench, Master(), one) == "started"


async def test_a_server_that_is_replaced_while_it_marks_starts_no_once_work() -> None:
    """A mark that was written again, on a new connection, may be the first that another server has of the work."""
    bench, master = Bench(), Master(True)
    one = bench.hold(b"1-0")
    one.server = b"run-one"
    bench.link.answers["TIME"] = [b"5", b"0"]
    write = master.write

    def replaced(*words: Any) -> None:
        if not master.args:
            bench.link.server = ServerInfo("valkey", "9", "run-two", 1)
        write(*words)

    master.write = replaced  # type: ignore[method-assign,assignment]
    assert await begun(bench, master, one) == "unsure"


async def test_what_begins_together_is_marked_by_one_script() -> None:
    """Of each stream and fence, in parts of a bounded size; a failure reaches each of them."""
    bench, master = Bench(), Master(*[True] * 300)
    many = beginnings(bench, master)
    held = [bench.hold(f"{number}-0".encode()) for number in range(300)]
    assert await asyncio.gather(*(many.begin(each) for each in held)) == ["started"] * 300
    assert [len(keys) - 2 for keys, _ in master.args] == [256, 44]
    master.answer = BrokerUnavailable("gone"), True
    failed = await asyncio.gather(*(many.begin(each) for each in held[:3]), return_exceptions=True)
    assert [type(each) for each in failed] == [BrokerUnavailable] * 3


async def test_who_no_longer_waits_disturbs_none() -> None:
    """A run that is cancelled while its mark is on its way leaves the others their answers."""
    bench, master = Bench(), Master()
    many = beginnings(bench, master)
    first, second = (asyncio.create_task(many.begin(bench.hold(entry))) for entry in (b"1-0", b"2-0"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "started"
    assert first.cancelled()
