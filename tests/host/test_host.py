"""A host: tools come, change and go with their records, each at the hosts that may run it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.contract import Place
from tests.host.fakes import FakeInstance, FakeRunner
from tests.host.hosting import Stage, recorded, revised, staged
from tests.servers import eventually
from toolbus import ConfigurationError, Settings, ToolResult, tool
from toolbus.platform.backends.runner import Line, Output
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.host.host import Host
from toolbus.platform.records import RECORD_KEY, RecordedTool, ToolSource

pytestmark = pytest.mark.anyio


@tool(service="hosted_squatter")
async def squatted() -> str:
    """Have the name first."""
    return "mine"


async def test_tools_come_and_go_with_their_records(place: Place) -> None:
    """A tool recorded before or after a host starts can be called; once removed or inactive it can't, and its program is stopped."""
    runner = FakeRunner(delay=0.0)
    async with staged(place) as stage:
        await stage.records.put(recorded("early"))
        async with stage.host(runner) as host:
            await stage.bus.wait_for_tool("early")
            await stage.records.put(recorded("late"))
            await stage.bus.wait_for_tool("late")
            for name in ("early", "late"):
                assert (await stage.bus.call(name, {"n": 1}, timeout=20.0)).success
            route = await stage.route("late", "running")
            assert (route.host, route.instances) == (host.id, 1)
            await stage.remove("early")
            await stage.gone("early")
            late = recorded("late")
            await stage.records.put(msgspec.structs.replace(late, meta=msgspec.structs.replace(late.meta, status="inactive")))
            await stage.gone("late")
            await eventually(lambda: not runner.alive)
        assert await stage.routes() == {}


async def test_a_revision_takes_new_calls_and_running_ones_end(place: Place) -> None:
    """A call that runs is answered by the program that it began at, which is stopped after that; the tool is described anew."""
    free = asyncio.Event()

    async def answer(instance: FakeInstance, arguments: dict[str, object], output: Output) -> ToolResult:
        if instance.source.host_dir == "a":
            await free.wait()
        return ToolResult.ok(instance.source.host_dir)

    runner = FakeRunner(delay=0.0, answer=answer)
    async with staged(place) as stage:
        first = recorded("changing")
        await stage.records.put(first)
        async with stage.host(runner):
            await stage.bus.wait_for_tool("changing")
            call = asyncio.create_task(stage.bus.call("changing", timeout=60.0))
            await eventually(lambda: runner.called)
            await stage.records.put(recorded("changing", folder="b", description="Do it better."))
            await eventually(lambda: stage.bus.tools["changing"].description == "Do it better.")
            assert (await stage.bus.call("changing", timeout=20.0)).data == "b"
            assert not call.done()
            free.set()
            assert (await call).data == "a"
            await eventually(lambda: [each.source.host_dir for each in runner.alive] == ["b"])
            # Another source alone is a change, too.
            await stage.records.put(revised(recorded("changing", folder="c", description="Do it better.")))
            await eventually(lambda: _answers(stage, "c"))


@pytest.mark.usefixtures("slow")
async def test_a_call_that_waits_for_a_program_is_answered_by_the_next_revision(place: Place) -> None:
    """A revision that never becomes ready keeps nobody from the one that replaces it."""

    async def answer(instance: FakeInstance, arguments: dict[str, object], output: Output) -> ToolResult:
        return ToolResult.ok(instance.source.host_dir)

    class Stuck(FakeRunner):
        async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> FakeInstance:
            self.delay = 1_000.0 if source.host_dir == "a" else 0.0
            return await super().start(tool, source, line)

    runner = Stuck(answer=answer)
    async with staged(place) as stage:
        await stage.records.put(recorded("stuck"))
        async with stage.host(runner):
            await stage.bus.wait_for_tool("stuck")
            call = asyncio.create_task(stage.bus.call("stuck", timeout=60.0))
            await eventually(lambda: runner.starting)
            await stage.records.put(recorded("stuck", folder="b"))
            assert (await call).data == "b"


async def _answers(stage: Stage, folder: str) -> bool:
    return (await stage.bus.call("changing", timeout=20.0)).data == folder


async def test_labels_choose_the_hosts_of_a_source(place: Place) -> None:
    """A source without labels runs at every host, another one where a label is the same."""
    plain, gpu = FakeRunner(delay=0.0), FakeRunner(delay=0.0)
    async with staged(place) as stage:
        await stage.records.put(recorded("anywhere"))
        await stage.records.put(recorded("labelled", hosts=("gpu", "big")))
        async with stage.host(plain) as one, stage.host(gpu, "gpu") as two:
            for name in ("anywhere", "labelled"):
                await stage.bus.wait_for_tool(name)
            wanted = {("anywhere", one.id), ("anywhere", two.id), ("labelled", two.id)}

            async def told() -> bool:
                return set(await stage.routes()) == wanted

            await eventually(told, timeout=20.0)
            assert (await stage.bus.call("labelled", timeout=20.0)).success
            assert (plain.begun, gpu.begun) == (0, 1)


@pytest.mark.usefixtures("slow")
async def test_a_name_of_others_is_told_and_taken_when_it_is_free(place: Place) -> None:
    """The route says why the tool is not served; the others are, and it is as soon as the name is free."""
    async with staged(place) as stage:
        async with place.worker(squatted):
            await stage.records.put(recorded("squatted"))
            await stage.records.put(recorded("other"))
            async with stage.host(FakeRunner(delay=0.0)):
                await stage.bus.wait_for_tool("other")
                assert "squatted" in (await stage.route("squatted", "failed")).last_error
                await stage.remove("squatted")

                async def untold() -> bool:
                    return all(key[0] != "squatted" for key in await stage.routes())

                await eventually(untold)
        await stage.records.put(recorded("squatted"))
        async with stage.host(FakeRunner(delay=0.0)):
            await stage.route("squatted", "failed")
            await stage.admin.transfer("tool/squatted")
            await stage.bus.wait_for_tool("squatted", timeout=20.0)
            await stage.route("squatted", "stopped")


async def test_code_that_nobody_approved_is_not_started(place: Place, tmp_path: Path) -> None:
    """A folder with another digest than the record's starts nothing, and the caller reads why; the right one runs."""
    (tmp_path / "main.py").write_text("print('approved')")
    approved = msgspec.structs.replace(recorded("coded", folder=str(tmp_path), restarts=0), code=digest_of_folder(tmp_path))
    runner = FakeRunner(delay=0.0)
    async with staged(place) as stage:
        await stage.records.put(approved)
        async with stage.host(runner):
            await stage.bus.wait_for_tool("coded")
            (tmp_path / "main.py").write_text("print('altered')")
            result = await stage.bus.call("coded", timeout=20.0)
            assert result.error is not None
            assert "not what was approved" in result.error.message
            assert not result.error.retryable
            assert runner.begun == 0
            (tmp_path / "main.py").write_text("print('approved')")
            await stage.records.put(revised(approved))
            await stage.route("coded", "stopped")
            assert (await stage.bus.call("coded", timeout=20.0)).success


async def test_records_that_can_not_be_read_stop_nothing(place: Place) -> None:
    """A record that a person broke by hand takes its tool away, and no other; mended, it is served again."""
    async with staged(place) as stage:
        await stage.records.put(recorded("broken"))
        await stage.records.put(recorded("whole"))
        async with stage.host(FakeRunner(delay=0.0)):
            await stage.bus.wait_for_tool("broken")
            await stage.admin.put(f"{RECORD_KEY}broken", b'{"meta": {"tool_id": "broken"}, "sources": 7}')
            await stage.gone("broken")
            assert (await stage.bus.call("whole", timeout=20.0)).success
            await stage.records.put(recorded("broken"))
            await stage.bus.wait_for_tool("broken")


async def test_output_of_programs_is_kept_for_everybody(place: Place) -> None:
    """Lines reach the server with the host's id."""
    async with staged(place) as stage:
        await stage.records.put(recorded("talking"))
        async with stage.host(FakeRunner(delay=0.0)) as host:
            await stage.bus.wait_for_tool("talking")
            assert (await stage.bus.call("talking", timeout=20.0)).success

            async def told() -> bool:
                return (host.id, "hello") in [(line.host, line.text) for line in await stage.bus.routes.output("talking")]

            await eventually(told)


@pytest.mark.parametrize("words", [{"labels": ["a b"]}, {"labels": [""]}, {"name": "x" * 65}, {"name": "a/b"}])
def test_labels_and_names_are_plain_words(words: dict[str, object]) -> None:
    """They stand in ids and keys."""
    with pytest.raises(ConfigurationError, match="no label or name"):
        Host(Settings(), **words)
