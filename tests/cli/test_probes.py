"""Probes, metrics and words to the service manager, of every command that serves."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually_sync, plain_metrics
from tests.tiers import some
from toolbus.bus.broker.transport.embedded import free_port

TOOLS = '''
"""Tools for probes."""

import os

from toolbus import tool


@tool(effect="read")
async def pid() -> int:
    """Return the id of this process."""
    return os.getpid()


@tool(effect="read")
async def asked() -> bool:
    """Return whether this process could speak to the service manager."""
    return "NOTIFY_SOCKET" in os.environ
'''
# A command of each kind that serves, and takes calls or answers them.
COMMANDS = {
    "worker": ("worker", "probed.py"),
    "processes": ("worker", "probed.py", "--processes", "2"),
    "reload": ("worker", "probed.py", "--reload"),
    "mount": ("mount", "mounted", "--", sys.executable, "mounted.py"),
    "mounts": ("mount", "mounted", "--processes", "2", "--", sys.executable, "mounted.py"),
    "serve": ("serve", "--port", "0"),
    "host": ("platform", "host"),
    "history": ("operate", "history", "calls.db"),
}
MOUNTED = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("mounted")


@server.tool()
def six() -> int:
    "Return six."
    return 6


server.run("stdio")
"""


@pytest.fixture
def place(shell: Shell) -> Shell:
    """Return a shell in a folder with tools."""
    (shell.folder / "probed.py").write_text(TOOLS)
    (shell.folder / "mounted.py").write_text(MOUNTED)
    return shell


def status(port: int, path: str) -> int:
    """Return the status of an answer, or 0 without one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def metrics(port: int) -> dict[str, float]:
    """Return the samples, without the label of the namespace, which each of them has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = [line for line in plain_metrics(answer.read().decode()).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def probed(kind: str, port: int) -> list[str]:
    """Return the words that start a command with its probes at a port."""
    words = COMMANDS[kind]
    own = len(words) if "--" not in words else words.index("--")
    return [*words[:own], "--health-port", str(port), *words[own:]]


@pytest.mark.parametrize("kind", some(["worker", "serve", "host"], COMMANDS))
def test_every_command_that_serves_answers_probes(place: Shell, kind: str, tmp_path: Path) -> None:
    """They say that it has started and is ready; the service manager is told that, and that it stops."""
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        place.environment["NOTIFY_SOCKET"] = manager.getsockname()
        process = place.start_anew(*probed(kind, port))
        assert manager.recv(100) == b"READY=1"
        eventually_sync(lambda: status(port, "/ready") == 200, timeout=60)
        assert [status(port, path) for path in ("/live", "/startup", "/metrics", "/")] == [200] * 4
        expected = "toolbus_up" if kind in {"serve", "history"} else "toolbus_worker_processes_ready"
        assert metrics(port)[expected] >= 1
        process.terminate()
        assert manager.recv(100) == b"STOPPING=1"
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.usefixtures("slow")
def test_several_processes_are_counted_together(place: Shell, tmp_path: Path) -> None:
    """A process that is killed takes none of the counted calls with it, is started again, and cannot speak to the service manager."""
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        place.environment["NOTIFY_SOCKET"] = manager.getsockname()
        place.start_anew("worker", "probed.py", "--processes", "2", "--health-port", str(port), "--lease", "2")
        eventually_sync(lambda: status(port, "/ready") == 200 and metrics(port)["toolbus_worker_processes_ready"] == 2, timeout=60)
    assert place.run("call", "asked").stdout == "false\n"
    killed = json.loads(place.run("call", "pid").stdout)
    name = 'toolbus_worker_attempts_total{messaging_destination_name="probed",gen_ai_tool_name="pid"}'
    before = metrics(port)
    assert (before[name], before["toolbus_worker_slots"], before["toolbus_worker_restarts_total"]) == (1, 200, 0)
    os.kill(killed, signal.SIGKILL)
    eventually_sync(lambda: metrics(port)["toolbus_worker_restarts_total"] == 1, timeout=60)
    eventually_sync(lambda: metrics(port)["toolbus_worker_processes_ready"] == 2, timeout=60)
    assert metrics(port)[name] == 1


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_port_that_is_taken_ends_every_command(place: Shell, kind: str) -> None:
    """In one line that names the option, with exit code 1, whether one process serves or several."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = place.run(*probed(kind, taken.getsockname()[1]))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("toolbus: --health-port can't be kept: "), done.stderr
