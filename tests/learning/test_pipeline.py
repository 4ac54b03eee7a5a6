"""A run of learning: what it takes, what it refuses, and what a hostile or damaged log can do to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.learning.samples import calls, execution, scores
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning import Execution, Parameters, RecordError, Revisions, Scores, open_store
from toolbus.toolkit.learning.evaluate import Comparison, Evaluation, Figure
from toolbus.toolkit.learning.evidence import ScoreFile
from toolbus.toolkit.learning.pipeline import Outcome, _decided, run, text

STATIC = scores(count={"sql": 0.9, "grep": 0.4})
LOG = [each for pair in zip(calls("sql", [False] * 30), calls("grep", [True] * 30, first=100), strict=True) for each in pair]


def learned(folder: Path, log: list[Execution] = LOG, static: Scores = STATIC, **options: Any) -> Outcome:
    """Run on a new log with these records."""
    path = folder / f"{time.monotonic_ns()}.db"
    with open_store(path) as store:
        store.append(log)
        return run(ScoreFile(edges=[*static]), [store], Revisions(folder / "revisions"), **options)


def test_a_run_adds_a_revision_once(tmp_path: Path) -> None:
    """The same log changes nothing a second time, and its records count once, however many files they are in."""
    first = learned(tmp_path)
    assert (first.added, first.revision[:5], len(first.changes), first.executions) == (True, "0002-", 2, 60)
    again = learned(tmp_path)
    assert (again.added, again.revision, again.changes) == (False, first.revision, [])
    assert again.decision.startswith("nothing to change")
    with open_store(tmp_path / "a.jsonl") as one, open_store(tmp_path / "b.db") as other:
        one.append(LOG)
        other.append(LOG)
        assert run(ScoreFile(edges=[*STATIC]), [one, other], Revisions(tmp_path / "revisions")).executions == 60


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It says what would change, and makes no folder."""
    found = learned(tmp_path, dry=True)
    assert (found.added, found.revision, len(found.changes)) == (False, "", 2)
    assert "dry run" in found.decision
    assert not (tmp_path / "revisions").exists()


def test_a_rollback_lasts_until_it_is_ended(tmp_path: Path) -> None:
    """Runs report and change nothing, until one resumes, a person learns, or the rollback is taken back."""
    learned(tmp_path)
    revisions = Revisions(tmp_path / "revisions")
    assert not revisions.held
    left, back = revisions.roll_back()
    assert revisions.held
    held = learned(tmp_path)
    assert (held.added, held.revision, len(held.changes), held.decision[:5]) == (False, back.id, 2, "held:")
    assert left is not None
    revisions.roll_back(left.id)
    assert not revisions.held
    revisions.roll_back()
    resumed = learned(tmp_path, resume=True)
    assert (resumed.added, resumed.revision[:5], revisions.held) == (True, "0003-", False)


def test_a_folder_is_one_processes_at_a_time(tmp_path: Path) -> None:
    """A second process is refused at once, and may work when the first is done."""
    with Revisions(tmp_path / "r").alone(), pytest.raises(ConfigurationError, match="another process works"):
        Revisions(tmp_path / "r").alone().__enter__()
    with Revisions(tmp_path / "r").alone():
        assert learned(tmp_path).added


def test_an_evaluation_can_refuse() -> None:
    """Scores whose order is credibly worse on held-out episodes are not taken; otherwise they are."""
    outcome = _decision(Figure(-0.2, -0.3, -0.1))
    assert outcome == ("refused: on held-out episodes the learned order is worse (mrr -0.200 [-0.300, -0.100])", False)
    for difference in (Figure(-0.2, -0.3, 0.0), Figure(None, None, None), Figure(0.1, 0.0, 0.2)):
        assert _decision(difference)[1]


def test_what_can_not_be_evaluated_is_not_taken() -> None:
    """A split that leaves too little to learn from, or to replay, says nothing for the scores."""
    from toolbus.toolkit.learning.evidence import episodes
    from toolbus.toolkit.learning.learn import learn

    decision, taken = _decided(learn(STATIC, episodes(LOG), Parameters()), STATIC, None, held=False)
    assert not taken
    assert "--held-out" in decision


def _decision(difference: Figure) -> tuple[str, bool]:
    from toolbus.toolkit.learning.evaluate import Options
    from toolbus.toolkit.learning.evidence import episodes
    from toolbus.toolkit.learning.learn import learn

    result = learn(STATIC, episodes(LOG), Parameters())
    compared = Comparison(better="learned", than="static", measure="mrr", difference=difference, relative=difference)
    evaluation = Evaluation(
        learned_from=1, held_out=1, calls=1, transitions=0, options=Options(), tools=[], actions=[], comparisons=[compared], learned=result
    )
    return _decided(result, STATIC, evaluation, held=False)


def test_too_little_changes_nothing(tmp_path: Path) -> None:
    """No record, one record, and a few episodes leave everything as it is, and the report says why."""
    for log in ([], LOG[:1], LOG[:10]):
        found = learned(tmp_path, log)
        assert (found.added, found.revision, found.changes) == (False, "", [])
        assert "too few" in text(found, "t")


def test_records_from_the_future_are_left_out(tmp_path: Path) -> None:
    """One record from a wrong clock does not make all others too old to count."""
    found = learned(tmp_path, [*LOG, execution(999, tool="grep", at=9e10)])
    assert (found.added, found.executions) == (True, 60)
    assert found.notes == ["1 of 61 executions are left out, since their times are in the future"]


def test_a_log_of_another_graph_changes_nothing(tmp_path: Path) -> None:
    """It is refused where nothing matches, and what does not match is told and left out where something does."""
    with pytest.raises(ConfigurationError, match="none of the 60 executions is of an edge"):
        learned(tmp_path, static=scores(fly={"wing": 0.5}))
    assert not (tmp_path / "revisions").exists()
    mixed = learned(tmp_path, [*LOG, *calls("wing", [True] * 500, first=1000, action="fly")])
    assert [(each.target, each.count) for each in mixed.changes] == [("grep", 30), ("sql", 30)]
    assert "500 of 560 executions are of no edge" in text(mixed, "t")


def test_a_graph_without_its_old_edges_is_learned_for(tmp_path: Path) -> None:
    """A revision follows the preset when an edge was removed or added since the last one."""
    learned(tmp_path)
    changed = learned(tmp_path, static=scores(count={"grep": 0.4, "new": 0.3}))
    assert changed.added
    edges = {each.target: each.score for each in Revisions(tmp_path / "revisions").get(changed.revision).edges}
    assert edges["new"] == 0.3
    assert "sql" not in edges


def test_a_folder_is_one_graphs(tmp_path: Path) -> None:
    """Scores of another preset, or of a graph with none of the same edges, are not mixed with those of the folder."""
    learned(tmp_path, graph="one")
    for names in ({"graph": "two"}, {"graph": "two", "dry": True}):
        with pytest.raises(ConfigurationError, match="scores of the preset 'one', not of 'two': give each graph a folder"):
            learned(tmp_path, **names)
    other = [execution(number, action="fly", tool="wing") for number in range(30)]
    with pytest.raises(ConfigurationError, match="scores of another graph"):
        learned(tmp_path, other, scores(fly={"wing": 0.5}))
    assert len(Revisions(tmp_path / "revisions").ids()) == 2
    assert learned(tmp_path, graph="one").decision.startswith("nothing")


@pytest.mark.parametrize("line", [b'{"v":1,"id":"x"}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"{" + b" " * 300_000 + b"}\n", b"\n"])
def test_a_damaged_line_is_named_or_left_out(tmp_path: Path, line: bytes) -> None:
    """It ends the run with its place, or is left out when that is wanted; a half-written last line is always left out."""
    path = tmp_path / "log.jsonl"
    with open_store(path) as store:
        store.append(LOG)
    whole = path.read_bytes()
    path.write_bytes(whole + line + whole[:40])
    revisions, file = Revisions(tmp_path / "revisions"), ScoreFile(edges=[*STATIC])
    with pytest.raises(RecordError, match=r"log\.jsonl:61: "):
        run(file, [open_store(path)], revisions)
    assert revisions.ids() == []
    skipped: list[RecordError] = []
    assert run(file, [open_store(path)], revisions, on_bad=skipped.append).executions == 60
    assert len(skipped) == 1


def test_hostile_names_do_not_disturb_the_report(tmp_path: Path) -> None:
    """Bars, line breaks and control characters of names stay within their cells."""
    name = "a|b\n\x1b[2J" + "c" * 200
    log = [
        execution(each_index, id=each.id, tool=name if each.tool == "sql" else "grep", outcome=each.outcome)
        for each_index, each in enumerate(LOG)
    ]
    found = learned(tmp_path, log, scores(count={name: 0.9, "grep": 0.4}))
    report = text(found, "t\n\x1b[31m")
    assert found.added
    assert "\x1b" not in report
    assert all(line.count(" | ") == 5 for line in report.splitlines() if line.startswith("| call"))
