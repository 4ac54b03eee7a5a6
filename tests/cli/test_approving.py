"""``approve`` and ``pins`` for recorded tools that wait for approval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.shell import Shell
from toolbus.bus.broker.server.keys import Keys
from toolbus.platform.documents import digest_of_folder


def put(shell: Shell, key: str, folder: Path, **meta: Any) -> None:
    """Store a record whose code is in a folder."""
    document = {
        "meta": {"name": "Stitcher", "description": "Put images side by side.", **meta},
        "sources": [{"type": "local", "host_dir": str(folder)}],
        "code": digest_of_folder(folder),
        "made_by": "create_00000001",
    }
    done = shell.run("operate", "items", "put", key, given=json.dumps(document))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tool's code."""
    made = tmp_path / "stitcher"
    made.mkdir()
    (made / "main.py").write_text("print('hello')\n")
    return made


@pytest.mark.usefixtures("slow")
def test_a_pending_tool_is_shown_and_approved_by_its_digest(shell: Shell, folder: Path) -> None:
    """Its fields and files are told; nothing is approved without a yes; another digest is refused."""
    put(shell, "pending/stitcher", folder)
    listed = shell.json("secure", "pins", "list", "--state", "pending")
    assert [(each["name"], each["changes"], each["by"]) for each in listed] == [("stitcher", ["new tool"], "create_00000001")]
    shown = shell.run("secure", "approve", "stitcher")
    assert shown.returncode == 1
    assert "Put images side by side." in shown.stdout
    assert "main.py (15 bytes)" in shown.stdout
    assert "not confirmed" in shown.stderr
    assert "look at it again" in shell.run("secure", "approve", "stitcher", "--digest", "0" * 16).stderr
    assert (
        "too few"
        in shell.run(
            "secure", "approve", "stitcher", "--digest", shell.json("secure", "pins", "show", "stitcher")["pending"]["digest"][:15]
        ).stderr
    )
    assert [each["key"] for each in shell.json("operate", "items", "list")] == ["pending/stitcher"]
    digest = shell.json("secure", "pins", "show", "stitcher")["pending"]["digest"]
    assert shell.run("secure", "approve", "stitcher", "--digest", digest[:16]).returncode == 0
    assert [each["key"] for each in shell.json("operate", "items", "list")] == ["pin/stitcher", "recorded/stitcher"]
    assert "nothing to approve" in shell.run("secure", "approve", "stitcher").stderr


LOCAL = {"type": "local", "host_dir": "/a"}
RIGHTS: list[tuple[dict[str, Any], str, str]] = [
    (LOCAL, "create_1", "it reaches no network; it has at most 2g of memory"),
    ({**LOCAL, "network": "host", "memory": "64m"}, "create_1", "every network that its host reaches; it has at most 64m"),
    (LOCAL, "ada", "it runs with all rights of the host that serves it"),
    (
        {"type": "docker", "image": "x", "mounts": ["/data:/data"]},
        "create_1",
        "the network 'bridge' of the engine, with /data:/data of the host",
    ),
    ({"type": "remote", "url": "https://example.com/x"}, "create_1", "requests are sent to https://example.com/x"),
]


@pytest.mark.parametrize(("source", "made_by", "said"), RIGHTS)
def test_what_a_tool_may_do_is_shown(shell: Shell, source: dict[str, Any], made_by: str, said: str) -> None:
    """An approval shows what the program of a tool reaches where it runs."""
    document = {"meta": {"name": "Made", "description": "Do it."}, "sources": [source], "made_by": made_by}
    assert shell.run("operate", "items", "put", "pending/made", given=json.dumps(document)).returncode == 0
    assert said in shell.run("secure", "approve", "made").stdout


def test_a_new_revision_is_shown_by_what_it_changes(shell: Shell, folder: Path) -> None:
    """Code that was changed since it was recorded is told, too; a rejected revision leaves what is served."""
    put(shell, "recorded/stitcher", folder)
    (folder / "main.py").write_text("import os\n")
    put(shell, "pending/stitcher", folder, description="Put images in a row.", status="inactive")
    (folder / "main.py").write_text("import sys\n")
    done = shell.run("secure", "approve", "stitcher", "--output", "json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert [each["field"] for each in said["changes"]] == ["code", "meta.description", "meta.status"]
    assert "not what was recorded" in said["note"]
    assert f"--digest {said['digest']}" in done.stderr
    assert shell.run("secure", "pins", "reject", "stitcher").returncode == 0
    assert [each["key"] for each in shell.json("operate", "items", "list")] == ["recorded/stitcher"]
    assert shell.json("operate", "items", "get", "recorded/stitcher")["meta"]["description"] == "Put images side by side."
    put(shell, "pending/stitcher", folder, description="Again.")
    assert shell.run("secure", "approve", "stitcher", "--yes").returncode == 0
    assert shell.json("operate", "items", "get", "recorded/stitcher")["meta"]["description"] == "Again."


def test_a_pending_record_that_cannot_be_read_is_told(shell: Shell, folder: Path, url: str, namespace: str) -> None:
    """It is not approved, and can be removed."""
    put(shell, "recorded/stitcher", folder)
    put(shell, "pending/stitcher", folder)
    with redis.Redis.from_url(url) as server:
        server.hset(Keys(namespace).pending, "pending/stitcher", b'{"meta": {}}')
    done = shell.run("secure", "approve", "stitcher", "--yes")
    assert done.returncode == 1
    assert "tool_id" in done.stderr
    for command in (("doctor",), ("platform", "list")):
        said = shell.run(*command)
        assert "pending/stitcher: " in said.stdout + said.stderr
    assert shell.run("secure", "pins", "reject", "stitcher").returncode == 0
    assert [each["key"] for each in shell.json("operate", "items", "list")] == ["recorded/stitcher"]


@pytest.mark.parametrize("words", [("--yes",), ("--digest",)], ids=" ".join)
def test_code_that_is_not_pinned_is_told(shell: Shell, folder: Path, words: tuple[str, ...]) -> None:
    """An approval that is not of the code says so, before and after; one that is of the code does not."""
    put(shell, "pending/stitcher", folder)
    assert not shell.json("secure", "pins", "show", "stitcher")["pending"]["unpinned"]
    document = {"meta": {"name": "Stitcher", "description": "Put images."}, "sources": [{"type": "local", "host_dir": str(folder)}]}
    assert shell.run("operate", "items", "put", "pending/stitcher", given=json.dumps(document)).returncode == 0
    waiting = shell.json("secure", "pins", "show", "stitcher")["pending"]
    warning = f"its code is not pinned: whoever may write its folder '{folder}' changes it without approval"
    assert waiting["unpinned"] == warning
    done = shell.run("secure", "approve", "stitcher", *words, *([waiting["digest"]] if words == ("--digest",) else []))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(warning) == 1
    assert shell.json("secure", "pins", "show", "stitcher")["unpinned"] == warning
