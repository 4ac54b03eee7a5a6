"""``toolbus toolkit learning learn|evaluate|revisions|diff|rollback|convert`` as users run them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.learning.samples import calls, scores
from toolbus.toolkit.learning import open_store

LOG = calls("sql", [False] * 60 + [True] * 6) + calls("grep", [True] * 60, first=100)


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path) -> Shell:
    """A shell whose folder has scores and a log."""
    edges = msgspec.to_builtins([*scores(count={"sql": 0.9, "grep": 0.4, "never": 0.6})])
    (tmp_path / "scores.json").write_text(json.dumps({"edges": edges, "texts": {"sql": "ask a database"}}))
    with open_store(tmp_path / "log.jsonl") as store:
        store.append(LOG)
    return Shell(forks, tmp_path, "memory://", "learning")


INPUTS = ("--scores", "scores.json", "--log", "log.jsonl")


def test_scores_are_learned_compared_and_taken_back(shell: Shell) -> None:
    """The whole way: a dry run, learning, a second time, the difference, the list, the details, and back."""
    dry = shell.run("toolkit", "learning", "learn", *INPUTS, "--dry-run")
    assert (dry.returncode, dry.stdout.splitlines()[-1]) == (0, "2 of 3 scores would change"), dry.stderr
    assert not (shell.folder / "revisions").exists()
    learned = shell.run("toolkit", "learning", "learn", *INPUTS)
    assert learned.returncode == 0, learned.stderr
    assert learned.stdout.startswith("call: the new order is better: mean reciprocal rank +0.")
    assert "60 of 60 calls succeeded" in learned.stdout
    assert "2 of 3 scores changed; revision 0002-" in learned.stdout
    assert "nothing changed" in shell.run("toolkit", "learning", "learn", *INPUTS).stdout
    difference = shell.json("toolkit", "learning", "diff")["differences"]
    assert [(each["target"], each["old"]) for each in difference] == [("grep", 0.4), ("sql", 0.9)]
    found = shell.json("toolkit", "learning", "revisions")
    assert [(each["changes"], each["current"]) for each in found] == [(0, False), (2, True)]
    table = shell.run("toolkit", "learning", "revisions").stdout.splitlines()
    assert (table[2].split()[0], table[2].split()[2]) == ("*", found[0]["id"])
    details = shell.run("toolkit", "learning", "revisions", "2").stdout
    assert all(said in details for said in ("half_life 30", "sha256 ", "learned from 126 executions of 126 episodes", "grep"))
    back = shell.run("toolkit", "learning", "rollback", "--no-publish")
    assert back.stdout == f"revision {found[0]['id']} is current (before: {found[1]['id']}); 2 scores are others\n"
    assert "same scores" in shell.run("toolkit", "learning", "diff", "1", "1").stderr


def test_learning_tells_programs_everything(shell: Shell) -> None:
    """JSON has the revision, the verdicts, the changes with reasons and every edge; parameters are options."""
    # No part of the log has so much evidence without the rest, so no order can be judged to be better, and sql stays above "never".
    told = shell.json("toolkit", "learning", "learn", *INPUTS, "--min-evidence", "62")
    assert [(each["target"], each["new"], each["count"]) for each in told["changes"]] == [("sql", 0.6, 66)]
    assert told["changes"][0]["why"].endswith("held back so that no two change places")
    assert (len(told["edges"]), told["verdicts"][0]["taken"], told["revision"][:5]) == (3, "levels", "0002-")


@pytest.mark.usefixtures("slow")
def test_logs_are_evaluated(shell: Shell) -> None:
    """A log of one's own and a generated one give tables and JSON with every policy."""
    (shell.folder / "log.jsonl").unlink()
    with open_store(shell.folder / "log.jsonl") as store:
        store.append(LOG[::2] + LOG[1::2])
    found = shell.json("toolkit", "learning", "evaluate", *INPUTS, "--held-out", "0.4")
    assert [each["policy"] for each in found["tools"]] == ["flat list", "static", "BM25", "learned", "static + BM25", "learned + BM25"]
    assert found["learned_from"] + found["held_out"] == 126
    done = shell.run("toolkit", "learning", "evaluate", "--generated", "--seed", "1", "--episodes", "300")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("POLICY") and "HIT@3" in line for line in lines)
    (gain,) = (line for line in lines if line.startswith("learned - static  ") and " hit@3 " in line)
    assert float(gain.split()[4].strip("[,")) > 0
    noise = shell.run("toolkit", "learning", "evaluate", "--noise", "--seed", "1", "--episodes", "100").stdout
    assert noise.count("nothing changes") == 2


def test_logs_are_converted_and_corrupt_records_left_out(shell: Shell) -> None:
    """A corrupt line is named with its file and number; with --skip-corrupt the rest is taken, once."""
    with (shell.folder / "log.jsonl").open("a") as file:
        file.write('{"v":1,"id":"bad"}\n')
    place = "log.jsonl:127: no execution: "
    for words in (("convert", "log.jsonl", "log.db"), ("learn", *INPUTS)):
        refused = shell.run("toolkit", "learning", *words)
        assert (refused.returncode, refused.stderr.startswith(f"toolbus: {place}"), "Traceback" in refused.stderr) == (1, True, False)
    for said in ("added 126 executions to log.db\n", "added 0 executions to log.db\n"):
        done = shell.run("toolkit", "learning", "convert", "log.jsonl", "log.db", "--skip-corrupt")
        assert (done.stdout, done.stderr.startswith(f"left out: {place}")) == (said, True), done.stderr
    learned = shell.run("toolkit", "learning", "learn", "--scores", "scores.json", "--log", "log.db")
    assert "2 of 3 scores changed" in learned.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("learn",), 2, "give --scores and --log"),
        (("learn", "--scores", "none.json", "--log", "log.jsonl"), 1, "none.json: No such file"),
        (("learn", "--scores", "scores.json", "--log", "none.jsonl"), 1, "there is no log of executions at none.jsonl"),
        (("learn", "--scores", "log.jsonl", "--log", "log.jsonl"), 1, "log.jsonl is not a valid file of scores"),
        (("learn", *INPUTS, "--half-life", "0"), 1, "half_life"),
        (("evaluate", "--generated", *INPUTS), 2, "--generated makes its own"),
        (("revisions", "7"), 1, "has no revision '7'"),
        (("diff",), 1, "has no revisions yet"),
        (("rollback",), 1, "no current revision"),
        (("rollback", "--no-publish"), 1, "no current revision"),
        (("run", "scores.json", "--log", "log.jsonl", "--no-publish"), 1, "scores.json"),
        (("run", "data-analysis", "--log", "none.jsonl", "--no-publish"), 1, "there is no log of executions at none.jsonl"),
        (("run", "data-analysis"), 2, "--log"),
        (("run", "data-analysis", "--log", "log.jsonl", "--report", "r.svg"), 2, "ends in .md"),
        (("run", "data-analysis", "--log", "log.jsonl", "--report", "no/r.md"), 2, "in a folder that is there"),
        (("run", "data-analysis", "--log", "log.jsonl", "--no-publish"), 1, "none of the 126 executions is of an edge of this graph"),
        (("convert", "none.jsonl", "log.db"), 1, "there is no log"),
    ],
)
def test_mistakes_are_one_line(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    """A user's mistake ends with what is wrong, and no traceback."""
    done = shell.run("toolkit", "learning", *words)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr


def test_wrong_scores_are_named(shell: Shell) -> None:
    """A score out of bounds and an edge that is given twice are named by their place."""
    edge = {"kind": "call", "source": "count", "target": "sql", "score": 0.5}
    for edges, said in (([edge, {**edge, "score": 1.5}], "$.edges[1].score"), ([edge, edge], "from 'count' to 'sql' is given twice")):
        (shell.folder / "scores.json").write_text(json.dumps({"edges": edges}))
        done = shell.run("toolkit", "learning", "learn", *INPUTS)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
