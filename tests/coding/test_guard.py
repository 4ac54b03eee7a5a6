"""The guard around a task's tools: interrupted commands are not run twice, and endless repetition ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolbus.bus.middleware import ToolCall
from toolbus.bus.values.results import ToolResult
from toolbus.platform.coding.jobs import Guard
from toolbus.testing.environment import OwnTallies

pytestmark = pytest.mark.anyio


class Log:
    """A job that keeps its log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)

    def progress(self, text: str) -> None:
        """Take note of nothing."""


class Tool:
    """A tool that counts its runs."""

    def __init__(self, output: str = "fine") -> None:
        self.runs = 0
        self.output = output

    async def __call__(self, call: ToolCall) -> ToolResult:
        """Run."""
        self.runs += 1
        return ToolResult(output=self.output)


def call(tool: str, key: str = "", **arguments: Any) -> ToolCall:
    """A call of a task's tool."""
    return ToolCall(
        id="c",
        tool=tool,
        service="task",
        user="",
        session="",
        arguments=arguments,
        config={},
        effect="",
        side="handler",
        attempt=1,
        tallies=OwnTallies(),
        idempotency_key=key,
    )


@pytest.mark.parametrize(
    ("made", "again"),
    [
        (call("run_in_uv", "k", command="make"), False),
        (call("run_in_docker", "k", command="make"), False),
        (call("write_file", "k", path="a", mode="append"), False),
        (call("write_file", "k", path="a", mode="overwrite"), True),
        (call("read_file", "k", path="a"), True),
        (call("run_in_uv", "k", mode="read", handle="h"), True),
        (call("run_in_uv", "", command="make"), True),
    ],
)
async def test_a_command_that_was_interrupted_is_not_run_twice(tmp_path: Path, made: ToolCall, again: bool) -> None:
    """A worker that goes on with a task finds the mark of the one that died; what can be repeated is."""
    tool, log = Tool(), Log()
    assert (await Guard(log, tmp_path / "marks")(made, tool)).success
    result = await Guard(log, tmp_path / "marks")(made, tool)
    assert result.success is again
    assert tool.runs == 1 + again
    assert again or (result.error.type, result.error.code) == ("outcome_unknown", "interrupted")


async def test_another_call_of_the_same_tool_is_run(tmp_path: Path) -> None:
    """Each call has a key of its own."""
    tool, guard = Tool(), Guard(Log(), tmp_path)
    for key in ("a", "b"):
        assert (await guard(call("run_in_uv", key, command="make"), tool)).success
    assert tool.runs == 2


async def test_the_same_call_with_the_same_answer_is_refused_in_the_end(tmp_path: Path) -> None:
    """One that answers otherwise, such as a program that is watched, is not."""
    tool, guard = Tool(), Guard(Log(), tmp_path)
    results = [await guard(call("read_file", path="a"), tool) for _ in range(7)]
    assert [result.success for result in results] == [True] * 5 + [False] * 2
    assert (await guard(call("read_file", path="b"), tool)).success
    for number in range(9):
        tool.output = str(number)
        assert (await guard(call("run_in_uv", mode="read", handle="h"), tool)).success


async def test_the_log_has_calls_without_the_files_contents(tmp_path: Path) -> None:
    """The content of a file is in the workspace; the log is for people."""
    log = Log()
    await Guard(log, tmp_path)(call("write_file", path="a", content="secret"), Tool())
    assert any("write_file" in line for line in log.lines)
    assert not any("secret" in line for line in log.lines)
