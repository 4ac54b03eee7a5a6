"""The command line and the history of the benchmarks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import history
from benchmarks.cli import _parser
from benchmarks.gateways import Window
from benchmarks.runner import Measurement


def parsers(parser: argparse.ArgumentParser, name: str = "benchmarks") -> dict[str, argparse.ArgumentParser]:
    """A parser and those of its commands, by name."""
    found = {name: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, each in action.choices.items():
                found |= parsers(each, f"{name} {command}")
    return found


PARSERS = parsers(_parser())


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_of_the_benchmarks_explains_itself(name: str) -> None:
    """The help of each command can be written."""
    assert PARSERS[name].format_help().startswith("usage: ")


def test_the_history_is_bounded_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is added to the earlier ones, of which the oldest leave; a ratio that is missing in one breaks its line, and needs no peer."""
    monkeypatch.setattr(history, "MOST", 3)
    kept, picture = tmp_path / "history.json", tmp_path / "history.svg"
    titles = [each.title for each in history.RATIOS]
    for number in range(5):
        found = dict.fromkeys(titles, number + 1.0)
        if number == 3:
            del found[titles[0]]
        history.keep(found, kept, picture)
    assert [run["ratios"][titles[1]] for run in json.loads(kept.read_text())] == [3.0, 4.0, 5.0]
    drawn = ElementTree.fromstring(picture.read_text())
    paths = [path.get("d", "") for path in drawn.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke-width") == "2"]
    assert sorted(path.count("M") for path in paths) == [1] * (len(titles) - 1) + [2]


def test_a_ratio_is_of_medians() -> None:
    """A failed measurement counts for nothing, and what has no other side has no ratio."""
    calls = [Measurement("toolbus", "unary", 1, number, rate=rate) for number, rate in enumerate((100.0, 300.0, 900.0))]
    calls += [Measurement("floor", "unary", 1, 0, rate=600.0), Measurement("floor", "unary", 1, 1, failure="it broke")]
    calls += [Measurement("toolbus", "unary", 64, 0, rate=5.0)]
    windows = [
        Window(name, "echo", 0, rate, 1.0, 1.0, 1.0, 1.0, failed, "") for name, rate, failed in (("toolbus", 9.0, 0), ("fastmcp", 3.0, 0))
    ]
    windows.append(Window("fastmcp", "echo", 1, 1.0, 1.0, 1.0, 1.0, 1.0, 2, "it broke"))
    assert history.ratios(calls, windows) == {"1 in flight, of the floor's": 0.5, "MCP, of FastMCP's": 3.0}
