"""``toolbus see usage``, and workers with middleware, as users run them."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.protocols import Spent

pytestmark = pytest.mark.anyio

TOOLS = '''"""Tools of a test."""

from toolbus import tool
from toolbus.middleware import Metering, RateLimit

metering = Metering()
limits = [RateLimit(2, per=3600)]


@tool(effect="read")
async def shout(text: str):
    """Shout a text."""
    return text.upper()
'''


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """Return a shell with a tool file in its folder."""
    (shell.folder / "loud.py").write_text(TOOLS)
    return shell


@pytest.mark.usefixtures("slow")
async def test_usage_is_shown_for_people_and_programs(shell: Shell) -> None:
    """Two worker processes with middleware count together; the table can be narrowed, and says what is missing when it is empty."""
    nothing = shell.run("see", "usage")
    assert (nothing.returncode, "nothing was counted" in nothing.stderr) == (0, True)
    shell.start("worker", "loud.py", "--processes", "2", "--middleware", "loud.py:metering", "--middleware", "loud.py:limits")
    for number in range(3):
        done = shell.run("call", "shout", "text=hey", "--user", "al", "--wait", "20")
        assert done.returncode == int(number > 1), done.stderr
    assert shell.run("call", "shout", "text=hey", "--user", "bo").returncode == 0
    rows = await eventually(lambda: [row for row in [shell.json("see", "usage")] if sum(each["calls"] for each in row) == 4], timeout=20)
    assert [(row["user"], row["tool"], row["calls"], row["errors"], row["bytes"]) for row in rows[0]] == [
        ("al", "shout", 3, 1, 6),
        ("bo", "shout", 1, 0, 3),
    ]
    table = shell.run("see", "usage", "--days", "7", "--user", "al", "--tool", "shout").stdout.splitlines()
    assert table[0].split() == ["USER", "TOOL", "CALLS", "ERRORS", "MS", "BYTES"]
    assert (len(table), table[1].split()[:4]) == (2, ["al", "shout", "3", "1"])
    assert shell.json("see", "usage", "--tool", "other") == []


def test_wrong_middleware_is_one_line(shell: Shell) -> None:
    """A name that is not there, or is no middleware, ends the worker with exit code 1 and says so."""
    for place, said in (
        ("loud.py:nothing", "has no 'nothing'"),
        ("loud.py:TOOLS", "has no 'TOOLS'"),
        ("loud.py:Metering", "is no middleware"),
    ):
        done = shell.run("worker", "loud.py", "--middleware", place)
        assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr


async def test_the_tokens_of_coding_agents_are_shown_by_tool_and_task(shell: Shell) -> None:
    """Each task has a row, and together they have a sum."""
    assert "no coding agent had a task" in shell.run("see", "usage", "--models").stderr
    async with ToolBus(shell.environment["TOOLBUS_URL"], namespace=shell.environment["TOOLBUS_NAMESPACE"]) as bus:
        for spec in ("one", "two"):
            await bus.creations.submit(spec, by="al", about="stitch")
            claimed = await bus.creations.claim("w")
            assert claimed is not None
            await bus.creations.write(claimed, spent=Spent(1_000, 200, 1_250_000))
            await bus.creations.end(claimed, "done")
    lines = shell.run("see", "usage", "--models").stdout.splitlines()
    assert lines[0].split() == ["TOOL", "TASK", "USER", "STATUS", "PROMPT", "COMPLETION", "PRICE"]
    assert lines[-1].split() == ["all", "2000", "400", "2.5000"]
    rows = shell.json("see", "usage", "--models", "--user", "al", "--tool", "stitch")
    assert [(row["tool"], row["prompt_tokens"], row["price"]) for row in rows] == [("stitch", 1_000, 1.25)] * 2
    assert shell.json("see", "usage", "--models", "--user", "bob") == []


async def test_an_operator_cancels_any_task(shell: Shell) -> None:
    """One that waits ends at once, one that runs is told to; a task that has ended stays as it is."""
    async with ToolBus(shell.environment["TOOLBUS_URL"], namespace=shell.environment["TOOLBUS_NAMESPACE"]) as bus:
        waits, runs = [await bus.creations.submit(spec, by="al") for spec in ("one", "two")]
        claimed = await bus.creations.claim("w")
        assert claimed is not None
        if claimed.id == waits.id:
            waits, runs = runs, waits
        said = [shell.run("platform", "cancel", each).stdout for each in (waits.id, runs.id)]
        assert said == [f"{waits.id} is cancelled\n", f"{runs.id} is told to end\n"]
        assert await bus.creations.write(claimed) == "cancel"
        await bus.creations.end(claimed, "done")
    assert shell.run("platform", "cancel", runs.id).stdout == f"{runs.id} has ended before: it is done\n"
    none = shell.run("platform", "cancel", "create_none")
    assert (none.returncode, "there is no task 'create_none'" in none.stderr) == (1, True)
