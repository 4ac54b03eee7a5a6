"""``toolbus worker --reload``: what restarts a worker, what it waits for, and what ends it."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually_sync

TOOL = """
import os
from toolbus import tool

@tool(service="spoken", effect="read")
def say() -> str:
    "Say it."
    return "{}"

@tool(service="spoken", effect="idempotent")
def die() -> None:
    "End the process."
    os._exit(7)
"""
SAVES = 5


def save(shell: Shell, words: str) -> None:
    """Write a tool file whose tool says these words, and wait until it does."""
    (shell.folder / "spoken.py").write_text(TOOL.format(words))
    eventually_sync(lambda: shell.run("call", "say", "--wait", "5").stdout == f"{words}\n", timeout=30)


def ended(worker: subprocess.Popen[str]) -> tuple[list[str], list[dict[str, Any]]]:
    """Stop a worker; return the errors that it printed, and its log."""
    worker.terminate()
    lines = worker.communicate(timeout=30)[1].splitlines()
    assert worker.returncode == 0
    log = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in lines if not line.startswith("{")], log


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("processes", ["1", "2"])
def test_each_save_restarts_at_once(shell: Shell, processes: str) -> None:
    """Ordinary saves are no crashes: each is logged at info, and none is waited for longer than the one before."""
    (shell.folder / "spoken.py").write_text(TOOL.format("first"))
    worker = shell.start_anew("worker", "spoken.py", "--reload", "--processes", processes)
    assert shell.run("call", "say", "--wait", "20").stdout == "first\n"
    for number in range(SAVES):
        save(shell, f"words {number}")
    errors, log = ended(worker)
    assert not errors
    assert not [each for each in log if each["event"] == "supervisor.restarting"]
    assert [each["level"] for each in log if each["event"] == "supervisor.reloading"] == ["info"] * SAVES


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("from_the_start", [True, False], ids=["from the start", "later"])
def test_a_broken_file_is_told_once_and_waited_for(shell: Shell, processes: str, from_the_start: bool) -> None:
    """Each broken state of a file is one error, however many processes there are, until the next change; then it is served."""
    if from_the_start:
        (shell.folder / "spoken.py").write_text("def\n")
    else:
        (shell.folder / "spoken.py").write_text(TOOL.format("whole"))
    worker = shell.start_anew("worker", "spoken.py", "--reload", "--processes", processes)
    assert worker.stderr is not None
    if not from_the_start:
        save(shell, "changed")
        (shell.folder / "spoken.py").write_text("def\n")
    errors = []
    for broken, words in (("import nothing_like_this\n", "SyntaxError"), ("", "nothing_like_this"), (None, "defines no ToolService")):
        for line in worker.stderr:
            if line.startswith("toolbus: "):
                errors.append(line)
                assert words in line
                break
        if broken is not None:
            (shell.folder / "spoken.py").write_text(broken)
    save(shell, "mended")
    others, log = ended(worker)
    assert (len(errors), others) == (3, [])
    assert not [each for each in log if each["event"] == "supervisor.restarting"]


@pytest.mark.usefixtures("slow")
def test_a_process_that_dies_is_started_again(shell: Shell) -> None:
    """A death is no broken file: it is logged, nothing waits for a change, and a change is served as ever."""
    (shell.folder / "spoken.py").write_text(TOOL.format("first"))
    shell.environment["TOOLBUS_MAX_DELIVERIES"] = "2"
    worker = shell.start_anew("worker", "spoken.py", "--reload")
    assert shell.run("call", "die", "--wait", "20").returncode == 1
    save(shell, "changed")
    _, log = ended(worker)
    assert {each["code"] for each in log if each["event"] == "supervisor.restarting"} == {7}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nofile.py",), "there is no file or folder 'nofile.py'"),
        (("not.there",), "there is no module 'not.there'"),
        (("not-a-name.py",), "there is no file or folder 'not-a-name.py'"),
        (("spoken.py:",), "is no target"),
        (("spoken.py", "nofile.py"), "there is no file or folder 'nofile.py'"),
        (("spoken.py", "--middleware", "nofile.py:limits"), "there is no file or folder 'nofile.py'"),
        (("spoken.py", "--health-file", "."), "--health-file can't be kept"),
        (("spoken.py", "--health-port", "PORT"), "--health-port can't be kept"),
        (("spoken.py", "--url", "redis://127.0.0.1:1"), "start it, or correct its URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_no_change_can_mend_ends_it(shell: Shell, words: tuple[str, ...], told: str) -> None:
    """It ends with one line and exit code 1, as without ``--reload``."""
    (shell.folder / "spoken.py").write_text(TOOL.format("x"))
    shell.environment["TOOLBUS_CONNECT_TIMEOUT"] = "1"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = shell.run("worker", *(port if word == "PORT" else word for word in words), "--reload")
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(errors)) == (1, 1), done.stderr
    assert told in errors[0]


def test_several_processes_that_cannot_start_say_why_once(shell: Shell) -> None:
    """Without ``--reload`` there is one line for all of them, too."""
    done = shell.run("worker", "nofile.py", "--processes", "3")
    assert (done.returncode, done.stderr.splitlines()) == (1, ["toolbus: there is no file or folder 'nofile.py'"])


@pytest.mark.usefixtures("slow")
def test_a_package_that_cannot_be_imported_is_told_by_its_worker(shell: Shell) -> None:
    """Looking for the folders to watch runs no code: a package that raises is one line, and waited for."""
    (shell.folder / "pack").mkdir()
    (shell.folder / "pack" / "__init__.py").write_text("def\n")
    (shell.folder / "pack" / "inner.py").write_text(TOOL.format("inner"))
    worker = shell.start_anew("worker", "pack.inner", "--reload")
    assert worker.stderr is not None
    assert "SyntaxError" in worker.stderr.readline()
    (shell.folder / "pack" / "__init__.py").write_text("")
    assert shell.run("call", "say", "--wait", "20").stdout == "inner\n"
