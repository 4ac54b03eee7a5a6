"""``toolbus toolkit``: presets checked, published, shown, drawn and exported, as processes."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import Shell
from tests.test_contract_toolkit import ANALYSIS

SERVED = '''
from toolbus import tool


@tool(effect="read")
def run_sql(statement: str) -> str:
    """Run a statement."""
    return statement
'''


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """Return a folder with a preset and a worker's file."""
    (shell.folder / "analysis.yaml").write_text(ANALYSIS)
    (shell.folder / "data.py").write_text(SERVED)
    return shell


def test_a_preset_is_checked_published_shown_and_removed(shell: Shell) -> None:
    """The graph is there for everybody after one command, and gone after another; others than its owner are told whose it is."""
    checked = shell.run("toolkit", "load", "analysis.yaml", "--check")
    assert checked.stdout == "analysis.yaml is right: 3 actions, 3 tools, 2 groups, 7 edges\n"
    assert "the graph is empty" in shell.run("toolkit", "show").stderr
    assert "published toolkit/analysis" in shell.run("toolkit", "load", "analysis.yaml").stdout
    shown = shell.json("toolkit", "show", "--action", "report")
    assert {"from": "query", "from_kind": "action", "to": "report", "to_kind": "action", "score": 0.7} in shown
    assert len(shown) == 3
    shell.environment["TOOLBUS_OWNER"] = "bob"
    refused = shell.run("toolkit", "load", "analysis.yaml")
    assert refused.returncode == 1
    assert "belongs to 'operator'" in refused.stderr
    assert shell.run("operate", "items", "rm", "toolkit/analysis").returncode == 0
    assert shell.json("toolkit", "show") == []


@pytest.mark.usefixtures("slow")
def test_recommending_says_what_is_there_and_what_is_not(shell: Shell) -> None:
    """Actions are named by id, name or in a sentence; live tools, missing ones and the prompt are told."""
    shell.start("worker", "data.py")
    assert shell.run("call", "run_sql", "statement=x", "--wait", "20").returncode == 0
    shell.run("toolkit", "load", "analysis.yaml")
    rows = shell.json("toolkit", "recommend", "query")
    assert [(row["kind"], row["id"], row["state"]) for row in rows] == [
        ("action", "query", "start"),
        ("tool", "run_sql", ""),
        ("tool", "explain", "not there now"),
    ]
    asked = shell.json("toolkit", "recommend", "which tables does the database have?", "--file", "analysis.yaml")
    assert {"inspect", "query"} <= {row["id"] for row in asked if row["state"] == "start"}
    assert "tools: run_sql, explain (not available now)" in shell.run("toolkit", "recommend", "query", "--prompt").stdout
    assert "nothing fits" in shell.run("toolkit", "recommend", "zebra").stderr
    shell.run("operate", "items", "rm", "toolkit/analysis")


def test_mistakes_are_one_line_with_the_place(shell: Shell) -> None:
    """A wrong preset, a missing file and an unknown ending of a picture's name are told in one line, and nothing is published."""
    (shell.folder / "wrong.yaml").write_text(ANALYSIS.replace("score: 0.7", "score: 7"))
    for words, told in [
        (("load", "wrong.yaml"), "wrong.yaml:17: actions[1].next[0].score: Expected `float` <= 1.0"),
        (("load", "none.yaml"), "can't read the preset 'none.yaml': No such file or directory"),
        (("draw", "graph.bmp", "--file", "analysis.yaml"), "ends in none of .svg, .png and .html"),
        (("draw", "graph.svg", "--file", "analysis.yaml", "--start", "nowhere"), "there is nothing to draw: no such action"),
        (("load", "analysis.yaml", "--revisions", "empty"), "has no revision yet"),
    ]:
        done = shell.run("toolkit", *words)
        assert done.returncode == 1
        assert told in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert shell.json("toolkit", "show") == []


@pytest.mark.usefixtures("slow")
def test_pictures_and_other_formats_are_written(shell: Shell) -> None:
    """SVG, PNG and a page, scores, GraphML and dot come from one preset; the schema is JSON."""
    for name, begins in [("graph.svg", b"<?xml"), ("graph.png", b"\x89PNG"), ("graph.html", b"<!doctype html>")]:
        done = shell.run("toolkit", "draw", name, "--file", "analysis.yaml")
        assert done.returncode == 0, done.stderr
        assert (shell.folder / name).read_bytes().lower().startswith(begins.lower())
    scores = json.loads(shell.run("toolkit", "export", "--file", "analysis.yaml").stdout)
    assert {"kind": "next", "source": "query", "target": "report", "score": 0.7} in scores["edges"]
    assert "digraph" in shell.run("toolkit", "export", "--file", "analysis.yaml", "--format", "dot").stdout
    assert "<graphml" in shell.run("toolkit", "export", "--file", "analysis.yaml", "--format", "graphml").stdout
    assert json.loads(shell.run("toolkit", "schema").stdout)["title"] == "toolbus toolkit preset"
