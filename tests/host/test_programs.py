"""Pools with real programs: lazy and shared starts, kills, pauses, and what is left when they close."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.host.fakes import Heard
from tests.host.programs import is_alive, recorded
from tests.servers import eventually
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.runner import Line
from toolbus.platform.host.host import make_runner
from toolbus.platform.host.pool import Pool, Timing
from toolbus.platform.records import RecordedTool

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(
    record: RecordedTool, timing: Timing | None = None, on_line: Line = lambda _: None
) -> AsyncIterator[tuple[Pool, list[int]]]:
    """A pool, and the processes that it has had; none of them is alive afterwards."""
    runner = await make_runner("local", "host-1")
    pids: list[int] = []
    pool = Pool(record, runner, "host-1", lambda route: pids.append(route.pid), on_line, timing=timing)
    await pool.open()
    try:
        yield pool, pids
    finally:
        await pool.aclose()
        await runner.aclose()
        assert not [pid for pid in pids if pid and is_alive(pid)]


async def test_a_hundred_calls_start_one_program(tmp_path: Path) -> None:
    """100 calls at once to a stopped tool start one program, and each gets its own answer."""
    lines: list[str] = []
    async with opened(recorded(tmp_path), on_line=lines.append) as (pool, pids):
        results = await asyncio.gather(*(pool.call({"number": number}, Heard()) for number in range(100)))
        assert [result.data["number"] for result in results] == list(range(100))
        assert len({result.data["pid"] for result in results}) == 1
        assert set(pids) <= {0, pool.route().pid}
        assert pool.route().port
        assert any("listening on" in line for line in lines)


async def test_a_killed_program_is_restarted(tmp_path: Path) -> None:
    """A program that gets SIGKILL is started again without a call, and calls are answered by the new one."""
    async with opened(recorded(tmp_path)) as (pool, _):
        first = (await pool.call({}, Heard())).data["pid"]
        os.kill(pool.route().pid, signal.SIGKILL)
        await eventually(lambda: pool.route().state == "running" and pool.route().restarts == 1, timeout=30)
        assert (await pool.call({}, Heard())).data["pid"] != first
        assert pool.route().last_error


async def outcome(pool: Pool, **arguments: Any) -> Any:
    """The data of a call, or type and code of its error."""
    try:
        return (await pool.call(arguments, Heard())).data
    except ToolError as error:
        return error.error.type, error.error.code


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("effect", ["", "read", "idempotent", "once"])
async def test_a_call_whose_program_dies(tmp_path: Path, effect: str) -> None:
    """A call that kills its program runs again on a fresh one, unless the tool is ``once``; one that always kills fails."""
    async with opened(recorded(tmp_path, effect=effect, restarts=9)) as (pool, _):
        died = await outcome(pool, do="die once", mark=str(tmp_path / "died"), number=5)
        if effect == "once":
            assert died == ("outcome_unknown", "program_ended")
        else:
            assert died["number"] == 5
        note = tmp_path / "calls"
        expected = ("outcome_unknown", "program_ended") if effect == "once" else ("tool_error", "program_ended")
        assert await outcome(pool, do="die", note=str(note)) == expected
        assert len(note.read_text().splitlines()) == (1 if effect == "once" else 2)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("ready", ["port", "path:/"])
async def test_a_call_does_not_run_again_at_a_program_that_is_dying(tmp_path: Path, ready: str) -> None:
    """A program that still takes connections and answers none is given no further call: the lost one runs again at a new program."""
    record = recorded(tmp_path, effect="read")
    record = msgspec.structs.replace(record, sources=(msgspec.structs.replace(record.sources[0], ready=ready),))
    async with opened(record) as (pool, _):
        for number in range(3):
            answer = await outcome(pool, do="die slowly once", mark=str(tmp_path / f"died{number}"), number=number)
            assert answer["number"] == number


async def test_a_stream_that_breaks_off_does_not_run_again(tmp_path: Path) -> None:
    """Text that was passed on can't be taken back: the call fails, and says that it can be made again."""
    async with opened(recorded(tmp_path, stream=True, effect="read")) as (pool, _):
        heard = Heard()
        assert (await pool.call({"do": "stream"}, heard)).success
        assert "".join(heard.texts) == "0,1,2,"
        with pytest.raises(ToolError, match="after a part of its answer") as broken:
            await pool.call({"do": "stream", "break": 1}, Heard())
        assert broken.value.error.retryable


@pytest.mark.usefixtures("slow")
async def test_a_program_that_hangs_is_replaced(tmp_path: Path) -> None:
    """A paused program fails its health checks, and another one takes its place."""
    timing = Timing(health_within=0.5, again_after=0.2)
    async with opened(recorded(tmp_path, health_every=0.2, stop_within=0.2), timing) as (pool, _):
        await pool.call({}, Heard())
        paused = pool.route().pid
        os.kill(paused, signal.SIGSTOP)
        await eventually(lambda: pool.route().state == "running" and pool.route().pid not in {0, paused}, timeout=30)
        assert (await pool.call({}, Heard())).success
        await eventually(lambda: not is_alive(paused), timeout=30)


async def test_a_program_without_calls_is_stopped(tmp_path: Path) -> None:
    """A program that nobody calls ends, and the next call starts another one."""
    async with opened(recorded(tmp_path, idle_stop=0.3)) as (pool, _):
        first = (await pool.call({}, Heard())).data["pid"]
        await eventually(lambda: pool.route().state == "stopped" and not is_alive(first), timeout=30)
        assert (await pool.call({}, Heard())).data["pid"] != first


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("within", [0.0, 1.0], ids=["cancelled", "deadline"])
async def test_a_program_that_goes_on_with_a_call_that_was_given_up_is_ended(tmp_path: Path, within: float) -> None:
    """A program that is still at work ``stop_within`` seconds after the connection was closed is ended, and another one answers."""
    note = tmp_path / "calls"
    lines: list[str] = []
    async with opened(recorded(tmp_path, concurrency=1, stop_within=0.5), on_line=lines.append) as (pool, _):
        first = (await pool.call({}, Heard())).data["pid"]
        deadline = asyncio.get_running_loop().time() + within if within else 0.0
        given_up = asyncio.create_task(pool.call({"do": "sleep", "seconds": 600, "note": str(note)}, Heard(), deadline=deadline))
        if not within:
            await eventually(note.exists, timeout=30)
            given_up.cancel()
        await asyncio.wait([given_up])
        assert (await pool.call({}, Heard())).data["pid"] != first
        assert not is_alive(first)
        assert any("it went on with a call for 0.5 s after its connection was closed" in line for line in lines)
        assert pool.route().restarts == 0


async def test_calls_that_are_cancelled_leave_a_program_that_answers(tmp_path: Path) -> None:
    """Callers that leave while the program works free their places, and it answers others."""
    async with opened(recorded(tmp_path, concurrency=2)) as (pool, _):
        await pool.call({}, Heard())
        calls = [asyncio.create_task(pool.call({"do": "sleep", "seconds": 1}, Heard())) for _ in range(5)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert (await pool.call({"number": 1}, Heard())).data["number"] == 1


async def test_closing_in_the_middle_of_everything_leaves_nothing(tmp_path: Path) -> None:
    """A pool that closes while calls run and wait ends them with an error, and its programs with them."""
    async with opened(recorded(tmp_path, instances=2, concurrency=1, keep_warm=2)) as (pool, _):
        calls = [asyncio.create_task(outcome(pool, do="sleep", seconds=60)) for _ in range(4)]
        await eventually(lambda: pool.route().instances == 2, timeout=30)
        await pool.aclose()
        ends = await asyncio.gather(*calls)
        assert {end[0] for end in ends} <= {"unavailable", "tool_error"}
