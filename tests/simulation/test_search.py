"""Searches: a violation is reported with the way to see it again, and what is left of a scenario fails as the whole did."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.chaos.history import History
from tests.chaos.oracle import Violation
from tests.chaos.plan import Planned
from tests.simulation import program, shrink
from tests.simulation.driver import STEPS, Outcome
from tests.simulation.driver import run as simulate
from tests.simulation.faults import Aimed
from tests.simulation.scenario import Scenario, draw, near


def _outcome(*violations: Violation) -> Outcome:
    return Outcome(list(violations), "", [], History([]), 0, 0.0, Counter())


def test_a_short_scenario_fails_as_the_whole_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scenario that breaks the same rule in another way, or in a way that only the shortening made, is not what was looked for."""
    scenario = draw(1)
    scenario = Scenario(1, scenario.options, scenario.calls[:9], [Aimed(0.1 * n, "kill", 0.0, 0.1 * n) for n in range(9)])
    wanted, culprit = scenario.calls[4], scenario.faults[6]

    def run(candidate: Scenario, *, traced: bool) -> Outcome:
        if wanted in candidate.calls and culprit in candidate.faults:
            number = len(candidate.calls)
            return _outcome(Violation("executions", f"attempt {number} still runs in process {1000 + number} although …", wanted.key))
        return _outcome(Violation("executions", "a handler ran for a call that nobody planned", "a0-000001"))

    monkeypatch.setattr(shrink, "run", run)
    short: Any = shrink.shrink(scenario, tries=100)
    assert ([call.key for call in short.calls], short.faults) == ([wanted.key], [culprit])


def test_the_kind_of_a_violation_is_what_it_says_without_names() -> None:
    """Calls, processes, times and texts differ from run to run."""
    one = Violation("one-end", "refused as unavailable/: 'a0-000012 is gone', but its handler began 2 times", "a0-000012")
    other = Violation("one-end", "refused as unavailable/: 'b', but its handler began 13 times", "a1-000001")
    assert shrink.kind(one) == shrink.kind(other)
    assert shrink.kind(one) != shrink.kind(Violation("one-end", "refused as unavailable/: 'b', but nobody ran it"))
    assert shrink.kind(one) != shrink.kind(Violation("shared", one.what))


def test_a_neighbour_has_the_calls_of_its_scenario() -> None:
    """Its faults are nearly the same, and what is left to chance is another seed's; the same seed is the same neighbour."""
    scenario = replace(draw(3), faults=[Aimed(0.1 * number, "kill", 0.0, 0.5) for number in range(20)])
    first, second = near(scenario, 1), near(scenario, 2)
    assert first == near(scenario, 1) != second
    assert first.calls == second.calls == scenario.calls
    assert (first.seed, second.seed) == (1, 2)
    assert sum(fault.kind == "kill" for fault in first.faults) >= 10
    assert first.faults == sorted(first.faults, key=lambda fault: fault.at)


@pytest.mark.parametrize("words", [[], ["--near", "tests/simulation/found"]])
def test_a_search_ends_with_the_seed_of_a_violation(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails, and its last lines say how to run that seed again, and where its short scenario is."""
    found = str(Path(__file__).parent / "found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["simulation", "--first", "40", "--tries", "0", *(found if "/" in word else word for word in words)])
    runs: list[int] = []

    def run(scenario: Scenario, *, traced: bool = True) -> Outcome:
        runs.append(scenario.seed)
        return _outcome(Violation("rest", "the key x has no TTL")) if scenario.seed == 42 else _outcome()

    monkeypatch.setattr(program, "run", run)
    assert program.main() == 1
    assert runs == [40, 41, 42, 42]
    said = capsys.readouterr().out.splitlines()
    assert "seed 42 breaks a promise: `make simulate SEED=42" in said[-2]
    assert ("NEAR=" in said[-2]) == bool(words)
    assert "VIOLATION rest" in said[-3]
    monkeypatch.setattr(sys, "argv", ["simulation", "--file", said[-1].split()[-1].strip("`")])
    assert program.main() == 1
    assert runs[-1] == 42


def test_the_coverage_names_what_met_no_fault() -> None:
    """With the reason, if no world takes that step at all."""
    assert set(program.OUT_OF_REACH) < set(STEPS)
    found = program.coverage(Counter({("kill", "publish/publish"): 3}))
    assert f"{len(STEPS) - 1} of {len(STEPS)} steps have met no fault:" in found
    assert "- held/routes: no gateways take part." in found
    assert "- publish/cancel: not in this search." in found
    assert "- publish/publish has not met" in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--file", "nowhere.json"], "No such file or directory: 'nowhere.json'"),
        (["--file", "empty.json"], "empty.json holds no scenario: Object missing required field `seed`"),
        (["--file", "typo.json"], "typo.json holds no scenario: there is no fault 'nope': it is one of agent-kill"),
        (["--near", "."], "holds no scenario"),
        (["--near", "nothing"], "the folder nothing has no scenario (*.json)"),
        (["--coverage", "nowhere/table.md"], "No such file or directory: 'nowhere/table.md'"),
        (["--seed", "1", "--count", "2"], "not allowed with argument"),
        (["--seconds", "-3"], "-3 is not more than 0"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with the exit code of wrong usage, and not that of a promise that was not kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "typo.json").write_bytes(
        msgspec.json.encode(draw(1)).replace(f'"kind":"{draw(1).faults[0].kind}"'.encode(), b'"kind":"nope"')
    )
    monkeypatch.setattr(sys, "argv", ["simulation", *words])
    with pytest.raises(SystemExit) as left:
        program.main()
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [{"faults": [Aimed(0.1, "kill", 0.0, 0.1, "take/tkae", 1)]}, {"calls": [Planned("a", 0, "eko", {}, 0.0, 1.0)]}]
)
def test_a_scenario_of_unknown_steps_or_tools_does_not_run(wrong: dict[str, Any]) -> None:
    """Its author would take a fault that never happens for one that does no harm."""
    with pytest.raises(ValueError, match=r"there is no (step 'take/tkae'|tool 'eko'): it is one of "):
        simulate(replace(draw(1), **wrong))


@pytest.mark.parametrize(("step", "nth", "pick"), [("take/take", 0, 0.1), ("", 2, 0.1), ("", 0, 1.0)])
def test_a_fault_that_can_not_happen_is_none(step: str, nth: int, pick: float) -> None:
    """One that waits for a step waits for the first time at least, and its victim is one of those there are."""
    with pytest.raises(ValueError, match=r"nth of 1 or more|from 0 to 1"):
        Aimed(0.1, "kill", 0.0, pick, step, nth)


def test_digests_tell_of_broken_promises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A violation is not overlooked by those who compare them."""
    monkeypatch.setattr(program, "run", lambda scenario: _outcome(*[Violation("rest", "x")] * (scenario.seed == 2)))
    monkeypatch.setattr(sys, "argv", ["simulation", "--first", "1", "--count", "2"])
    assert program.main() == 1
    assert capsys.readouterr().out.split("\n")[1].endswith("breaks a promise")
