"""The picture of a run's report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.learning.samples import calls, scores
from toolbus.toolkit.learning import Edge, Revisions, Scores, open_store
from toolbus.toolkit.learning.evidence import ScoreFile
from toolbus.toolkit.learning.pipeline import Outcome, run


def outcome(folder: Path, static: Scores, *tools: str, count: int = 30) -> Outcome:
    """The outcome of a log in which each of these tools always fails, and another one works."""
    good = [calls("good", [True], first=1000 * number, episode=f"e{number}", position=99)[0] for number in range(count)]
    bad = [
        calls(tool, [False], first=1000 * number + row, episode=f"e{number}", position=row)[0]
        for number in range(count)
        for row, tool in enumerate(tools)
    ]
    static = Scores([*static, Edge("call", "count", "good", 0.2)])
    with open_store(folder / "log.db") as store:
        store.append(good + bad)
        return run(ScoreFile(edges=[*static]), [store], Revisions(folder / "revisions"))


def draw(found: Outcome, title: str, **options: Any) -> bytes:
    """Draw an outcome; only who does imports matplotlib."""
    from toolbus.toolkit.learning import picture

    return picture.draw(found, title, **options)


def texts(picture: bytes) -> list[str]:
    """The texts of an SVG."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.decode())


@pytest.mark.usefixtures("slow")
def test_changes_and_evaluation_are_drawn(tmp_path: Path) -> None:
    """Each change has its edge and new score, the evaluation its measures, and the same outcome gives the same bytes."""
    found = outcome(tmp_path, scores(count={"sql": 0.9, "grep": 0.7}), "sql")
    drawn = draw(found, "Learning: x")
    assert {"Learning: x", "count → sql", "0.11", " threshold", "hit@1", "static", "learned"} <= set(texts(drawn))
    assert "count → grep" not in texts(drawn)
    assert draw(found, "Learning: x") == drawn
    assert draw(found, "Learning: x", format="png").startswith(b"\x89PNG")


@pytest.mark.usefixtures("slow")
def test_many_changes_are_cut_and_few_episodes_said(tmp_path: Path) -> None:
    """The greatest changes are drawn, and the title says of how many; nothing to draw is said in words."""
    many = {f"tool {number:02}": 0.9 - number / 100 for number in range(40)}
    drawn = texts(draw(outcome(tmp_path, scores(count=many), *many), "t"))
    assert "scores before and now (24 of 41)" in drawn
    assert ("count → tool 00" in drawn, "count → tool 39" in drawn) == (True, False)
    (tmp_path / "few").mkdir()
    assert "no score differs" in texts(draw(outcome(tmp_path / "few", scores(count={"sql": 0.9}), "sql", count=1), "t"))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", ["数据库查询", "$x^2_{$", "a\n" + "b" * 200, "<b>&amp;"])
def test_any_name_is_drawn(tmp_path: Path, name: str) -> None:
    """Names in other scripts, with marks of formulas or of XML, and long ones, are drawn as they are, without a warning."""
    found = outcome(tmp_path, scores(count={name: 0.9}), name)
    assert len(found.changes) == 2
    assert draw(found, name)
    assert draw(found, name, format="png")
