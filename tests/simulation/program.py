"""Run scenarios: fresh seeds, neighbours of those that found something, or one and its timeline."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.simulation.driver import STEPS, run
from tests.simulation.faults import KINDS
from tests.simulation.scenario import Scenario, draw, near
from tests.simulation.shrink import shrink
from tests.simulation.timeline import timeline

OUT_OF_REACH = {
    "dead_letters/redrive": "what is run again counts as given up for the oracle",
    "held/routes": "no gateways take part",
    "held/settle": "no tasks or conversations take part",
    "held/write": "no tasks or conversations take part",
}
"""Steps that no world takes, and why."""


def main() -> int:
    """Run what the arguments say; returns 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="run this one, and print its timeline")
    parser.add_argument("--file", type=Path, help="run a scenario that was written down, and print its timeline")
    parser.add_argument("--near", type=Path, help="take neighbours of this scenario, or of all those in a folder, for seeds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run fresh seeds")
    parser.add_argument("--first", type=int, help="the first of the fresh seeds")
    parser.add_argument("--tries", type=int, default=150, help="runs for making a failing scenario short")
    parser.add_argument("--count", type=int, help="run so many seeds instead, and print the digest of each")
    parser.add_argument("--coverage", type=Path, help="write which fault has met which step of the protocol to this file")
    parser.add_argument("--whole", action="store_true", help="everything that happened, and not only what is about the violations")
    chosen = parser.parse_args()
    if chosen.file is not None:
        return _show(msgspec.json.decode(chosen.file.read_bytes(), type=Scenario), whole=chosen.whole)
    source = _Source(chosen.near)
    if chosen.seed is not None:
        return _show(source.draw(chosen.seed), whole=chosen.whole)
    first = int.from_bytes(os.urandom(4)) if chosen.first is None else chosen.first
    if chosen.count is not None:
        for seed in range(first, first + chosen.count):
            print(seed, run(source.draw(seed)).digest)
        return 0
    met = Counter[tuple[str, str]]()
    status = _search(source, first, chosen.seconds, chosen.tries, met)
    if chosen.coverage is not None:
        chosen.coverage.write_text(coverage(met), "utf-8")
    return status


class _Source:
    """Scenarios of a search by their seeds.

    Args:
        path: a scenario whose neighbours are wanted, or a folder of them; None for fresh ones.
    """

    def __init__(self, path: Path | None) -> None:
        self._paths: Sequence[Path] = () if path is None else sorted(path.glob("*.json")) if path.is_dir() else [path]

    def _path(self, seed: int) -> Path:
        return self._paths[seed % len(self._paths)]

    def draw(self, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        if not self._paths:
            return draw(seed)
        return near(msgspec.json.decode(self._path(seed).read_bytes(), type=Scenario), seed)

    def replay(self, seed: int) -> str:
        """Return the command that runs the scenario of a seed again."""
        return f"make simulate SEED={seed}" + (f" NEAR={os.path.relpath(self._path(seed))}" if self._paths else "")


def _show(scenario: Scenario, *, whole: bool) -> int:
    outcome = run(scenario)
    print(timeline(outcome, whole=whole))
    print(f"{outcome.calls} calls in {outcome.seconds:.1f} s of virtual time, digest {outcome.digest}")
    return 1 if outcome.violations else 0


def coverage(met: Counter[tuple[str, str]]) -> str:
    """Return how often each fault has met each step, in Markdown; the holes are named below."""
    faults = sorted(KINDS)
    lines = [f"| Step | {' | '.join(faults)} |", f"|---|{'---:|' * len(faults)}"]
    lines += [f"| {step} | {' | '.join(str(met[kind, step]) for kind in faults)} |" for step in STEPS]
    never = [step for step in STEPS if not any(met[kind, step] for kind in faults)]
    lines += ["", f"{len(never)} of {len(STEPS)} steps have met no fault:", ""]
    lines += [f"- {step}: {OUT_OF_REACH.get(step, 'not in this search')}." for step in never]
    for step in STEPS:
        holes = [kind for kind in faults if not met[kind, step]]
        if holes and step not in never:
            lines.append(f"- {step} has not met {', '.join(holes)}.")
    return "\n".join(lines) + "\n"


def _search(source: _Source, first: int, seconds: float, tries: int, met: Counter[tuple[str, str]]) -> int:
    began, used, seed, calls, status = time.monotonic(), time.process_time(), first, 0, 0
    while time.monotonic() - began < seconds:
        scenario = source.draw(seed)
        try:
            outcome = run(scenario, traced=False)
        except KeyboardInterrupt:
            status = 130
            break
        calls += outcome.calls
        met.update(outcome.met)
        if outcome.violations:
            print(f"found after {seed - first + 1} seeds, {calls} calls, {time.process_time() - used:.0f} s of processor time", flush=True)
            short = shrink(scenario, tries)
            print(timeline(run(short)))
            path = Path(f"simulation-{seed}.json")
            path.write_bytes(msgspec.json.encode(short))
            print(f"seed {seed} breaks a promise: `{source.replay(seed)}`", flush=True)
            print(f"its short scenario: `python -m tests.simulation --file {path}`")
            return 1
        seed += 1
    rate = calls / max(0.001, time.process_time() - used)
    print(f"{seed - first} seeds from {first}, {calls} calls, no violation; {rate:.0f} calls a second and core")
    return status
