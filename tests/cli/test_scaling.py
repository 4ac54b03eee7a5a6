"""``toolbus worker --processes N..M``: processes that follow the load, and what is wrong with other words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually
from toolbus import Settings, ToolBus
from toolbus.bus.broker.transport.embedded import free_port

TOOLS = '''
"""A tool that takes a while."""

import asyncio
import os

from toolbus import tool


@tool(effect="once")
async def nap() -> int:
    """Sleep, and return the id of this process."""
    await asyncio.sleep(0.2)
    return os.getpid()
'''


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("0..4", "'0' is no number of processes from 1 to 256; give one (4), or the fewest and the most (1..8)"),
        ("1..", "'' is no number of processes from 1 to 256; give one (4), or the fewest and the most (1..8)"),
        ("1..257", "'257' is no number of processes from 1 to 256; give one (4), or the fewest and the most (1..8)"),
        ("a lot", "'a lot' is no number of processes from 1 to 256; give one (4), or the fewest and the most (1..8)"),
        ("8..1", "8..1 ends below its beginning; give the fewest processes first: 1..8"),
    ],
)
def test_a_wrong_number_is_told_in_one_line(shell: Shell, given: str, told: str) -> None:
    """The line says what is wrong and what to write; nothing starts."""
    done = shell.run("worker", "calculator", "--processes", given)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"Error: Invalid value for '--processes': {told}")


def test_a_health_file_is_for_a_worker_that_can_have_one_process_only(shell: Shell, tmp_path: Path) -> None:
    """Several processes would write the same file."""
    done = shell.run("worker", "calculator", "--processes", "1..2", "--health-file", str(tmp_path / "healthy"))
    assert done.returncode == 2
    assert "--health-file is for one process" in done.stderr


def counts(port: int) -> dict[str, Any]:
    """Return what the worker tells of its processes."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
            told: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        # None of them is ready yet.
        told = json.load(error)
    return {"ready": told["ready"], **told["processes"]}


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(600)
@pytest.mark.anyio
async def test_processes_follow_the_load_and_no_call_is_lost(shell: Shell) -> None:
    """Full slots bring more of them, less work takes them away again while calls run, and calls that may run once only all succeed."""
    (shell.folder / "napping.py").write_text(TOOLS)
    port = free_port()
    process = shell.start_anew("worker", "napping.py", "--processes", "1..3", "--concurrency", "5", "--health-port", str(port))
    # A pipe that nobody reads would hold the workers up.
    assert process.stderr is not None
    log: list[str] = []
    reading = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reading.start()
    results: list[bool] = []
    settings = Settings(url=shell.environment["TOOLBUS_URL"], namespace=shell.environment["TOOLBUS_NAMESPACE"])
    async with ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("nap", timeout=60)

        async def call_until(stop: asyncio.Event) -> None:
            while not stop.is_set():
                results.append((await bus.call("nap", timeout=120)).success)

        async def processes() -> dict[str, Any]:
            return await asyncio.to_thread(counts, port)

        async def has(number: int) -> bool:
            return (await processes())["ready"] == number

        less, none = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(call_until(less))
            tasks.create_task(call_until(none))
            await eventually(lambda: has(3), timeout=120, interval=0.2)
            less.set()
            await eventually(lambda: has(1), timeout=240, interval=0.5)
            none.set()
    last = await asyncio.to_thread(counts, port)
    assert (last["wanted"], last["least"], last["most"], last["added"], last["dismissed"], last["restarts"]) == (1, 1, 3, 2, 2, 0)
    assert len(results) > 100
    assert all(results)
    os.kill(process.pid, signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 60) == 0
    reading.join(60)
    events = [json.loads(line) for line in log if "supervisor.scaled" in line]
    steps = [(each["before"], each["processes"]) for each in events]
    assert steps in ([(1, 2), (2, 3), (3, 2), (2, 1)], [(1, 2), (2, 3), (3, 1)])
