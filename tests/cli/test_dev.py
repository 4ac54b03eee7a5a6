"""``toolbus dev`` ends with all that it started, in whatever way it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.servers import eventually_sync
from toolbus.broker.embedded import free_port

TOOL = """
from toolbus import tool

@tool(effect="read")
def say() -> str:
    "Say it."
    return "x"
"""


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


@pytest.mark.parametrize("reload", [False, True], ids=["plain", "reload"])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_dev_leaves_nothing_behind(forks: ForkServer, tmp_path: Path, number: signal.Signals, reload: bool) -> None:
    """Its worker, its server and the server's folder go, after a hang-up and a kill, too."""
    mark = f"TOOLBUS_TEST_DEV={tmp_path}"
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{free_port()}", "default")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "spoken.py").write_text(TOOL)
    shell.environment |= {"TMPDIR": str(temporary), "TOOLBUS_TEST_DEV": str(tmp_path)}
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


def test_a_worker_of_a_killed_dev_leaves_the_server_that_was_there(shell: Shell) -> None:
    """Its tools go with it rather than join the next one's."""
    dev = shell.start_anew("dev")
    introduced(dev)
    assert shell.json("services")
    dev.kill()
    eventually_sync(lambda: shell.json("services") == [], timeout=45)
