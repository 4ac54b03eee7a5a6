"""``toolbus dev`` ends with all that it started, in whatever way it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.servers import eventually_sync
from tests.tiers import some
from toolbus.bus.broker.transport.embedded import free_port

TOOL = """
from toolbus import tool

@tool(effect="read")
def say() -> str:
    "Say it."
    return "x"
"""


def listens(this: socket.socket, port: int) -> bool:
    """Listen at a port of this machine; return False while another program does."""
    try:
        this.bind(("127.0.0.1", port))
    except OSError:
        return False
    this.listen()
    return True


def introduced(dev: subprocess.Popen[str]) -> None:
    """Wait until everything runs."""
    assert dev.stdout is not None
    for line in dev.stdout:
        if "Ctrl-C stops everything." in line:
            return
    pytest.fail(f"dev ended with {dev.wait()}")


def running(words: str) -> list[int]:
    """Return the processes whose environment has these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if words.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def title(place: Path) -> str:
    """Return a process's command line; empty when it has ended."""
    try:
        return place.read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("reload", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "reload"])
@pytest.mark.parametrize("number", some([signal.SIGTERM], [signal.SIGHUP, signal.SIGKILL, signal.SIGTERM]), ids=lambda number: number.name)
def test_dev_leaves_nothing_behind(forks: ForkServer, tmp_path: Path, number: signal.Signals, reload: bool) -> None:
    """Its worker, its server and the server's folder go, after a hang-up and a kill, too."""
    mark = f"TOOLBUS_TEST_DEV={tmp_path}"
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{free_port()}", "default")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "spoken.py").write_text(TOOL)
    shell.environment |= {"TMPDIR": str(temporary), "TOOLBUS_TEST_DEV": str(tmp_path), "TOOLBUS_GRACE": "1"}
    try:
        dev = shell.start_anew("dev", "spoken.py", *(["--reload"] if reload else []))
        introduced(dev)
        assert list(temporary.glob("toolbus-server-*"))
        assert len(running(mark)) > 2
        os.kill(dev.pid, number)
        assert dev.wait(20) == (0 if number != signal.SIGKILL else -number)
        eventually_sync(lambda: not running(mark), timeout=45)
        eventually_sync(lambda: not list(temporary.iterdir()))
    finally:
        shell.close()


@pytest.mark.usefixtures("slow")
def test_a_worker_of_a_killed_dev_leaves_the_server_that_was_there(shell: Shell) -> None:
    """Its tools go with it rather than join the next one's."""
    dev = shell.start_anew("dev")
    introduced(dev)
    assert shell.json("see", "services")
    dev.kill()
    eventually_sync(lambda: not any(each["workers"] for each in shell.json("see", "services")), timeout=45)


@pytest.mark.usefixtures("slow")
def test_dev_says_that_its_server_has_ended(forks: ForkServer, tmp_path: Path) -> None:
    """It ends with one line of its own and exit code 1, and takes its worker along."""
    mark = f"TOOLBUS_TEST_DEV={tmp_path}"
    port = free_port()
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{port}", "default")
    shell.environment |= {"TOOLBUS_TEST_DEV": str(tmp_path), "TOOLBUS_GRACE": "1"}
    try:
        dev = shell.start_anew("dev")
        introduced(dev)
        (server,) = [entry.parent for entry in Path("/proc").glob("[0-9]*/cmdline") if f"valkey-server 127.0.0.1:{port}" in title(entry)]
        os.kill(int(server.name), signal.SIGKILL)
        errors = dev.communicate(timeout=30)[1].splitlines()
        assert dev.returncode == 1
        assert [line for line in errors if line.startswith("toolbus: ")] == [
            "toolbus: the server that this command had started has ended, and its data with it; start `toolbus dev` again"
        ]
        eventually_sync(lambda: not running(mark), timeout=45)
    finally:
        shell.close()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("target", "words"),
    [("nofile.py", "no file or folder"), ("broken.py", "SyntaxError"), ("taken.py", "belongs to")],
    ids=["missing", "broken", "taken"],
)
def test_dev_introduces_nothing_that_did_not_start(shell: Shell, target: str, words: str) -> None:
    """Beside other workers on the same server, a target that can't be served is one line and exit code 1, without the page of success."""
    (shell.folder / "broken.py").write_text("def\n")
    (shell.folder / "spoken.py").write_text(TOOL)
    (shell.folder / "taken.py").write_text(TOOL)
    shell.environment["TOOLBUS_OWNER"] = "somebody"
    shell.start("worker", "spoken.py:say")
    assert shell.run("call", "say", "--wait", "20").stdout == "x\n"
    shell.environment["TOOLBUS_OWNER"] = "else"
    done = shell.run("dev", target)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(errors)) == (1, 1), done.stderr
    assert words in errors[0]
    assert "Try in another terminal" not in done.stdout


@pytest.mark.usefixtures("slow")
def test_dev_obeys_an_interrupt_that_its_parent_ignored(shell: Shell) -> None:
    """A script that starts it with & makes it ignore SIGINT, as ``toolbus worker`` does not."""
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "toolbus", "dev"]
    dev = subprocess.Popen(ignoring, cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shell.started.append(dev)
    introduced(dev)
    dev.send_signal(signal.SIGINT)
    assert dev.wait(20) == 0


@pytest.mark.parametrize("taken", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["usual", "taken"])
def test_dev_prints_the_address_of_its_gateway(forks: ForkServer, tmp_path: Path, taken: bool) -> None:
    """It is the usual one unless another program is there; what is printed works."""
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{free_port()}", "default")
    with socket.socket() as other:
        if taken:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # The gateway of another test may have the port, and leave it before this one begins.
            eventually_sync(lambda: listens(other, 8001), timeout=60)
        try:
            dev = shell.start_anew("dev")
            assert dev.stdout is not None
            line = next(line for line in dev.stdout if "/run_tool" in line)
            found = re.search(r"curl (http://127\.0\.0\.1:(\d+)/run_tool) --json '(.*)'", line)
            assert found is not None
            assert not taken or found[2] != "8001"
            sent = urllib.request.Request(found[1], found[3].encode(), {"content-type": "application/json"})
            with urllib.request.urlopen(sent, timeout=30) as answer:
                assert json.load(answer)["data"] == {"result": 42}
        finally:
            shell.close()
    assert dev.returncode == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("way", ["option", "environment"])
def test_the_port_of_its_gateway_is_chosen(forks: ForkServer, tmp_path: Path, way: str) -> None:
    """The gateway of dev listens at the port that was named, and one that another program has is refused in one line."""
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{free_port()}", "default")
    port = str(free_port())
    if way == "environment":
        shell.environment["TOOLBUS_GATEWAY_PORT"] = port
    words = ["--http-port", port] if way == "option" else []
    try:
        dev = shell.start_anew("dev", *words)
        assert dev.stdout is not None
        line = next(line for line in dev.stdout if "/run_tool" in line)
        assert f"http://127.0.0.1:{port}/run_tool" in line
        second = shell.run("dev", *words)
        assert second.returncode == 1
        assert f"127.0.0.1:{port}" in second.stderr
        assert "--http-port" in second.stderr
    finally:
        shell.close()
    assert dev.returncode == 0
