"""Calls that wait for a person, answered from the command line: real processes on a real server."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from tests.cli.shell import Shell
from tests.forking import Program
from toolbus.operations.cli.output import print_table

TOOLS = '''
from toolbus import invocation, tool

@tool(effect="once", confirm=True)
async def order(item: str, count: int = 1):
    """Order an item."""
    return f"ordered {count} x {item}"

@tool(effect="once", confirm=True)
async def transfer(memo: str, account: str, amount: int, footer: str):
    """Transfer an amount."""
    return f"{len(memo)} {account} {amount} {len(footer)}"

@tool(effect="read")
def tidy():
    """Ask, and tidy."""
    return f"tidied, {invocation().confirm_sync('Tidy up?')}"
'''


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """Provide a shell with a tool that needs confirmation, and a worker that serves it."""
    (shell.folder / "shop.py").write_text(TOOLS)
    shell.start("worker", "shop.py")
    return shell


def waiting(shell: Shell, count: int = 1) -> list[dict[str, object]]:
    """Return the open requests, once there are this many."""
    deadline = time.monotonic() + 20
    while True:
        found: list[dict[str, object]] = shell.json("confirm", "list")
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, found


def said(process: Program | subprocess.Popen[str]) -> tuple[int, str, str]:
    """The end of a command."""
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.usefixtures("slow")
def test_a_call_is_allowed_by_another_process(shell: Shell) -> None:
    """`toolbus call` says what it waits for and how to allow it; list, show and allow do the rest, with the start of the id."""
    call = shell.start("call", "order", "item=tea", "--user", "alice", "--wait", "20")
    [request] = waiting(shell)
    identity = str(request["id"])
    table = shell.run("confirm", "list").stdout
    assert table.split()[:6] == ["ID", "TOOL", "USER", "WAITS", "LEFT", "QUESTION"]
    assert f"{identity}  order  alice" in table
    assert "Allow order for alice? Order an item." in table
    shown = shell.run("confirm", "show", identity).stdout
    assert '"item": "tea"' in shown
    assert shell.json("confirm", "list", "--user", "bob") == []
    allowed = shell.run("confirm", "allow", identity[:6], "--note", "fine", "--by", "bob")
    assert (allowed.returncode, allowed.stdout) == (0, f"{identity} allowed\n"), allowed.stderr
    code, out, err = said(call)
    assert (code, out) == (0, "ordered 1 x tea\n"), err
    assert f"toolbus confirm allow {identity}" in err
    assert err.startswith("Allow order for alice?\n")
    again = shell.run("confirm", "deny", identity)
    assert (again.returncode, again.stdout, again.stderr) == (
        1,
        "",
        f"toolbus: confirmation '{identity}' was already allowed by bob: fine\n",
    )
    assert shell.run("confirm", "list").stderr == "nothing waits for a person\n"


@pytest.mark.usefixtures("slow")
def test_the_whole_can_be_read_and_the_digest_named(shell: Shell) -> None:
    """`show` has every argument, `show --full` all of each, and `allow --digest` allows nothing else."""
    long = ("memo=" + "m" * 9_000, "account=DE02", "amount=99999", "footer=" + "f" * 8_000)
    call = shell.start("call", "transfer", *long, "--wait", "20")
    [request] = waiting(shell)
    identity, digest = str(request["id"]), str(request["digest"])
    shown = shell.run("confirm", "show", identity).stdout
    assert '\n    "account": "DE02",\n    "amount": 99999,\n' in shown
    assert "(9,000 characters, shortened)" in shown
    assert f"\n  Digest: {digest}\n" in shown
    full = shell.run("confirm", "show", identity, "--full").stdout
    assert "m" * 9_000 in full
    assert "shortened" not in full
    assert json.loads(shell.json("confirm", "show", identity)["whole"])["footer"] == "f" * 8_000
    wrong = shell.run("confirm", "allow", identity, "--digest", "0" * 16)
    assert (wrong.returncode, f"has the digest {digest}" in wrong.stderr) == (1, True)
    short = shell.run("confirm", "allow", identity, "--digest", digest[:15])
    assert (short.returncode, "15 digits of a digest are too few" in short.stderr) == (1, True)
    empty = shell.run("confirm", "allow", identity, "--digest", "")
    assert (empty.returncode, "it is empty" in empty.stderr) == (2, True)
    assert shell.run("confirm", "allow", identity, "--digest", digest[:16]).returncode == 0
    assert said(call)[:2] == (0, "9000 DE02 99999 8000\n")


def test_no_name_forges_a_request(shell: Shell) -> None:
    """With any user name, watch, show and list print one request, and nothing that commands a terminal."""
    hostile = "al\nabcdef  until 2026-01-01\nAllow order for bob?\x1b[2J\u202e\x9b31m"
    watch = shell.start("confirm", "watch")
    call = shell.start("call", "order", "item=tea", "--user", hostile, "--session", hostile, "--wait", "20")
    [request] = waiting(shell)
    assert request["user"] == hostile
    shown = shell.run("confirm", "show", str(request["id"])).stdout
    table = shell.run("confirm", "list").stdout
    raw = shell.run("confirm", "list", "--output", "json").stdout
    assert shell.run("confirm", "deny", str(request["id"]), "--by", hostile).returncode == 0
    late = shell.run("confirm", "deny", str(request["id"]))
    assert said(call)[0] == 1
    assert watch.stdout is not None
    watched = [watch.stdout.readline() for _ in shown.splitlines()]
    for text in (shown, table, raw, "".join(watched), late.stderr):
        assert all(line.isprintable() for line in text.splitlines()), text
    assert "".join(watched) == shown
    assert len(table.splitlines()) == 2
    assert len(late.stderr.splitlines()) == 1
    assert [line for line in shown.splitlines() if not line.startswith("  ")] == shown.splitlines()[:2]


def test_a_table_shows_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal a table's cells are text: what looks like markup is shown, and commands nothing."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("ID", "USER"), [("5f3a", "[red]al[/]"), ("5f3b", "[/]\x1b[2J")], empty="")
    shown = capsys.readouterr().out
    assert "[red]al[/]" in shown
    assert "[/]\\u001b[2J" in shown


@pytest.mark.usefixtures("slow")
def test_a_call_is_denied(shell: Shell) -> None:
    """A denied call fails with the reason, and so does one that nobody answers; --yes needs nobody."""
    call = shell.start("call", "order", "item=tea", "--wait", "20")
    [request] = waiting(shell)
    assert shell.run("confirm", "deny", str(request["id"]), "--reason", "no tea", "--by", "bob").returncode == 0
    code, _, err = said(call)
    assert code == 1
    assert err.endswith("toolbus: forbidden (denied): bob did not allow this call of 'order': no tea\n")
    late = shell.run("call", "order", "item=tea", "--confirm-timeout", "0.2")
    assert (late.returncode, "deadline_exceeded (unconfirmed): nobody answered within 0.2 s" in late.stderr) == (1, True)
    wrong = shell.run("call", "order", "count=2")
    assert (wrong.returncode, "invalid_arguments" in wrong.stderr) == (1, True)
    assert shell.run("call", "order", "item=tea", "--yes").stdout == "ordered 1 x tea\n"


def test_two_processes_answer_at_once(shell: Shell) -> None:
    """Of processes that answer together one succeeds; the others are told who did, with exit code 1."""
    call = shell.start("call", "order", "item=tea", "--wait", "20")
    identity = str(waiting(shell)[0]["id"])
    words = [("allow", "--by", "p0"), ("deny", "--by", "p1"), ("allow", "--by", "p2"), ("deny", "--by", "p3")]
    ends = [said(process) for process in [shell.start("confirm", word, identity, *rest) for word, *rest in words]]
    [winner] = [index for index, (code, _, _) in enumerate(ends) if code == 0]
    assert sorted(code for code, _, _ in ends) == [0, 1, 1, 1]
    assert all(f"already {'allowed' if winner % 2 == 0 else 'denied'} by p{winner}" in err for code, _, err in ends if code)
    assert said(call)[0] == (0 if words[winner][0] == "allow" else 1)


@pytest.mark.parametrize("words", [(), ("--stream",), ("--output", "json")])
def test_a_handler_that_asks_is_told(shell: Shell, words: tuple[str, ...]) -> None:
    """`toolbus call` says on standard error what a running handler asks and how to answer; standard output is the result alone."""
    call = shell.start("call", "tidy", "--wait", "20", *words)
    [request] = waiting(shell)
    assert shell.run("confirm", "allow", str(request["id"]), "--by", "bob").returncode == 0
    code, out, err = said(call)
    assert code == 0, err
    assert (json.loads(out)["output"] if "json" in words else out.strip()) == "tidied, allowed by bob"
    assert re.fullmatch(rf"tidy asks: Tidy up\?\nit waits (300|2\d\d) s: toolbus confirm allow {request['id']}\n", err), err


def test_requests_are_watched(shell: Shell) -> None:
    """`confirm watch` prints each request as it comes, as JSON one a line, until it is interrupted."""
    watch = shell.start("confirm", "watch", "--output", "json")
    call = shell.start("call", "order", "item=tea", "--wait", "20")
    assert watch.stdout is not None
    request = json.loads(watch.stdout.readline())
    assert (request["tool"], json.loads(request["arguments"])) == ("order", {"item": "tea"})
    assert shell.run("confirm", "deny", request["id"]).returncode == 0
    assert said(call)[0] == 1


@pytest.mark.parametrize("words", [("allow", "nothing"), ("deny", "nothing"), ("show", "nothing"), ("allow", "")])
def test_unknown_requests_are_errors(shell: Shell, words: tuple[str, ...]) -> None:
    """An id that names no open request ends the command with one line and exit code 1."""
    done = shell.run("confirm", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "answered, expired or withdrawn" in done.stderr


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("answer", "code", "told"), [(b"y\n", 0, "tidied, "), (b"\n", 1, "")])
def test_the_person_at_the_terminal_answers_a_handler(shell: Shell, answer: bytes, code: int, told: str) -> None:
    """A running handler's question is asked on the terminal of `toolbus call`, too; an empty line is a no."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "toolbus", "call", "tidy", "--wait", "20"],
        cwd=shell.folder,
        env=shell.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shell.started.append(process)
    os.close(theirs)
    waiting(shell)
    os.write(ours, answer)
    ended, out, err = said(process)
    os.close(ours)
    assert ended == code, err
    assert out.startswith(told)
    assert "Tidy up?" in err
    assert "[y/N]" in err


@pytest.mark.usefixtures("slow")
def test_the_person_at_the_terminal_is_asked(shell: Shell) -> None:
    """On a terminal `toolbus call` asks there, too, and a yes lets the call go on."""
    shell.run("call", "order", "item=x", "--yes", "--wait", "20")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "toolbus", "call", "order", "item=tea"],
        cwd=shell.folder,
        env=shell.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shell.started.append(process)
    os.close(theirs)
    waiting(shell)
    os.write(ours, b"y\n")
    code, out, err = said(process)
    os.close(ours)
    assert (code, out) == (0, "ordered 1 x tea\n"), err
    assert "[y/N]" in err
