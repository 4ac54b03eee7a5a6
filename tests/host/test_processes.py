"""Hosts as processes: programs, deaths, and the commands that show them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.shell import Shell
from tests.contract import Place
from tests.forking import ForkServer
from tests.host.hosting import Stage, staged
from tests.servers import eventually, put_down
from toolbus.platform.backends.confinement import why_not
from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolSource

pytestmark = pytest.mark.anyio

PROGRAM = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        print("called with", json.dumps(said), flush=True)
        body = json.dumps({"pid": os.getpid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

print("listening", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, server: str, namespace: str) -> Iterator[Shell]:
    """Runs commands; what was started is put down, and its output closed."""
    made = Shell(forks, tmp_path, server, namespace)
    made.environment |= {"TOOLBUS_LEASE": "2"}
    (tmp_path / "program.py").write_text(PROGRAM)
    yield made
    for process in made.started:
        put_down(process)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """The namespace of the shell."""
    return Place(server, namespace)


def program(folder: Path, tool: str, **running: Any) -> RecordedTool:
    """A record of the program."""
    source = ToolSource(type="local", host_dir=str(folder), command=(sys.executable, "program.py", "{port}"))
    return RecordedTool(meta=ToolMeta(tool_id=tool, description="Answer."), sources=(source,), running=Running(**running))


def lives(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def called(stage: Stage, tool: str) -> int:
    """Call the program; return its number."""
    result = await stage.bus.call(tool, {"n": 1}, timeout=60.0, wait=60.0)
    assert result.success, result.error
    return int(result.data["pid"])


@pytest.mark.usefixtures("slow")
async def test_a_killed_hosts_routes_and_programs_go_and_another_host_takes_over(shell: Shell, place: Place) -> None:
    """No orphan is left, no route is stale after a lease, and a tool that runs at one host runs at the next one."""
    async with staged(place) as stage:
        await stage.records.put(program(shell.folder, "tool_alone", single=True))
        await stage.records.put(program(shell.folder, "tool_both"))
        hosts = {"one": shell.start("platform", "host", "--name", "one")}
        await stage.bus.wait_for_tool("tool_alone", timeout=30.0)
        first = {name: await called(stage, name) for name in ("tool_alone", "tool_both")}
        held = (await stage.route("tool_alone", "running")).host
        assert held.startswith("one-")
        hosts["two"] = shell.start("platform", "host", "--name", "two")
        await eventually(lambda: _at(stage, "tool_both", "two-"), timeout=30.0)
        assert not await _at(stage, "tool_alone", "two-")
        hosts["one"].send_signal(signal.SIGKILL)
        await eventually(lambda: not any(map(lives, first.values())), timeout=30.0)
        await eventually(lambda: _at(stage, "tool_alone", "two-"), timeout=30.0)
        again = await called(stage, "tool_alone")
        assert again != first["tool_alone"]
        await eventually(lambda: _nowhere(stage, "one-"), timeout=30.0)
        hosts["two"].send_signal(signal.SIGTERM)
        await eventually(lambda: hosts["two"].poll() == 0, timeout=30.0)
        assert await stage.routes() == {}
        assert not lives(again)


@pytest.mark.usefixtures("slow")
@pytest.mark.skipif(bool(why_not()), reason="this machine can't confine programs")
async def test_a_host_confines_what_a_model_wrote(shell: Shell, place: Place) -> None:
    """It is called over the bus as ever, and is a process of its own world; a deployment may say otherwise."""
    shell.folder.chmod(0o755)
    made = program(shell.folder, "made_tool")
    source = msgspec.structs.replace(made.sources[0], command=("python3", "program.py", "{port}"))
    async with staged(place) as stage:
        await stage.records.put(msgspec.structs.replace(made, sources=(source,), made_by="create_1"))
        for confine, is_seen in (("1", False), ("0", True)):
            shell.environment["TOOLBUS_CONFINE"] = confine
            host = shell.start("platform", "host")
            pid = await called(stage, "made_tool")
            route = await stage.route("made_tool", "running")
            # The program knows the number that it has among the processes that it sees.
            assert (pid == route.pid) is is_seen
            host.send_signal(signal.SIGTERM)
            await eventually(lambda host=host: host.poll() == 0, timeout=30.0)


async def _at(stage: Stage, tool: str, host: str) -> bool:
    return any(name == tool and where.startswith(host) for name, where in await stage.routes())


async def _nowhere(stage: Stage, host: str) -> bool:
    return all(not where.startswith(host) for _, where in await stage.routes())


@pytest.mark.usefixtures("slow")
async def test_logs_show_what_programs_print(shell: Shell, place: Place) -> None:
    """The latest lines come first, later ones as they are printed; tools that nobody recorded are told apart from silent ones."""
    async with staged(place) as stage:
        await stage.records.put(program(shell.folder, "tool_talks"))
        silent = shell.run("platform", "logs", "tool_talks")
        assert (silent.returncode, silent.stdout) == (0, "")
        assert "printed nothing" in silent.stderr
        missing = shell.run("platform", "logs", "tool_missing")
        assert missing.returncode == 1
        assert "platform list" in missing.stderr
        shell.start("platform", "host")
        await stage.bus.wait_for_tool("tool_talks", timeout=30.0)
        await called(stage, "tool_talks")
        await eventually(lambda: 'called with {"n": 1}' in shell.run("platform", "logs", "tool_talks").stdout, timeout=30.0)
        shown = [json.loads(line) for line in shell.run("platform", "logs", "tool_talks", "--output", "json").stdout.splitlines()]
        assert "listening" in [line["line"] for line in shown]
        following = shell.start("platform", "logs", "tool_talks", "-f", "-n", "1")
        assert following.stdout is not None
        assert "called with" in following.stdout.readline()
        await called(stage, "tool_talks")
        assert "called with" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        await eventually(lambda: following.poll() is not None, timeout=30.0)


async def test_a_host_without_a_server_says_so(shell: Shell) -> None:
    """It ends with one line and no traceback, as a worker does; wrong labels, too."""
    wrong = shell.run("platform", "host", "--label", "a b")
    assert wrong.returncode == 1
    assert "no label" in wrong.stderr
    shell.environment["TOOLBUS_URL"] = "memory://"
    assert "memory://" in shell.run("platform", "host").stderr
