"""MCP servers that hang, flood, die, change without end and answer nonsense: each costs no more than its own calls."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from tests.contract import Place
from tests.mounts.programs import USUAL, command, mounting, program, raw
from tests.servers import eventually
from toolbus.bus.values.results import ConfigurationError, ErrorInfo, ToolResult
from toolbus.edges.mounts import MountedServer, Options
from toolbus.edges.mounts.stdio import StderrLog

pytestmark = pytest.mark.anyio

LIST = """
if method == "initialize":
    welcome(message)
elif method == "tools/list":
    say(id=message["id"], result={"tools": [tool("read", annotations={"readOnlyHint": True}), tool("do")]})
elif method == "ping":
    say(id=message["id"], result={})
"""


def failure(result: ToolResult) -> ErrorInfo:
    """The error of a failed call."""
    assert result.error is not None
    return result.error


@pytest.mark.usefixtures("slow")
async def test_a_killed_server_is_started_again(valkey: Place, tmp_path: Path) -> None:
    """Calls after its death are answered by a new one, without a new worker."""
    async with mounting(valkey, program(tmp_path, USUAL)) as (bus, server):
        before = (await bus.call("process")).output or ""
        os.kill(int(before), signal.SIGKILL)
        await eventually(lambda: server.connection.starts == 2, timeout=60.0)
        after = await bus.call("process")
        assert after.success
        assert after.output != before


@pytest.mark.usefixtures("slow")
async def test_a_server_that_dies_in_each_call(valkey: Place, tmp_path: Path) -> None:
    """A call that reads is tried again and is unavailable then; one that may run once is not, and its outcome is unknown."""
    runs = tmp_path / "runs"
    file = raw(
        tmp_path,
        LIST
        + f"""
elif method == "tools/call":
    open({str(runs)!r}, "a").write(message["params"]["name"] + " ")
    os._exit(3)
""",
    )
    async with mounting(valkey, file) as (bus, _):
        done = failure(await bus.call("do"))
        assert (done.type, done.code) == ("outcome_unknown", "mount_ended")
        read = failure(await bus.call("read"))
        assert (read.type, read.retryable) == ("unavailable", True)
        assert runs.read_text().split() == ["do", "read", "read", "read"]


@pytest.mark.usefixtures("slow")
async def test_a_server_that_hangs_in_a_call_is_started_again(valkey: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its caller is answered at the deadline, the server that answers nothing any more is ended, and calls go on."""
    once = tmp_path / "hung"
    file = raw(
        tmp_path,
        LIST
        + f"""
elif method == "tools/call":
    if not os.path.exists({str(once)!r}):
        open({str(once)!r}, "w").close()
        time.sleep(600)
    say(id=message["id"], result={{"content": [{{"type": "text", "text": "fine"}}]}})
""",
    )
    async with mounting(valkey, file, patience=2.0) as (bus, server):
        assert failure(await bus.call("do", timeout=1.0)).type in {"deadline_exceeded", "outcome_unknown"}
        await eventually(lambda: server.connection.starts == 2, timeout=60.0)
        assert (await bus.call("do")).output == "fine"
    assert "no sign of life" in caplog.text


@pytest.mark.usefixtures("slow")
async def test_a_slow_server_that_lives_is_left_alone(valkey: Place, tmp_path: Path) -> None:
    """A call that is given up does not end a server that still answers."""
    body = '''
@mcp.tool()
async def slow() -> str:
    """Take long."""
    await asyncio.sleep(600)
    return "never"

@mcp.tool(structured_output=False)
def process() -> str:
    """Show the process."""
    return str(os.getpid())
'''
    async with mounting(valkey, program(tmp_path, body)) as (bus, server):
        before = (await bus.call("process")).output
        assert not (await bus.call("slow", timeout=0.5)).success
        assert (await bus.call("process")).output == before
        assert server.connection.starts == 1


async def test_nonsense_is_a_bad_answer(valkey: Place, tmp_path: Path) -> None:
    """Answers that no server may give, and lines that are no message, cost that call only."""
    file = raw(
        tmp_path,
        LIST
        + """
elif method == "tools/call":
    sys.stdout.write("a banner\\n[[[[\\n{}\\n\\xff\\n" + "[" * 100_000 + "\\n")
    say(id=99_999, result={"content": []})
    name = message["params"]["name"]
    result = {"content": "nonsense"} if name == "do" else {"content": [{"type": "moon"}]}
    say(id=message["id"], result=result)
""",
    )
    async with mounting(valkey, file) as (bus, server):
        assert failure(await bus.call("do")).code == "bad_answer"
        assert failure(await bus.call("do")).code == "bad_answer"
        assert not (await bus.call("read")).success
        assert server.connection.starts == 1


async def test_an_answer_that_is_too_long_is_not_read(valkey: Place, tmp_path: Path) -> None:
    """Its call fails by its id; the server and other calls go on."""
    file = raw(
        tmp_path,
        LIST
        + """
elif method == "tools/call":
    size = message["params"]["arguments"].get("size", 0)
    say(id=message["id"], result={"content": [{"type": "text", "text": "x" * size}]})
""",
    )
    async with mounting(valkey, file, most_bytes=100_000) as (bus, server):
        long, short = await asyncio.gather(bus.call("read", {"size": 5_000_000}), bus.call("read", {"size": 5}))
        assert failure(long).code == "too_long"
        assert short.output == "xxxxx"
        assert server.connection.starts == 1


@pytest.mark.usefixtures("slow")
async def test_floods_are_bounded(valkey: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Endless lines on standard error are counted, and progress without end is thinned out; calls are answered all the same."""
    caplog.set_level(logging.INFO)
    file = raw(
        tmp_path,
        LIST
        + """
elif method == "tools/call":
    sys.stderr.write("noise\\n" * 100_000)
    sys.stderr.write("n" * 5_000_000 + "\\n")
    sys.stderr.flush()
    token = message["params"]["_meta"]["progressToken"]
    for number in range(5_000):
        say(method="notifications/progress", params={"progressToken": token, "progress": number, "message": "m" * 5_000})
        say(method="notifications/message", params={"level": "info", "data": "noise"})
    say(id=message["id"], result={"content": [{"type": "text", "text": "fine"}]})
""",
    )
    async with mounting(valkey, file) as (bus, _):
        async with bus.stream("do") as call:
            events = [event async for event in call.events()]
        assert (await call.result()).output == "fine"
        assert len(events) < 1_000
    assert "mount.stderr_dropped" in caplog.text
    assert sum("mount.stderr " in record.getMessage() for record in caplog.records) < 1_000


@pytest.mark.usefixtures("slow")
async def test_a_flood_of_nonsense_ends_the_server(tmp_path: Path) -> None:
    """A program that writes without end and is no MCP server is given up at the start."""
    endless = tmp_path / "yes.py"
    endless.write_text("while True:\n    print('y')\n")
    with pytest.raises(ConfigurationError, match="1,000 lines that are no message"):
        await MountedServer("m", command(endless)).__aenter__()
    line = tmp_path / "line.py"
    line.write_text("import sys\nwhile True:\n    sys.stdout.write('y' * 65536)\n")
    with pytest.raises(ConfigurationError, match=r"more than|did not answer"):
        await MountedServer("m", command(line), Options(most_bytes=100_000, start=2.0)).__aenter__()


async def test_a_server_that_changes_its_tools_without_end(valkey: Place, tmp_path: Path) -> None:
    """Hundreds of changes become a few revisions; the latest tools are callable, and old ones go."""
    file = raw(
        tmp_path,
        """
if method == "initialize":
    welcome(message)
elif method == "tools/list":
    state["lists"] = state.get("lists", 0) + 1
    names = [f"tool_{state.get('changes', 0)}", "change"]
    say(id=message["id"], result={"tools": [tool(name, annotations={"readOnlyHint": True}) for name in names]})
elif method == "tools/call":
    if message["params"]["name"] == "change":
        for _ in range(200):
            state["changes"] = state.get("changes", 0) + 1
            say(method="notifications/tools/list_changed")
    say(id=message["id"], result={"content": [{"type": "text", "text": str(state["lists"])}]})
""",
    )
    async with mounting(valkey, file) as (bus, _):
        assert "tool_0" in bus.tools
        await bus.call("change")
        await bus.wait_for_tool("tool_200", 30.0)
        await eventually(lambda: "tool_0" not in bus.tools, timeout=30.0)
        assert int((await bus.call("tool_200")).output or "") < 20


@pytest.mark.usefixtures("slow")
async def test_thousands_of_tools_and_flawed_ones(valkey: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pages that never end are cut, and what can't be published is left out and named; the rest is callable."""
    file = raw(
        tmp_path,
        """
if method == "initialize":
    welcome(message)
elif method == "tools/list":
    page = int((message.get("params") or {}).get("cursor") or 0)
    odd = [
        tool("two words"), tool("two/words"), tool("same"), tool("same"),
        tool("dangling", inputSchema={"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}),
        tool("huge", description="d" * 20_000, inputSchema={"type": "object", "description": "x" * 400_000}),
        tool("hidden\\u200bname"),
    ]
    tools = odd if page == 0 else [tool(f"tool_{page}_{n}") for n in range(100)]
    say(id=message["id"], result={"tools": tools, "nextCursor": str(page + 1)})
elif method == "tools/call":
    say(id=message["id"], result={"content": [{"type": "text", "text": message["params"]["name"]}]})
""",
    )
    async with mounting(valkey, file, most_tools=500) as (bus, server):
        assert 450 < len(bus.tools) <= 500
        assert (await bus.call("tool_1_7")).output == "tool_1_7"
        names = {own: published for published, own in server.names().items()}
        assert names["two words"] != names["two/words"]
        for own in ("two words", "two/words", "hidden\u200bname"):
            assert (await bus.call(names[own])).output == own
        assert {"dangling", "huge"} >= set(server.left_out)
        assert "huge" in server.left_out
    assert "mount.tools_cut" in caplog.text
    assert "lists that name twice" in caplog.text


@pytest.mark.usefixtures("slow")
async def test_names_of_two_mounts_that_collide(valkey: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first mount keeps a name, the second serves its other tools and says so; a prefix serves all of them."""
    file = program(tmp_path, USUAL)
    more = program(tmp_path, USUAL + "\n@mcp.tool()\ndef extra() -> str:\n    '''More.'''\n    return 'x'\n", "more.py")
    async with mounting(valkey, file) as (bus, _):
        async with mounting(valkey, more, "second"):
            await bus.wait_for_tool("extra", 20.0)
            assert bus.tools["add"].descriptor.service == "demo"
        assert "tools.refused" in caplog.text
        async with mounting(valkey, more, "third", prefix="third_"):
            await bus.wait_for_tool("third_add", 20.0)
            assert (await bus.call("third_add", {"a": 1, "b": 1})).output == "2"


async def test_the_descriptions_of_a_mount_are_bounded_together(valkey: Place, tmp_path: Path) -> None:
    """More than agents read of one service is left out and named; what is before it is callable."""
    file = raw(
        tmp_path,
        """
if method == "initialize":
    welcome(message)
elif method == "tools/list":
    say(id=message["id"], result={"tools": [tool(f"tool_{n}", description="d" * 15_000) for n in range(300)]})
elif method == "tools/call":
    say(id=message["id"], result={"content": [{"type": "text", "text": "fine"}]})
""",
    )
    async with mounting(valkey, file) as (bus, server):
        assert (await bus.call("tool_0")).output == "fine"
        assert 50 < len(bus.tools) < 300
        assert len(bus.tools) + len(server.left_out) == 300


FLAWED = """
if method == "initialize":
    welcome(message)
elif method == "tools/list":
    state["lists"] = state.get("lists", 0) + 1
    flawed = [tool("ref", inputSchema={"$ref": "#"}), {"name": "bare"}, tool("hinted", annotations=5), {"inputSchema": {}}, None, 5]
    tools = [tool("first"), *flawed, tool("last"), tool(f"list_{state['lists']}")]
    say(id=message["id"], result={"tools": tools, "_meta": {"toolbus/left_out": {"first": "forged"}}})
elif method == "tools/call":
    say(method="notifications/tools/list_changed")
    say(id=message["id"], result={"content": [{"type": "text", "text": message["params"]["name"]}]})
"""


async def test_tools_that_the_protocol_does_not_allow(valkey: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They alone are left out and named once, at the start and when the tools are listed again."""
    async with mounting(valkey, raw(tmp_path, FLAWED)) as (bus, server):
        assert set(server.left_out) == {"ref", "bare", "hinted", "number 5 of the list", "number 6 of the list", "number 7 of the list"}
        assert "inputSchema.type" in server.left_out["ref"]
        assert (await bus.call("first")).output == "first"
        await bus.wait_for_tool("list_2", 60.0)
        assert (await bus.call("last")).output == "last"
        assert server.connection.starts == 1
    named = [record.getMessage() for record in caplog.records if "mount.tool_left_out" in record.getMessage()]
    assert sum("tool=ref " in each for each in named) == 1, named


UNREADABLE = {
    "null": "null",
    "list": "[]",
    "number": "5",
    "surrogate": '{"content": [{"type": "text", "text": "\\ud800"}]}',
    "bytes": '{"content": [{"type": "text", "text": "\xff"}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("result", UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_result_is_a_bad_answer(valkey: Place, tmp_path: Path, result: str) -> None:
    """Its caller is answered at once, and the server goes on."""
    file = raw(
        tmp_path,
        LIST
        + f"""
elif method == "tools/call":
    sys.stdout.buffer.write((f'{{{{"jsonrpc": "2.0", "id": {{message["id"]}}, "result": ' + {result!r} + '}}\\n').encode("latin-1"))
    sys.stdout.buffer.flush()
""",
    )
    async with mounting(valkey, file) as (bus, server):
        for _ in range(2):
            failed = failure(await bus.call("do", timeout=100.0))
            assert (failed.type, failed.code) == ("tool_error", "bad_answer")
        assert server.connection.starts == 1


async def test_lines_of_standard_error_that_come_together_are_one_event(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback is one event with its indentation; what comes without a pause is cut into events of a bounded length."""
    caplog.set_level(logging.INFO)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "mount.stderr " in record.getMessage()]

    stream = asyncio.StreamReader()
    log = StderrLog("m")
    reading = asyncio.create_task(log.read(stream))
    stream.feed_data(b"Traceback:\n  File one\n" + b"    raise\n" * 28 + b"Error: x\n")
    await eventually(lambda: len(told()) == 1, timeout=60.0)
    assert "  File one" in told()[0]
    assert "Error: x" in told()[0]
    stream.feed_data(b"line\n" * 120)
    stream.feed_eof()
    await reading
    assert [each.count("line") for each in told()[1:]] == [50, 50, 20]
    assert log.last_words == "line / line / line / line / line"


@pytest.mark.usefixtures("slow")
async def test_a_reader_that_fails_ends_the_server(valkey: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When what a server writes can't be taken in, it is started again with the reason in the log, and does not only look alive."""
    async with mounting(valkey, program(tmp_path, USUAL)) as (bus, server):
        with monkeypatch.context() as patched:
            patched.setattr("toolbus.edges.mounts.stdio._Reader._take", broken)
            asked = asyncio.create_task(bus.call("process"))
            await eventually(lambda: server.connection.starts == 1 and "no memory" in server.connection._reason, timeout=60.0)
        await asked
        await eventually(lambda: server.connection.starts == 2, timeout=60.0)
        assert (await bus.call("process")).success


async def broken(self: object, line: bytes) -> None:
    """Fail as no reader should."""
    raise MemoryError("no memory")
