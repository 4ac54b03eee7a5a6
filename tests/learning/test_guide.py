"""The page on learning: its steps do what it says, and its defaults are the code's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from toolbus.toolkit.learning import Parameters, open_store
from toolbus.toolkit.learning.learn import LEAST_EPISODES

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "learning.md").read_text("utf-8")


def test_the_steps_of_the_page_learn_and_roll_back(tmp_path: Path) -> None:
    """The program that the page names records, learns and rolls back, and leaves a log and two revisions."""
    program = Path(__file__).with_name("step_by_step.py")
    assert f"](../../{program.relative_to(Path(__file__).parents[2])})" in PAGE
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "grep_dump: 0.8 -> 0.09\nrun_sql: 0.4 -> 0.93\nthe static scores\n", done.stderr
    assert len([*open_store(tmp_path / "executions.jsonl").read()]) == 60
    assert len([*(tmp_path / "revisions").glob("*.json")]) == 2


def test_the_defaults_of_the_page_are_the_codes() -> None:
    """The numbers in the model's description are the defaults."""
    default = Parameters()
    for said in (
        f"half after {default.half_life:g} days",
        f"min({default.clip:g}, 1 / propensity)",
        f"Beta({default.prior_strength:g}s, {default.prior_strength:g}(1 − s))",
        f"says with {default.credibility:.0%}".replace("%", " %"),
        f"with {default.guard:.0%}".replace("%", " %"),
        f"It takes {LEAST_EPISODES} episodes",
    ):
        assert said in PAGE, said
    assert (default.next_strength, default.min_evidence, default.folds) == (8, 8, 5)
