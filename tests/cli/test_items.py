"""``put``, ``get``, ``list`` and ``rm`` of documents with impossible keys, of misplaced ones, and of all at once."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
import redis

from tests.cli.shell import Shell
from tests.records.made import recorded
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.pins import Pin, encoded
from toolbus.platform.documents import encode

TOOL = {"type": "tool-service", "name": "slow", "description": "Wait.", "service": "none"}
IMPOSSIBLE = [
    "tool/../../../outside",
    "toolkit/../x",
    "../../x",
    "recorded/../y",
    "pin/a/b",
    "group/..",
    "tool/..",
    "-x",
    "tool/a\u202eb",
    "it's",
]


@pytest.mark.parametrize("key", [*IMPOSSIBLE, "", "tool", "tool/", "backend-runtime/.", "pending/-a", "toolkit/a b", "recorded/a\n"])
def test_keys_that_no_document_can_have(key: str) -> None:
    """Each is refused with a command of the shell that names exactly this key."""
    flaw = key_flaw(key)
    command = flaw.partition("`")[2].rpartition("`")[0]
    words = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, timeout=60).stdout
    assert words.decode().split("\0")[-2] == key
    assert shlex.split(command)[:4] == ["toolbus", "operate", "items", "rm"]


@pytest.mark.parametrize(
    "key", ["tool/a.b", "pin/größe", "tool-service/a-b", "toolkit/a.b", "recorded/a", "group/_a", "backend-runtime/py"]
)
def test_keys_that_documents_have(key: str) -> None:
    """Nothing is wrong with the names that can be written."""
    assert key_flaw(key) == ""


@pytest.mark.usefixtures("slow")
def test_documents_with_impossible_keys_are_told_and_removed(shell: Shell, url: str, namespace: str) -> None:
    """No command lists or prints one as a document; each is told once, with the command that removes it."""
    assert shell.run("operate", "items", "put", "tool/slow", given=json.dumps(TOOL)).returncode == 0
    with redis.Redis.from_url(url) as server:
        server.hset(Keys(namespace).items, mapping=dict.fromkeys(IMPOSSIBLE, json.dumps(TOOL)))
    assert [each["key"] for each in shell.json("operate", "items", "list")] == ["tool/slow"]
    kept = shell.run("operate", "items", "get", "--all")
    assert (kept.returncode, list(json.loads(kept.stdout))) == (1, ["tool/slow"])
    assert kept.stderr.count("left out: ") == len(IMPOSSIBLE)
    assert "removes it" in shell.run("operate", "items", "get", "../../x").stderr
    told = sorted(each["name"] for each in shell.json("tools", "--all") if "refused" in each)
    assert told == sorted(IMPOSSIBLE)
    doctor = shell.run("doctor").stdout
    assert doctor.count("removes it") == len(IMPOSSIBLE)
    for key in IMPOSSIBLE:
        assert shell.run("operate", "items", "rm", "--", key).returncode == 0, key
    assert shell.run("operate", "items", "get", "--all").returncode == 0


@pytest.mark.usefixtures("slow")
def test_misplaced_documents_are_removed(shell: Shell, url: str, namespace: str) -> None:
    """``rm`` and ``pins rm`` remove what stands where workers may write, say so, and leave what stands in its place."""
    items = Keys(namespace).items
    with redis.Redis.from_url(url) as server:
        misplaced = {
            "recorded/evil": encode(recorded("evil")),
            "pending/evil": b"{}",
            "group/evil": b"{}",
            "pin/slow": b"{}",
            "pin/other": b"{}",
        }
        server.hset(items, mapping=misplaced)
        assert shell.run("operate", "items", "put", "group/evil", given="{}").returncode == 0
        doctor = shell.run("doctor").stdout
        assert "`toolbus operate items rm recorded/evil` removes it" in doctor
        assert [each["key"] for each in shell.json("operate", "items", "list")] == ["group/evil"]
        for key in ("recorded/evil", "pending/evil", "pin/other"):
            done = shell.run("operate", "items", "rm", key)
            assert (done.returncode, "misplaced" in done.stdout) == (0, True), key
        assert "misplaced" in shell.run("operate", "items", "rm", "group/evil").stdout
        assert shell.run("secure", "pins", "rm", "slow").stdout == "slow is unpinned\n"
        assert server.hgetall(items) == {}
    assert shell.run("secure", "pins", "rm", "slow").returncode == 1
    assert shell.run("operate", "items", "rm", "recorded/evil").returncode == 1


def test_a_tool_with_a_misplaced_pin_can_be_used_after_its_removal(shell: Shell, url: str, namespace: str) -> None:
    """A pin that a worker put there withholds the tool until an operator removes it."""
    (shell.folder / "slow.py").write_text(
        'from toolbus import tool\n\n@tool(service="slow", effect="read")\ndef slow() -> str:\n    "Wait."\n    return "here"\n'
    )
    shell.start("worker", "slow.py")
    assert shell.run("call", "slow", "--wait", "60").returncode == 0
    with redis.Redis.from_url(url) as server:
        server.hset(Keys(namespace).items, "pin/slow", encoded(Pin("rejected")))
    assert shell.run("call", "slow").returncode == 1
    assert shell.run("secure", "pins", "rm", "slow").returncode == 0
    assert shell.run("call", "slow", "--wait", "60").stdout.strip() == "here"


def test_all_documents_are_kept_and_restored(shell: Shell, url: str, namespace: str) -> None:
    """A restore brings back each kind, may be repeated, and stores nothing of an entry that is wrong."""
    assert shell.run("toolkit", "load", "data-analysis").returncode == 0
    assert shell.run("operate", "items", "put", "tool/slow", given=json.dumps(TOOL)).returncode == 0
    assert shell.run("operate", "items", "put", "group/g", given='{"name": "G"}').returncode == 0
    assert shell.run("operate", "items", "put", "recorded/r", given=encode(recorded("r")).decode()).returncode == 0
    assert shell.run("secure", "pins", "reject", "slow", "--reason", "bad").returncode == 0
    kept = shell.run("operate", "items", "get", "--all")
    assert kept.returncode == 0, kept.stderr
    documents = json.loads(kept.stdout)
    assert sorted(documents) == ["group/g", "pin/slow", "recorded/r", "tool/slow", "toolkit/data-analysis"]
    with redis.Redis.from_url(url) as server:
        server.delete(*Keys(namespace).tables())
    (shell.folder / "items.json").write_text(kept.stdout)
    first = shell.run("operate", "items", "put", "--all", "items.json")
    assert (first.returncode, first.stdout) == (0, "5 stored: 5 new\n"), first.stderr
    assert json.loads(shell.run("operate", "items", "get", "--all").stdout) == documents
    assert shell.run("operate", "items", "put", "--all", given=kept.stdout).stdout == "5 stored: 5 unchanged\n"
    wrong = {"../x": {}, "pin/slow": {"state": "maybe"}, "tool/other": TOOL, "tool-service/s": [], "group/g": {"name": "H"}}
    mixed = shell.run("operate", "items", "put", "--all", given=json.dumps(wrong))
    assert (mixed.returncode, mixed.stdout) == (1, "1 stored: 1 changed\n")
    assert mixed.stderr.count("not stored: ") == 4
    assert shell.run("operate", "items", "put", "--all", "items.json", "more").returncode == 2
    assert shell.run("operate", "items", "put", "--all", given="[]").returncode == 1
    assert (
        shell.run("operate", "items", "get").returncode
        == shell.run("operate", "items", "put").returncode
        == shell.run("operate", "items", "get", "--all", "x").returncode
        == 2
    )
