"""A command that another one started ends when that one is gone, also when the server is gone with it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from tests.cli.shell import Shell
from tests.cli.test_mistakes import commands
from tests.tiers import some
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.worker.process.lifeline import Lifeline
from toolbus.operations.cli import main

_WITHIN = 90

# What can be started by another command, and how it is started here.
STARTED = {
    "platform host": [["platform", "host"]],
    "platform im": [["platform", "im", "--server", "ws://127.0.0.1:9", "--contact", "c"]],
    "mount": [["mount", "mounted", "--", sys.executable, "mcp_server.py"]],
    "serve": [["serve", "--port", "0"]],
    "worker": [
        ["worker", *rest]
        for rest in (
            ["calculator"],
            ["service-agent"],
            ["coding-agent"],
            ["calculator", "--processes", "2"],
            ["calculator", "--processes", "1..2"],
        )
    ],
}

MOUNTED = """
from mcp.server.mcpserver import MCPServer

mcp = MCPServer("demo")


@mcp.tool()
def shout(text: str) -> str:
    \"\"\"Shout.\"\"\"
    return text.upper()


mcp.run()
"""

MODEL = {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}


# Runs a command of a worker, which dies when it would first take a request: one that was handed back, or a new one.
DYING = """
import os
from toolbus.bus.broker.lease.recover import Upkeep
from toolbus.bus.broker.take.intake import Intake
from toolbus.operations.cli import main

Intake.take = Upkeep.take_back = lambda *_: os._exit(7)
main()
"""


def with_lifeline(command: click.Command) -> bool:
    """Return whether another process may start this command with a lifeline."""
    return any(option.name == "lifeline" for option in command.params)


def test_every_command_with_a_lifeline_is_tried() -> None:
    """A command that gets a lifeline is added to the table above."""
    assert {" ".join(words) for words, command in commands(main) if with_lifeline(command)} == STARTED.keys()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("words", some([["worker", "calculator"]], [words for each in STARTED.values() for words in each]), ids=" ".join)
def test_a_process_ends_in_order_when_its_parent_and_the_server_are_gone(shell: Shell, words: list[str]) -> None:
    """No step of its end waits for the server, so that it need not be killed."""
    (shell.folder / "mcp_server.py").write_text(MOUNTED)
    folders = {name: str(shell.folder / name) for name in ("TOOLBUS_TOOLS_DIR", "TOOLBUS_CODING_WORKSPACES", "TOOLBUS_IM_STATE")}
    with EmbeddedServer() as server, Lifeline() as line:
        at = words.index("--") if "--" in words else len(words)
        process = subprocess.Popen(
            [sys.executable, "-m", "toolbus", *words[:at], *line.words, *words[at:]],
            cwd=shell.folder, env={**shell.environment, **MODEL, **folders, "TOOLBUS_URL": server.url, "TOOLBUS_GRACE": "1"},
            pass_fds=(line.theirs,), start_new_session=True, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            line.started()
            while not line.state.serving:
                assert select.select([line], [], [], _WITHIN)[0]
                assert not line.read().refused, line.state
                assert process.poll() is None
            server.kill()
            line.__exit__(None, None, None)
            log = process.communicate(timeout=_WITHIN)[1]
        finally:
            process.kill()
            process.wait()
    assert "process.overdue" not in log
    assert process.returncode == 0, log


def test_an_idle_worker_ends_soon_when_the_server_is_gone(shell: Shell) -> None:
    """All steps of its end together wait a few seconds for the server, whatever the grace period, and the log says so once."""
    with EmbeddedServer() as server:
        shell.environment |= {"TOOLBUS_URL": server.url, "TOOLBUS_GRACE": "600"}
        worker = shell.start("worker", "calculator")
        assert worker.stderr is not None
        assert any('"worker.serving"' in line for line in worker.stderr)
        server.kill()
        assert any('"link.lost"' in line for line in worker.stderr)
        worker.terminate()
        asked = time.monotonic()
        log = worker.communicate(timeout=_WITHIN)[1]
    assert time.monotonic() - asked < 10, log
    assert worker.returncode == 0
    assert [log.count(f'"worker.{event}"') for event in ("awaits_server", "unregister_failed", "stopped")] == [1, 1, 1], log


@pytest.mark.parametrize("words", some([["worker"]], [["worker"], ["mount"], ["platform", "host"]]), ids=" ".join)
def test_a_parent_knows_a_worker_before_it_holds_calls(shell: Shell, words: list[str]) -> None:
    """A child that dies before it serves has its calls released at once, by the id that its parent knows."""
    (shell.folder / "mcp_server.py").write_text(MOUNTED)
    words = STARTED[" ".join(words)][0]
    at = words.index("--") if "--" in words else len(words)
    with EmbeddedServer() as server, Lifeline() as line:
        process = subprocess.Popen(
            [sys.executable, "-c", DYING, *words[:at], *line.words, *words[at:]],
            cwd=shell.folder, env={**shell.environment, "TOOLBUS_TOOLS_DIR": str(shell.folder), "TOOLBUS_URL": server.url},
            pass_fds=(line.theirs,), start_new_session=True, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            line.started()
            log = process.communicate(timeout=_WITHIN)[1]
        finally:
            process.kill()
            process.wait()
        state = line.read()
    assert process.returncode == 7, log
    assert not state.serving
    assert state.instance
    assert bool(state.host) == ("host" in words)


@pytest.mark.parametrize("stuck", ["await asyncio.Event().wait()", "time.sleep(600)"])
def test_a_process_whose_end_is_stuck_is_ended(tmp_path: Path, stuck: str) -> None:
    """A blocked event loop, for example, does not keep it beyond its grace period and the margin."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import asyncio, sys, time\n"
        f"from toolbus.bus.worker.process.lifeline import ChildState, report_state, watch_lifeline\n"
        f"async def main():\n"
        f"    watch_lifeline(int(sys.argv[1]), lambda: None, 0.1, margin=0.1)\n"
        f"    report_state(int(sys.argv[1]), ChildState(serving=True))\n"
        f"    {stuck}\n"
        f"asyncio.run(main())\n"
    )
    with Lifeline() as line:
        process = subprocess.Popen([sys.executable, str(program), str(line.theirs)], pass_fds=(line.theirs,), env=dict(os.environ))
        try:
            line.started()
            while not line.read().serving:
                assert select.select([line], [], [], _WITHIN)[0]
            line.__exit__(None, None, None)
            assert process.wait(_WITHIN) == 1
        finally:
            process.kill()
            process.wait()
