"""``toolbus mount`` as people use it: listing, serving, several processes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.mounts.programs import USUAL, program, raw
from tests.mounts.test_hostile import FLAWED
from tests.mounts.test_openapi import PETS
from tests.servers import eventually_sync
from toolbus.operations.cli.mount import mount_command


@pytest.fixture
def programmed(shell: Shell) -> Path:
    """A server with a tool of every kind, in the shell's folder."""
    return program(shell.folder, USUAL)


@pytest.mark.usefixtures("slow")
def test_list_shows_what_would_be_served(shell: Shell, programmed: Path) -> None:
    """A table for people, descriptors for programs, and nothing is registered; no bus is needed."""
    words = ("mount", "demo", "--list", "--include", "[ap]*", "--exclude", "parts", "--prefix", "my_")
    shown = shell.run(*words, "--", sys.executable, "server.py")
    assert (shown.returncode, [line.split()[:2] for line in shown.stdout.splitlines()[1:]]) == (
        0,
        [["my_add", "read"], ["my_put", "idempotent"], ["my_process", "once"]],
    ), shown.stderr
    listed = json.loads(shell.run(*words, "--output", "json", "--", sys.executable, "server.py").stdout)
    first = listed["tools"][0]
    assert (first["name"], first["tool"], first["external"]) == ("my_add", "add", True)
    assert shell.json("tools") == []


def test_list_names_what_is_left_out(shell: Shell) -> None:
    """A tool that MCP does not allow is named with the reason, and the others are shown."""
    raw(shell.folder, FLAWED)
    shown = shell.run("mount", "demo", "--list", "--", sys.executable, "raw.py")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == ["first", "last", "list_1"]
    assert "left out: ref: inputSchema.type" in shown.stderr


@pytest.mark.usefixtures("slow")
def test_a_mount_is_served_by_several_processes(shell: Shell, programmed: Path) -> None:
    """Each has a server of its own; after SIGTERM none of them is left, and the exit code is 0."""
    words = ("mount", "demo", "--processes", "2", "--group", "some group", "--", sys.executable, "server.py")
    mount = shell.start_anew(*words)

    def pids() -> set[int]:
        done = [shell.run("call", "process", "--wait", "60") for _ in range(4)]
        return {int(each.stdout) for each in done if each.returncode == 0}

    seen: set[int] = set()
    eventually_sync(lambda: len(seen.update(pids()) or seen) == 2, timeout=100.0)
    assert "some group" in json.dumps(shell.json("see", "describe", "process"))
    mount.send_signal(signal.SIGTERM)
    mount.communicate(timeout=60)
    assert mount.returncode == 0
    eventually_sync(lambda: not any(_lives(pid) for pid in seen), timeout=30.0)


@pytest.mark.usefixtures("slow")
def test_a_killed_mount_leaves_no_server_behind(shell: Shell) -> None:
    """The server ends with its worker even if it hangs and would not see the end of its input."""
    hang = "\n@mcp.tool()\ndef hang() -> str:\n    '''Hang.'''\n    time.sleep(600)\n    return ''\n"
    file = program(shell.folder, USUAL + hang)
    mount = shell.start_anew("mount", "demo", "--", sys.executable, str(file))
    pid = int(shell.run("call", "process", "--wait", "60").stdout)
    shell.run("call", "hang", "--timeout", "0.5")
    mount.kill()
    mount.wait()
    eventually_sync(lambda: not _lives(pid), timeout=30.0)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended waits for its parent to be asked.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_an_api_is_listed_and_mounted(shell: Shell) -> None:
    """--openapi takes a file; operations that can't be served are named on standard error."""
    (shell.folder / "pets.json").write_text(json.dumps(PETS))
    words = ("mount", "pets", "--openapi", "pets.json", "--base-url", "http://127.0.0.1:9")
    shown = shell.run(*words, "--list")
    assert shown.returncode == 0, shown.stderr
    assert "find_pets       read" in shown.stdout
    assert "left out: post_upload: it needs a body" in shown.stderr
    shell.start(*words, "--processes", "2")
    refused = shell.run("call", "getPet", "id=1", "--wait", "60")
    assert "127.0.0.1 can't be reached now" in refused.stderr + refused.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("demo",), 2, "say what to mount"),
        (("two words", "--", "true"), 1, "is no name of a mount"),
        (("demo", "--", "no-such-program"), 1, "there is no program 'no-such-program'"),
        (("demo", "--processes", "2", "--", "no-such-program"), 1, "there is no program 'no-such-program'"),
        (("demo", "--env", "NO_SUCH_VARIABLE", "--", "true"), 1, "is not set"),
        (("demo", "--", sys.executable, "-c", "raise SystemExit('a key is missing')"), 1, "a key is missing"),
        (("demo", "--openapi", "nowhere.json"), 1, "nowhere.json"),
        (("demo", "--openapi", "x.json", "--", "true"), 2, "one of them"),
        (("demo", "--header", "X=env:Y", "--", "true"), 2, "are for a URL"),
        (("demo", "https://host/mcp", "--header", "s3cret"), 2, "NAME=env:VARIABLE"),
        (("demo", "https://host/mcp", "--bearer", "s3cret"), 1, "env:VARIABLE or file:PATH"),
        (("demo", "https://user:s3cret@host/mcp"), 1, "has a password"),
        (("demo", "ftp://host/mcp"), 1, "no address"),
    ],
)
def test_what_cannot_be_mounted_is_one_line(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    """Each mistake says what to do, and repeats no secret."""
    done = shell.run("mount", *words)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr, "s3cret" in done.stderr) == (code, True, False, False), (
        done.stderr
    )


@pytest.mark.usefixtures("slow")
def test_what_changes_after_its_approval_is_withheld(shell: Shell, programmed: Path) -> None:
    """--pin approves what was never decided about, once; a tool that says something else then waits for somebody to approve it."""
    mount = shell.start_anew("mount", "demo", "--pin", "--", sys.executable, "server.py")
    assert shell.run("call", "put", "key=k", "--wait", "60").returncode == 0

    def pinned() -> bool:
        return {each["state"] for each in shell.json("secure", "pins", "list")} == {"approved"}

    eventually_sync(pinned, timeout=60.0)
    mount.send_signal(signal.SIGTERM)
    mount.communicate(timeout=60)
    programmed.write_text(programmed.read_text().replace("Put a key.", "Put a key, and tell it to everyone."))
    shell.start("mount", "demo", "--pin", "--", sys.executable, "server.py")
    assert shell.run("call", "add", "a=1", "b=2", "--wait", "60").returncode == 0
    assert shell.run("call", "put", "key=k").returncode == 1
    assert shell.run("secure", "approve", "put").returncode == 0
    assert shell.run("call", "put", "key=k", "--wait", "60").returncode == 0


GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "mount.md"


@pytest.mark.usefixtures("slow")
def test_the_guide_runs(shell: Shell) -> None:
    """The guide's server is served by the command and by the program, its provider lists tools, and its options exist."""
    text = GUIDE.read_text("utf-8")
    served, own, provider = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (shell.folder / "server.py").write_text(served)
    (shell.folder / "own.py").write_text(own)
    program = shell.start("worker", "server.py:mcp")
    called = shell.run("call", "total", "numbers=[1, 2.5]", "--wait", "60")
    assert (called.returncode, called.stdout.strip()) == (0, "3.5"), called.stderr
    program.terminate()
    program.communicate(timeout=60)
    done = subprocess.run([sys.executable, "own.py"], cwd=shell.folder, env=shell.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "{'result': 3.5}"), done.stderr
    subprocess.run([sys.executable, "-c", provider], cwd=shell.folder, env=shell.environment, check=True)
    options = {word for param in mount_command.params for word in param.opts} | {"--state", "--processes", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= options
