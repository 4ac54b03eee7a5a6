"""Child processes of a worker that die while they hold calls."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio

TOOLS = '''
import asyncio, os
from pathlib import Path
from toolbus import tool

@tool(service="mortal", effect="read")
async def linger(mark: str) -> int:
    """Hang in the first process, and answer in the next."""
    try:
        with open(mark, "x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return os.getpid()
    os.rename(mark, mark + ".done")
    Path(mark).touch()
    await asyncio.sleep(600)

@tool(service="mortal", effect="read")
async def die() -> str:
    """Take the process with it."""
    os.kill(os.getpid(), 9)
'''


@pytest.mark.usefixtures("slow")
async def test_calls_of_a_dead_child_go_on_at_once(shell: Shell, server: str, namespace: str) -> None:
    """The supervisor tells the others, so a call of a killed child does not wait for the end of its lease of 60 seconds."""
    (shell.folder / "mortal.py").write_text(TOOLS)
    shell.start_anew("worker", "mortal.py", "--processes", "2", "--lease", "60")
    mark = shell.folder / "mark"
    async with ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("linger", 30)
        running = asyncio.ensure_future(bus.call("linger", {"mark": str(mark)}, timeout=50))
        victim = int(await eventually(lambda: (shell.folder / "mark.done").exists() and (shell.folder / "mark.done").read_text(), 20))
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        result = await running
        took = time.monotonic() - killed
    assert result.success, result.error
    assert result.data != victim
    assert took < 10


@pytest.mark.usefixtures("slow")
async def test_a_call_that_kills_every_process_ends_as_that(shell: Shell, server: str, namespace: str) -> None:
    """It ends with the number of deaths long before its own timeout, and the processes serve again."""
    (shell.folder / "mortal.py").write_text(TOOLS)
    shell.environment["TOOLBUS_MAX_DELIVERIES"] = "3"
    shell.start_anew("worker", "mortal.py", "--processes", "2", "--lease", "60")
    async with ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("die", 30)
        result = await bus.call("die", timeout=55)
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("tool_error", "max_deliveries")
    assert "given up at attempt 4: the workers of 3 before died" in result.error.message


CANCELLING = '''
import asyncio
from toolbus import tool

@tool(service="cancelling", effect="read")
async def cancel_all() -> str:
    """Cancel every task that there is."""
    for task in asyncio.all_tasks():
        task.cancel()
    return "done"
'''


@pytest.mark.usefixtures("slow")
async def test_a_worker_whose_tasks_a_tool_cancels_says_that_it_failed(shell: Shell, server: str, namespace: str) -> None:
    """As an error, and not that it stopped as it was told to."""
    (shell.folder / "cancelling.py").write_text(CANCELLING)
    worker = shell.start_anew("worker", "cancelling.py", "--lease", "2")
    async with ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("cancel_all", 30)
        await bus.call("cancel_all", timeout=2)
    _, said = await asyncio.to_thread(worker.communicate, timeout=30)
    assert worker.returncode != 0
    assert '"worker.failed"' in said, said
    assert '"worker.stopped"' not in said
