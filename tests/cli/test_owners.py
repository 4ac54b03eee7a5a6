"""Names that belong to another program: what its operator is told."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import redis

from tests.cli.shell import Shell
from tests.servers import eventually_sync
from toolbus.bus.broker.server.keys import Keys

TOOLS = """
from toolbus import tool

@tool(service="shared", effect="read")
def {name}() -> str:
    "Say it."
    return "{name}"
"""


def write(folder: Path, name: str) -> str:
    """Write a tool file outside of any project, and return its path."""
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS.format(name=name))
    return f"{folder.name}/tools.py"


def start(shell: Shell, file: str, service: str = "service.registered", **variables: str) -> subprocess.Popen[str]:
    """Start a worker, and return when it has registered."""
    shell.environment.update(variables)
    worker = shell.start("worker", file)
    assert worker.stderr is not None
    for line in worker.stderr:
        if f'"{service}"' in line:
            return worker
    pytest.fail(f"the worker ended with {worker.wait()}")


def ended(worker: subprocess.Popen[str]) -> str:
    """Stop a worker, and return what it still said."""
    worker.terminate()
    return worker.communicate(timeout=30)[1]


@pytest.mark.usefixtures("slow")
def test_a_refusal_says_how_long_and_what_else_to_do(shell: Shell) -> None:
    """It names the wait, ``TOOLBUS_OWNER`` and ``rm --force``, while the name is held and while it cools down; both ways work."""
    file = write(shell.folder / "one", "say")
    first = start(shell, file, TOOLBUS_OWNER="first", TOOLBUS_COOLDOWN="1000")
    shell.environment["TOOLBUS_OWNER"] = "second"
    held = shell.run("worker", file)
    assert held.returncode == 1
    assert "belongs to 'first'" in held.stderr
    assert "start it with TOOLBUS_OWNER='first'" in held.stderr
    assert "free 1000 s after the last worker of its owner has stopped" in held.stderr
    assert "`toolbus operate items rm --force tool-service/shared` frees it at once" in held.stderr
    put = shell.run(
        "operate", "items", "put", "tool/say", given='{"type": "tool-service", "name": "say", "description": "d", "service": "shared"}'
    )
    assert "`toolbus operate items rm --force tool/say`" in put.stderr
    ended(first)
    cooling = shell.run("worker", file)
    assert any(f"It is free in {seconds} s" in cooling.stderr for seconds in range(900, 1001)), cooling.stderr
    again = start(shell, file, TOOLBUS_OWNER="first")
    ended(again)
    assert [shell.run("operate", "items", "rm", "--force", key).returncode for key in ("tool-service/shared", "tool/say")] == [0, 0]
    start(shell, file, TOOLBUS_OWNER="second")


def test_a_name_that_an_operator_holds_says_how_to_remove_it(shell: Shell) -> None:
    """The refusal names the command."""
    file = write(shell.folder / "one", "say")
    shell.run(
        "operate", "items", "put", "tool/say", given='{"type": "tool-service", "name": "say", "description": "d", "service": "elsewhere"}'
    )
    assert "`toolbus operate items rm tool/say` removes it" in shell.run("worker", file).stderr


@pytest.mark.usefixtures("slow")
def test_two_files_of_one_name_are_told_apart(shell: Shell) -> None:
    """The second program that joins the first one's service warns with both places; a replica, and one with an owner, do not."""
    shell.environment["TOOLBUS_COOLDOWN"] = "0"
    one, two = write(shell.folder / "one", "say"), write(shell.folder / "two", "sing")
    started = start(shell, one)
    stranger = start(shell, two, "service.other_program")
    assert "other_program" not in ended(stranger)
    replica = shell.start("worker", one)
    assert replica.stderr is not None
    said: list[str] = []
    for line in replica.stderr:
        said.append(line)
        if '"service.registered"' in line:
            break
    assert "other_program" not in "".join(said) + ended(replica)
    ended(started)
    named = start(shell, one, TOOLBUS_OWNER="named")
    other = shell.start("worker", two)
    assert other.stderr is not None
    told = next(line for line in other.stderr if '"service.' in line)
    assert "service.registered" in told
    ended(other)
    ended(named)


def test_names_of_a_killed_service_become_free_where_nobody_else_runs(shell: Shell) -> None:
    """A service whose only worker was killed is swept out by one that wants its names; in the cooldown they are its owner's alone."""
    shell.environment |= {"TOOLBUS_LEASE": "2", "TOOLBUS_OWNER": "first", "TOOLBUS_COOLDOWN": "1000"}
    one, two = write(shell.folder / "one", "say"), write(shell.folder / "two", "say")
    tools = shell.folder / two
    tools.write_text(tools.read_text().replace('"shared"', '"another"'))
    start(shell, one).kill()
    live = Keys(shell.environment["TOOLBUS_NAMESPACE"]).live
    with redis.Redis.from_url(shell.environment["TOOLBUS_URL"]) as client:
        eventually_sync(lambda: [end for _, end in client.zrange(live, 0, -1, withscores=True) if end < time.time() * 1000])
    again = start(shell, two, "service.awaits_sweep")
    assert again.stderr is not None
    assert any('"service.registered"' in line for line in again.stderr)
    again.kill()
    with redis.Redis.from_url(shell.environment["TOOLBUS_URL"]) as client:
        eventually_sync(lambda: [end for _, end in client.zrange(live, 0, -1, withscores=True) if end < time.time() * 1000])
    shell.environment["TOOLBUS_OWNER"] = "second"
    refused = shell.run("worker", two)
    assert refused.returncode == 1
    assert any(f"It is free in {seconds} s" in refused.stderr for seconds in range(900, 1001)), refused.stderr
