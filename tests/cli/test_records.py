"""``put``, ``get``, ``list`` and ``rm`` for recorded tools, groups and backend runtimes."""

from __future__ import annotations

import json

from tests.cli.shell import Shell

TOOL = {"meta": {"name": "Stitcher"}, "sources": [{"type": "local", "host_dir": "tools/stitcher"}]}


def test_records_are_put_listed_printed_and_removed(shell: Shell) -> None:
    """Under their keys, as JSON; agents are not told of unusable tools."""
    for key, document in {
        "recorded/stitcher": TOOL,
        "pending/newer": TOOL,
        "group/media": {"name": "M"},
        "backend-runtime/gpu": {},
    }.items():
        assert shell.run("operate", "items", "put", key, given=json.dumps(document)).returncode == 0
    assert [each["key"] for each in shell.json("operate", "items", "list")] == [
        "backend-runtime/gpu",
        "group/media",
        "pending/newer",
        "recorded/stitcher",
    ]
    assert shell.json("operate", "items", "get", "recorded/stitcher")["meta"]["tool_id"] == "stitcher"
    assert shell.json("operate", "items", "get", "group/media")["group_id"] == "media"
    assert shell.json("tools", "--all") == []
    assert shell.run("operate", "items", "rm", "recorded/stitcher").returncode == 0
    assert len(shell.json("operate", "items", "list")) == 3


def test_a_wrong_record_is_not_put(shell: Shell) -> None:
    """One line names the entry and the field."""
    document = {**TOOL, "sources": [{"type": "remote", "url": "https://me:hunter2@api.example"}]}
    done = shell.run("operate", "items", "put", "recorded/api", given=json.dumps(document))
    assert done.returncode == 1
    assert done.stderr.startswith("toolbus: recorded/api: ")
    assert "$.sources[0].url" in done.stderr
    assert "hunter2" not in done.stderr
    assert shell.json("operate", "items", "list") == []
    assert "recorded/ID" in shell.run("operate", "items", "put", "record/api", given="{}").stderr


def test_an_import_records_what_is_right(shell: Shell) -> None:
    """The exit code tells of the rest; a second import changes nothing; an export has the same."""
    folder = shell.folder / "tools"
    folder.mkdir()
    source = {"type": "local", "host_dir": "tools/a"}
    (folder / "registry.json").write_text(json.dumps([{"tool_id": "a", "category": "media"}, {"tool_id": "b"}]))
    (folder / "sources.json").write_text(json.dumps({"a": [source], "b": [{"type": "lokal"}]}))
    done = shell.run("platform", "import", "tools")
    assert (done.returncode, done.stdout) == (1, "1 stored: 1 new\n")
    assert (
        "sources.json: b: Invalid enum value 'lokal', expected one of 'local', 'docker', 'remote' - at `$.sources[0].type`" in done.stderr
    )
    assert "1 unchanged" in shell.run("platform", "import", "tools").stdout
    assert [each["tool_id"] for each in shell.json("platform", "search", "--category", "media")] == ["a"]
    assert shell.json("platform", "search", "--category", "other") == []
    assert shell.json("platform", "status")["tools"] == {"total": 1, "active": 1}
    assert [(each["tool_id"], each["state"]) for each in shell.json("platform", "status", "--tools")] == [("a", "stopped")]
    assert shell.run("platform", "export", "out").returncode == 0
    assert json.loads((shell.folder / "out" / "sources.json").read_text())["a"][0]["host_dir"] == "tools/a"
