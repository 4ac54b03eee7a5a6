"""Every command with closed or full streams, without a server, and interrupted: it ends in its own words, and its JSON is JSON."""

from __future__ import annotations

import fcntl
import json
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.shell import STEPS, Shell
from tests.cli.test_hostile_server import ASKING
from tests.cli.test_mistakes import ALL
from tests.forking import Program
from tests.topologies import until

TOOLS = """
import asyncio
from toolbus import tool

@tool(service="canary", effect="read")
def canary_echo(text: str) -> str:
    "Give a text back."
    return text

@tool(service="canary", effect="read")
async def canary_wait() -> str:
    "Wait."
    print("waiting", flush=True)
    await asyncio.sleep(60)
    return ""

@tool(service="canary", effect="read", confirm=True)
def canary_asks() -> str:
    "Need a person."
    return ""
"""

# Each other command that ends by itself.
LOCAL = {
    "secure acl": ("secure", "acl", "agent"),
    "new": ("new", "weather"),
    "see settings": ("see", "settings"),
    "protocol conformance agent": ("protocol", "conformance", "agent", "--only", "leaves", "true"),
    "protocol conformance worker": ("protocol", "conformance", "worker", "--only", "leaves", "no-such-program"),
    "protocol constants": ("protocol", "constants"),
    "protocol scripts": ("protocol", "scripts", "lua"),
    "toolkit learning convert": ("toolkit", "learning", "convert", "log.jsonl", "log.db"),
    "toolkit learning diff": ("toolkit", "learning", "diff"),
    "toolkit learning evaluate": ("toolkit", "learning", "evaluate", "--generated", "--episodes", "10"),
    "toolkit learning learn": ("toolkit", "learning", "learn", "--scores", "scores.json", "--log", "log.jsonl"),
    "toolkit load": ("toolkit", "load", "data-analysis", "--check"),
    "toolkit presets": ("toolkit", "presets"),
    "toolkit learning run": ("toolkit", "learning", "run", "data-analysis", "--log", "log.jsonl", "--no-publish"),
    "toolkit learning revisions": ("toolkit", "learning", "revisions"),
    "toolkit learning rollback": ("toolkit", "learning", "rollback"),
    "toolkit schema": ("toolkit", "schema"),
    "see workers": ("see", "workers"),
}
ENDING = {**ASKING, **LOCAL}
RUNNING = {
    "confirm watch",
    "demo",
    "dev",
    "mcp",
    "mount",
    "operate exporter",
    "operate history",
    "platform host",
    "platform im",
    "platform up",
    "serve",
    "worker",
}
# These read standard input when they are told to.
READING = {
    "put": ("operate", "items", "put", "tool/new"),
    "call": ("call", "canary_echo", "--json", "-"),
    "agent": ("agent", "-"),
    "chat": ("platform", "chat", "-"),
}
# Another thread takes the signal, so that it does not interrupt a read; the same happens when it comes just before one.
ELSEWHERE = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
from toolbus.operations.cli import main
main()
"""
CLOSED = """
import os, sys
number = int(sys.argv.pop(1))
os.close(number)
setattr(sys, ("stdin", "stdout", "stderr")[number], None)
from toolbus.operations.cli import main
main()
"""


@pytest.fixture
def served(shell: Shell) -> Shell:
    """A shell with a worker and the files that the commands name."""
    (shell.folder / "tools.py").write_text(TOOLS)
    (shell.folder / "new.json").write_text('{"type": "tool-service", "name": "new", "service": "canary", "description": "New."}')
    (shell.folder / "platform").mkdir()
    (shell.folder / "platform" / "groups.json").write_text("[]")
    (shell.folder / "log.jsonl").touch()
    (shell.folder / "scores.json").write_text('{"edges": [{"kind": "call", "source": "count", "target": "sql", "score": 0.7}]}')
    shell.environment["OPENAI_API_KEY"] = "any"
    shell.start("worker", "tools.py")
    assert shell.run("call", "canary_echo", "text=x", "--wait", "20").returncode == 0
    return shell


def closed(shell: Shell, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with one standard stream closed."""
    return shell._forks.run("-c", CLOSED, str(number), *words, folder=shell.folder, environment=shell.environment)


def test_every_command_is_here() -> None:
    """A new command needs its words, or runs until it is stopped."""
    assert {" ".join(words) for words in ALL} == set(ENDING) | RUNNING


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_closed_stream_is_no_traceback(served: Shell, number: int, step: int) -> None:
    """Without input a command has none, and without output it prints nothing."""
    tried = {**ENDING, **{f"{name} -": words for name, words in READING.items()}}
    for name, words in list(tried.items())[::step]:
        done = closed(served, number, *words)
        assert "Traceback" not in done.stderr, f"{name}: {done.stderr}"
        assert done.returncode in {0, 1, 2}, f"{name}: {done.returncode}"


def test_closed_errors_change_no_exit_code(served: Shell) -> None:
    """A caller who closed the stream of errors still has the exit code and the output."""
    for words in (("tools",), ("see", "describe", "nosuch"), ("call", "canary_echo"), ("nosuch",)):
        whole, cut = served.run(*words), closed(served, 2, *words)
        assert (cut.returncode, cut.stdout, cut.stderr) == (whole.returncode, whole.stdout, ""), words


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--help",),
        ("--version",),
        ("tools", "--help"),
        ("operate", "dead"),
        ("see", "settings"),
        ("tools",),
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_one_line(shell: Shell, words: tuple[str, ...]) -> None:
    """A full disk is told, also of help."""
    command = [sys.executable, "-m", "toolbus", *words]
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=shell.environment, check=False, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2}
    assert "No space left" in done.stderr or done.returncode != 1


@pytest.mark.parametrize("name", ASKING)
def test_without_a_server_a_command_says_how_to_start_one(shell: Shell, name: str) -> None:
    """It ends with exit code 1, and prints nothing that a program could take for a result."""
    shell.environment |= {"TOOLBUS_URL": "redis://127.0.0.1:1", "OPENAI_API_KEY": "any"}
    (shell.folder / "new.json").write_text('{"type": "tool-service", "name": "new", "service": "canary", "description": "New."}')
    (shell.folder / "platform").mkdir()
    (shell.folder / "platform" / "groups.json").write_text('[{"group_id": "jobs", "name": "Jobs", "tool_ids": ["job_run"]}]')
    done = shell.run(*ASKING[name])
    assert done.returncode == 1
    assert "start it, or correct its URL" in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:1", "memory://", "nonsense"])
def test_json_is_json_or_nothing(served: Shell, url: str | None, step: int) -> None:
    """With ``--output json``, what a command prints can be parsed, whether it succeeds or fails."""
    if url is not None:
        served.environment["TOOLBUS_URL"] = url
    printing = [
        name
        for name in ENDING
        if any("json" in getattr(each.type, "choices", ()) for each in ALL[tuple(name.split())].params if "--output" in each.opts)
    ]
    assert len(printing) > 15
    for name in printing[::step]:
        words = ENDING[name]
        done = served.run(*words, "--output", "json")
        assert "Traceback" not in done.stderr, f"{name}: {done.stderr}"
        if done.stdout:
            json.loads(done.stdout)
        else:
            assert done.returncode != 0, name


@pytest.mark.parametrize("words", [("wokers",), ("tols", "--all"), ("nosuchthing",)], ids=" ".join)
def test_a_misspelt_command_is_told_what_there_is(shell: Shell, words: tuple[str, ...]) -> None:
    """The message names what looks like it, or where all of them are listed."""
    done = shell.run(*words)
    assert done.returncode == 2
    assert "did you mean" in done.stderr or "--help` lists them" in done.stderr


def test_a_question_without_an_answer_is_told(served: Shell) -> None:
    """Without a terminal nobody answers, and the message names the option that does."""
    for words in (("operate", "purge", "canary"), ("operate", "dead", "redrive", "canary", "--all")):
        done = served.run(*words)
        assert "Aborted" not in done.stderr
        if "[y/N]" in done.stderr:
            assert (done.returncode, "--yes" in done.stderr, done.stdout) == (1, True, "")


@pytest.mark.parametrize("name", READING)
def test_input_that_is_not_utf8_is_told(served: Shell, name: str) -> None:
    """It is named as what could not be read, in place of a traceback."""
    words = [sys.executable, "-m", "toolbus", *READING[name]]
    done = subprocess.run(words, input=b"\xff", capture_output=True, env=served.environment, cwd=served.folder, check=False, timeout=60)
    assert done.returncode in {1, 2}
    assert b"Traceback" not in done.stderr
    assert b"UTF-8" in done.stderr or b"JSON" in done.stderr


def interrupted(process: Program | subprocess.Popen[str]) -> str:
    """Send Ctrl-C to a command, which ends with the exit code for it; return its errors."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode == 130
    return errors


def test_ctrl_c_ends_a_call_that_waits(served: Shell) -> None:
    """For its result, and for a person, as well as the list of what waits for a person."""
    waiting = served.start("call", "canary_wait", "--timeout", "50")
    output = served.started[0].stdout
    assert output is not None
    assert output.readline() == "waiting\n"
    interrupted(waiting)
    watching, asking = served.start("confirm", "watch"), served.start("call", "canary_asks")
    assert watching.stdout is not None
    assert watching.stdout.readline()
    interrupted(asking)
    interrupted(watching)


def waits_for_input(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has read all that it was given, and sleeps."""
    assert process.stdin is not None
    unread = struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)))[0]
    return not unread and Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"


@pytest.mark.parametrize("way", [("-m", "toolbus"), ("-c", ELSEWHERE)], ids=["in time", "beside a read"])
def test_ctrl_c_ends_what_reads_standard_input(served: Shell, way: tuple[str, str]) -> None:
    """Nothing is open yet that would keep the process, and a signal is heeded whenever it comes."""
    process = subprocess.Popen(
        [sys.executable, *way, "call", "canary_echo", "--json", "-"],
        cwd=served.folder,
        env=served.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        # More than a pipe holds, so it reads by now.
        process.stdin.write(" " * 300_000)
        process.stdin.flush()
        if way[0] == "-c":
            until(lambda: waits_for_input(process))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
