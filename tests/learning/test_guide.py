"""The page on learning: its example runs as it stands there, and its defaults are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from toolbus.toolkit.learning import Parameters, open_store
from toolbus.toolkit.learning.learn import LEAST_EPISODES

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "learning.md").read_text("utf-8")


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    """The example records, learns and rolls back, and leaves the log and two revisions that it speaks of."""
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    expected = re.search(r"It prints:\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    assert expected is not None
    (tmp_path / "example.py").write_text(example[1])
    said = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert said.stdout == expected[1], said.stderr
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
