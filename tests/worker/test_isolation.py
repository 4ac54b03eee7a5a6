"""Isolated tools: what crosses the border, what ends with a call, and what a child that dies costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from tests.tiers import some
from tests.worker import isolated
from toolbus import Blob, Progress
from toolbus.bus.values.events import Text

pytestmark = pytest.mark.anyio


@pytest.fixture
def here(namespace: str) -> Place:
    """In process: where the broker makes no difference."""
    return Place("memory://", namespace)


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # Gone, or gone between the opening and the reading of the file.
        return False


def children(pid: int) -> list[int]:
    """The children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text("utf-8").split())
    return found


async def test_handlers_run_in_another_process_and_are_reused(place: Place) -> None:
    """Sync and async handlers run in a child, not here, and one call after another uses the same one."""
    async with place.serving(isolated) as bus:
        results = [await bus.call(name) for name in ("iso_pid", "iso_pid_async", "iso_pid", "iso_pid_async")]
        assert [result.error for result in results] == [None] * 4
    pids = {result.data for result in results}
    assert len(pids) == 1
    assert os.getpid() not in pids
    await eventually(lambda: not any(map(alive, pids)))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "output", "data", "content"),
    [
        ("none", "", None, ()),
        ("text", "tëxt", None, ()),
        ("data", f'{{"a":[1,{2**70},null,1.5]}}', {"a": [1, 2**70, None, 1.5]}, ()),
        ("blob", "", None, (Blob("a/b", b"\x00\xff"),)),
        ("result", "o", [1], (Blob("c/d", b"x"),)),
        ("surrogate", "a\ufffdb", None, ()),
        ("iterator", "ab", None, ()),
    ],
)
async def test_values_cross_as_they_are(here: Place, kind: str, output: Any, data: Any, content: Any) -> None:
    """A value that a handler returns in a child arrives as from a plain one."""
    async with here.serving(isolated) as bus:
        result = await bus.call("iso_value", {"kind": kind})
    assert (result.success, result.output, result.data, result.content) == (True, output, data, content)


async def test_items_stream_as_they_come(here: Place) -> None:
    """Text, progress, blobs, other values and the last result of a generator arrive in order, of an async one too."""
    async with here.serving(isolated) as bus:
        async with bus.stream("iso_stream", {"n": 2}) as call:
            events = [event async for event in call.events() if isinstance(event, (Text, Progress, Blob))]
            result = await call.result()
        other = await bus.call("iso_stream_async", {"n": 3})
    said = "".join(event.text for event in events if isinstance(event, Text))
    assert (said, result.data, other.output) == ('0 1 {"a":1}', {"n": 2}, "0 1 2 ")
    assert [event for event in events if not isinstance(event, Text)] == [Progress(1, 2), Progress(2, 2), Blob("a/b", b"123")]


async def test_arguments_are_bound_in_the_child(here: Place) -> None:
    """A struct arrives as a struct; what does not fit is refused, naming the place."""
    async with here.serving(isolated) as bus:
        assert (await bus.call("iso_point", {"point": {"x": 3, "y": 4}})).data == 7
        refused = await bus.call("iso_point", {"point": {"x": "three"}})
    assert refused.error is not None
    assert (refused.error.type, "$.point.x" in refused.error.message) == ("invalid_arguments", True)


async def test_the_invocation_is_there(here: Place) -> None:
    """User, session, attempt, deadline and progress work in the child; calling another tool or a person is refused, saying why."""
    async with here.serving(isolated) as bus:
        async with bus.stream("iso_here", user="al", session="s", timeout=20, metadata={"k": "v"}) as call:
            progress = [event async for event in call.events() if isinstance(event, Progress)]
            result = await call.result()
        nested, asking = await bus.call("iso_nested"), await bus.call("iso_asks")
    data = result.data
    # The worker knows the clock of the server to within a round trip.
    assert 10 < data.pop("left") < 25
    assert data.pop("id") == result.meta.id
    assert data == {
        "tool": "iso_here",
        "service": isolated.__name__,
        "user": "al",
        "session": "s",
        "attempt": 1,
        "metadata": {"k": "v"},
        "cancelled": False,
    }
    assert progress == [Progress(1, 2, "half")]
    assert nested.error is not None
    assert nested.error.code == "no_nested_calls"
    assert asking.error is not None
    assert asking.error.code == "no_questions"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("how", "type_", "code", "words"),
    [
        ("tool_error", "forbidden", "mine", "no"),
        ("cancelled", "cancelled", "", "nobody waits"),
        ("value_error", "tool_error", "ValueError", "bad value"),
        ("sys_exit", "tool_error", "SystemExit", "tried to exit"),
        ("os_exit", "tool_error", "process_died", "exit code 3"),
        ("segfault", "tool_error", "process_died", "SIGSEGV"),
        ("kill", "tool_error", "process_died", "SIGKILL"),
        ("garbage", "tool_error", "process_died", "process of the tool"),
    ],
)
async def test_failures_are_told_and_stop_nothing(place: Place, how: str, type_: str, code: str, words: str) -> None:
    """However a child fails or dies, its caller gets an error that says how, and the next call runs."""
    async with place.serving(isolated) as bus:
        result = await bus.call("iso_fail", {"how": how})
        assert result.error is not None
        assert (result.error.type, result.error.code) == (type_, code)
        assert words in result.error.message
        assert (await bus.call("iso_fail", {"how": ""})).output == "not failed"


FEW = ["early", "half", "closed", "later"]
DEVIATIONS = ["early", "plain", "noise", "half", "huge", "skip", "unreadable", "empty"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", some(FEW, [*DEVIATIONS, "half_of_this", "shut", "closed", "after", "after_a_while", "later", "thread"]))
async def test_a_child_that_forges_answers_harms_no_other_call(here: Place, how: str) -> None:
    """Messages of no call, half ones, more after the end, a closed channel: the call fails, and all others get their own answers."""
    async with here.serving(isolated, isolated=1) as bus:
        before = (await bus.call("iso_pid")).data
        forged = await bus.call("iso_forge", {"how": how}, user="mallory", timeout=2.0 if how == "half_of_this" else 20.0)
        if how in DEVIATIONS:
            assert forged.error is not None
            assert (forged.error.type, forged.error.code, "'iso_forge'" in forged.error.message) == ("tool_error", "process_died", True)
        assert forged.output != "evil"
        answers = [await bus.call("iso_echo", {"text": f"{number}"}, user=f"user {number}") for number in range(100)]
        assert [answer.output for answer in answers] == [f"{number}" for number in range(100)]

        async def replaced() -> bool:
            return bool((await bus.call("iso_pid")).data != before)

        # What it still had to say may come after them.
        await eventually(replaced)


async def test_a_child_that_forges_an_answer_of_once_work_leaves_it_unknown(here: Place) -> None:
    """A call of ``once`` work whose child forges an answer ends as unknown, because nobody can tell whether it had its effect."""
    async with here.serving(isolated) as bus:
        error = (await bus.call("iso_forge_once")).error
    assert error is not None
    assert (error.type, "'iso_forge_once'" in error.message) == ("outcome_unknown", True)


async def test_what_a_call_leaves_is_not_the_next_ones(here: Place) -> None:
    """Context variables, environment and working folder are as they were, and the invocation is its own, in plain and async handlers."""
    async with here.serving(isolated, isolated=1) as bus:
        found = [
            (await bus.call("iso_trace", {"how": how}, user=user)).data
            for user, how in (("al", ""), ("bo", "environment"), ("cy", "folder"), ("di", ""))
        ]
        assert [(await bus.call("iso_trace_sync")).output for _ in range(2)] == ["", ""]
    assert [each.pop("user") for each in found] == ["al", "bo", "cy", "di"]
    assert found == [{"variable": "", "environment": "", "folder": str(Path.cwd())}] * 4


async def test_children_know_no_other_childs_channel(here: Place) -> None:
    """Children that were born one right after the other share no socket."""
    async with here.serving(isolated, isolated=4, concurrency=4) as bus:
        seen = [result.data for result in await asyncio.gather(*(bus.call("iso_sockets") for _ in range(4)))]
    # A child that has ended its call before another one is born runs the next one, too.
    children = {frozenset(each) for each in seen}
    names = [name for each in children for name in each]
    assert len(seen) == 4
    assert len(children) > 1
    assert len(names) == len(set(names))


async def test_an_unencodable_value_is_the_handlers_failure(here: Place) -> None:
    """A value that JSON can't say fails as it does in process."""
    async with here.serving(isolated) as bus:
        result = await bus.call("iso_value", {"kind": "object"})
    assert result.error is not None
    assert result.error.code == "unencodable_result"


async def test_the_traceback_of_a_child_is_logged(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The worker's log of a crashed call shows where in the child it was."""
    async with here.serving(isolated) as bus:
        await bus.call("iso_fail", {"how": "value_error"})
    (crash,) = [record for record in caplog.records if record.getMessage().startswith("call.crashed")]
    assert crash.exc_info is not None
    assert 'raise ValueError("bad value")' in str(crash.exc_info[1])


async def test_what_was_said_before_the_end_arrives(here: Place) -> None:
    """Text that a child sent before it died is kept in the failed result."""
    async with here.serving(isolated) as bus:
        result = await bus.call("iso_text_then_exit")
    assert result.error is not None
    assert (result.error.code, result.output) == ("process_died", "said ")


async def test_the_outcome_of_a_once_tool_that_dies_is_unknown(here: Place) -> None:
    """A child that ends in the middle of work that must not be repeated may have done it."""
    async with here.serving(isolated) as bus:
        result = await bus.call("iso_once_exit")
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("outcome_unknown", "process_died")


async def test_a_memory_limit_holds(here: Place) -> None:
    """A call that takes more than its limit fails and says so; the next one within it runs."""
    async with here.serving(isolated) as bus:
        result = await bus.call("iso_memory", {"megabytes": 200})
        assert result.error is not None
        assert (result.error.code, str(64 << 20) in result.error.message) == ("memory_limit", True)
        assert (await bus.call("iso_memory", {"megabytes": 20})).data == 20 << 20
        assert (await bus.call("iso_big", {"megabytes": 2})).output == "x" * (2 << 20)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("way", ["deadline", "cancel", "drain"])
async def test_a_call_that_is_given_up_is_killed(place: Place, tmp_path: Path, way: str) -> None:
    """At the deadline, when the caller leaves, and when the grace ends, the child dies with what it started, and its slot is free."""
    pid_file = tmp_path / "pids"
    async with place.bus() as bus:
        async with place.worker(isolated, concurrency=1, grace=0.1) as worker:
            await bus.wait_for_tool("iso_spin", timeout=5)
            async with bus.stream("iso_spin", {"pid_file": str(pid_file), "child": True}, timeout=1.5 if way == "deadline" else 60) as call:
                await eventually(pid_file.exists, timeout=10)
                pids = [int(each) for each in pid_file.read_text("utf-8").split()]
                assert all(map(alive, pids))
                if way == "deadline":
                    result = await call.result()
                    assert result.error is not None
                    assert result.error.type == "deadline_exceeded"
                elif way == "drain":
                    await worker.drain()
            if way != "drain":
                await eventually(lambda: not any(map(alive, pids)))
                assert isinstance((await bus.call("iso_pid")).data, int)
                assert not worker.stuck
        assert not alive(pids[0])
        await eventually(lambda: not alive(pids[1]))


async def test_a_stream_that_nobody_reads_ends(here: Place) -> None:
    """Leaving an endless stream kills the child that produces it."""
    async with here.serving(isolated) as bus:
        async with bus.stream("iso_endless") as call:
            async for text in call:
                pid = int(text.split()[0])
                break
        await eventually(lambda: not alive(pid))


async def test_output_is_bounded(here: Place) -> None:
    """A text over the bus's limit fails as it does in process, in one piece or in many, and large ones below it pass."""
    async with here.serving(isolated, max_output=3 << 20) as bus:
        for name, arguments in (("iso_big", {"megabytes": 8}), ("iso_endless", {})):
            result = await bus.call(name, arguments)
            assert result.error is not None
            assert result.error.code == "output_limit"
        assert len((await bus.call("iso_big", {"megabytes": 2})).output or "") == 2 << 20


@pytest.mark.parametrize("what", ["thread", "process", "fork", "task"])
async def test_nothing_of_a_call_outlives_it(here: Place, what: str) -> None:
    """A child in which a thread, task or process of a call goes on is replaced, and the process ends with it."""
    async with here.serving(isolated) as bus:
        left = await bus.call("iso_leave_task") if what == "task" else await bus.call("iso_leave", {"what": what})
        assert (await bus.call("iso_pid")).data != left.data
        await eventually(lambda: not alive(left.data))


@pytest.mark.parametrize("then", some(["ends", "dies", "leaves"], ["ends", "dies", "deadline", "leaves"]))
async def test_no_process_slips_away_from_a_call(here: Place, tmp_path: Path, then: str) -> None:
    """Forked twice, in a session and group of its own, a process still dies with its call, however that ends."""
    pid_file = tmp_path / "pids"
    async with here.bus() as bus:
        async with here.worker(isolated, isolated=1, grace=0.1):
            await bus.wait_for_tool("iso_escape")
            timeout = 3.0 if then == "deadline" else 60.0
            call = asyncio.create_task(bus.call("iso_escape", {"pid_file": str(pid_file), "then": then}, timeout=timeout))
            await eventually(lambda: pid_file.exists() and len(pid_file.read_text("utf-8").split()) == 2, timeout=20.0)
            pids = [int(each) for each in pid_file.read_text("utf-8").split()]
            if then != "leaves":
                await call
                await eventually(lambda: not any(map(alive, pids)))
                assert (await bus.call("iso_echo", {"text": "on"})).output == "on"
        await eventually(lambda: not any(map(alive, pids)))
        # One that was handed back would wait for another worker.
        call.cancel()
        await asyncio.wait([call])


@pytest.mark.usefixtures("slow")
async def test_calls_run_at_once_up_to_the_limit(here: Place, tmp_path: Path) -> None:
    """Two children run two calls at once; a third call waits for one of them, and is answered in its time."""
    async with here.worker(isolated, isolated=2) as worker, here.bus() as bus:
        files = [tmp_path / name for name in ("a", "b")]
        async with asyncio.TaskGroup() as tasks:
            spinning = [tasks.create_task(bus.call("iso_spin", {"pid_file": str(each)}, timeout=2)) for each in files]
            await eventually(lambda: all(each.exists() for each in files))
            third = tasks.create_task(bus.call("iso_pid", timeout=10))
        assert {task.result().error.type for task in spinning if task.result().error} == {"deadline_exceeded"}  # type: ignore[union-attr]
        assert third.result().error is None
        (fork_server,) = worker.isolation.pids
        assert len(children(fork_server)) <= 2


async def test_a_worn_child_is_replaced(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many calls a child goes, and with it what they left in it."""
    monkeypatch.setattr("toolbus.bus.worker.isolation.pool._MOST_CALLS", 3)
    async with here.serving(isolated, isolated=1) as bus:
        assert [(await bus.call("iso_count")).data for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.usefixtures("slow")
async def test_children_that_nobody_needs_go(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one of the idle children end after a while."""
    monkeypatch.setattr("toolbus.bus.worker.isolation.pool._IDLE", 0.2)
    async with here.worker(isolated, isolated=4) as worker, here.bus() as bus:
        await asyncio.gather(*(bus.call("iso_stream_async", {"n": 2_000}) for _ in range(4)))
        (fork_server,) = worker.isolation.pids
        await eventually(lambda: len(children(fork_server)) == 1)
        assert isinstance((await bus.call("iso_pid")).data, int)


@pytest.mark.usefixtures("slow")
async def test_a_lost_fork_server_is_replaced(here: Place, tmp_path: Path) -> None:
    """When the fork server is killed its children die, the running call says so, and the next call runs."""
    pid_file = tmp_path / "pids"
    async with here.worker(isolated) as worker, here.bus() as bus:
        running = asyncio.create_task(bus.call("iso_spin", {"pid_file": str(pid_file)}))
        await eventually(pid_file.exists)
        (fork_server,) = worker.isolation.pids
        os.kill(fork_server, signal.SIGKILL)
        error = (await running).error
        assert error is not None
        assert error.code == "process_died"
        await eventually(lambda: not alive(int(pid_file.read_text("utf-8"))))
        assert isinstance((await bus.call("iso_pid")).data, int)
