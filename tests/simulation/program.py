"""Run scenarios: fresh seeds, neighbours of those that found something, or one and its timeline."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.chaos.history import Hit
from tests.simulation import seams
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

_ABOUT = """\
Run the real client, worker and scripts in a world where time is virtual and every fault comes from a seed.

Without --seed, --file and --count fresh seeds are searched, from a random one or --first. The first that breaks a promise is made
short; its timeline is printed, and it is written to simulation-SEED.json in this folder."""
# Seconds between two lines about how far a search has come.
_TOLD_EVERY = 15.0
_STATUS = "The exit code is 0, or 1 when a promise was not kept, 2 for wrong usage, 130 when it was interrupted."


def main() -> int:
    """Run what the arguments say; returns 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=_ABOUT, epilog=_STATUS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, help="run this one, and print its timeline")
    what.add_argument("--file", type=Path, help="run a scenario that was written down, and print its timeline")
    what.add_argument("--count", type=int, help="run so many seeds, and print the digest of each")
    parser.add_argument("--near", type=Path, help="take neighbours of this scenario, or of all those in a folder, for seeds")
    parser.add_argument("--seconds", type=_positive, default=60.0, help="how long to search (%(default)s)")
    parser.add_argument("--first", type=int, help="the first of the fresh seeds")
    parser.add_argument("--tries", type=int, default=150, help="runs for making a failing scenario short (%(default)s)")
    parser.add_argument("--coverage", type=Path, help="write which fault has met which step of the protocol to this file")
    parser.add_argument("--whole", action="store_true", help="everything that happened, and not only what is about the violations")
    chosen = parser.parse_args()
    try:
        source = _Source(chosen.near)
        scenario = None if chosen.file is None else _read(chosen.file)
        if chosen.coverage is not None:
            chosen.coverage.touch()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with _interruptible(lambda: "interrupted"):
        if chosen.seed is not None:
            scenario = source.draw(chosen.seed)
        if scenario is not None:
            return _show(scenario, whole=chosen.whole)
        first = int.from_bytes(os.urandom(4)) if chosen.first is None else chosen.first
        if chosen.count is not None:
            return _list(source, range(first, first + chosen.count))
        met = Counter[tuple[str, str]]()
        status = _search(source, first, chosen.seconds, chosen.tries, met)
        if chosen.coverage is not None:
            chosen.coverage.write_text(coverage(met), "utf-8")
        return status


def _positive(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return float(text)


@contextmanager
def _interruptible(say: Callable[[], str]) -> Iterator[None]:
    """End the program at Ctrl-C, at once, with a word.

    An exception could come out of a script, or in the middle of a step of the world, and be taken for what the server answered.
    """

    def stop(*_: object) -> None:
        sys.stdout.flush()
        print(f"\n{say()}", file=sys.stderr, flush=True)
        seams.leave(130)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _read(path: Path) -> Scenario:
    """Return the scenario that a file holds.

    Raises:
        OSError: it can't be read.
        ValueError: it holds none.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scenario)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} holds no scenario: {error}") from None


class _Source:
    """Scenarios of a search by their seeds.

    Args:
        path: a scenario whose neighbours are wanted, or a folder of them; None for fresh ones.

    Raises:
        OSError: a file can't be read.
        ValueError: there is no scenario.
    """

    def __init__(self, path: Path | None) -> None:
        self._paths: Sequence[Path] = () if path is None else sorted(path.glob("*.json")) if path.is_dir() else [path]
        if path is not None and not self._paths:
            raise ValueError(f"the folder {path} has no scenario (*.json)")
        self._scenarios = [_read(each) for each in self._paths]

    def draw(self, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        return near(self._scenarios[seed % len(self._scenarios)], seed) if self._scenarios else draw(seed)

    def replay(self, seed: int) -> str:
        """Return the command that runs the scenario of a seed again."""
        return f"make simulate SEED={seed}" + (f" NEAR={os.path.relpath(self._paths[seed % len(self._paths)])}" if self._paths else "")


def _show(scenario: Scenario, *, whole: bool) -> int:
    try:
        outcome = run(scenario)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(timeline(outcome, whole=whole))
    if not whole:
        print("`--whole` shows everything, with the answers to all steps of the protocol")
    happened = f"{len(outcome.history.of(Hit))} of {len(scenario.faults)} faults happened"
    found = f"{len(outcome.violations)} violations" if outcome.violations else "no violation"
    print(f"{outcome.calls} calls in {outcome.seconds:.1f} s of virtual time, {happened}, {found}, digest {outcome.digest}")
    return 1 if outcome.violations else 0


def _list(source: _Source, seeds: Iterable[int]) -> int:
    status = 0
    for seed in seeds:
        outcome = run(source.draw(seed))
        print(seed, outcome.digest, *(["breaks a promise"] if outcome.violations else []), flush=True)
        status |= bool(outcome.violations)
    return status


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
    began, used, seed, calls = time.monotonic(), time.process_time(), first, 0
    told = began
    with _interruptible(lambda: f"interrupted after {seed - first} seeds from {first}, {calls} calls, no violation"):
        print(f"searching for {seconds:g} s from seed {first} on; Ctrl-C ends it", file=sys.stderr, flush=True)
        while time.monotonic() - began < seconds:
            scenario = source.draw(seed)
            outcome = run(scenario, traced=False)
            calls += outcome.calls
            met.update(outcome.met)
            if outcome.violations:
                break
            seed += 1
            if time.monotonic() - told > _TOLD_EVERY:
                told = time.monotonic()
                print(f"{told - began:.0f} s: {seed - first} seeds, {calls} calls, no violation", file=sys.stderr, flush=True)
        else:
            rate = calls / max(0.001, time.process_time() - used)
            print(f"{seed - first} seeds from {first}, {calls} calls, no violation; {rate:.0f} calls a second and core")
            return 0
    took = f"{seed - first + 1} seeds, {calls} calls, {time.process_time() - used:.0f} s of processor time"
    print(f"found after {took}: seed {seed}", flush=True)
    path = Path(f"simulation-{seed}.json")
    # Whoever interrupts what follows has the long one.
    path.write_bytes(msgspec.json.encode(scenario))
    with _interruptible(lambda: f"interrupted; the scenario, not made short yet, is in {path}"):
        short = shrink(scenario, tries)
    print(timeline(run(short)))
    path.write_bytes(msgspec.json.encode(short))
    print(f"seed {seed} breaks a promise: `{source.replay(seed)}`", flush=True)
    print(f"its short scenario (`--whole` shows everything that happened): `python -m tests.simulation --file {path}`")
    return 1
