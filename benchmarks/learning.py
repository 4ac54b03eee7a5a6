"""Measure the gains of learning on generated logs with known success rates, and how quickly sentences find actions.

``python -m benchmarks.learning [--seeds 30] [--noise-seeds 300]`` prints the tables of docs/explanation/learning.md in about three minutes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence

from toolbus.toolkit.learning import Evaluation, Options, Parameters, episodes, evaluate, learn
from toolbus.toolkit.learning.generated import World, generate
from toolbus.toolkit.starting import Starter

OPTIONS = Options(resamples=300)


def evaluation(world: World) -> Evaluation:
    """Generate a log, learn from its first 70 % and replay the rest."""
    made = generate(world)
    return evaluate(made.static, made.texts, episodes(made.executions), Parameters(), OPTIONS)


def interval(values: Sequence[float]) -> str:
    """Return the mean, with twice its standard error in both directions."""
    error = 2 * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return f"{mean:+.1%} [{mean - error:+.1%}, {mean + error:+.1%}]"


def gains(seeds: int) -> None:
    """Print hit@3 of learned against static scores, by how wrong those are and how long the log is."""
    print(f"hit@3, learned against static, {seeds} seeds each")
    print("wrong  episodes  mean relative gain          >= 20 %  CI > 0  CI < 0")
    for wrong, count in ((0.0, 600), (0.3, 600), (0.6, 200), (0.6, 600), (0.6, 2000), (1.0, 600)):
        found = [_gain(evaluation(World(seed=seed, wrong=wrong, episodes=count))) for seed in range(seeds)]
        relative = [each[0] for each in found]
        better, worse = sum(each[1] > 0 for each in found), sum(each[2] < 0 for each in found)
        most = sum(each >= 0.2 for each in relative)
        print(f"{wrong:<5}  {count:<8}  {interval(relative):<26}  {most:<7}  {better:<6}  {worse}")


def _gain(found: Evaluation) -> tuple[float, float, float]:
    """Return the relative gain, and the interval of the difference."""
    comparison = next(each for each in found.comparisons if each.measure == "hit@3")
    return comparison.relative.value or 0.0, comparison.difference.low or 0.0, comparison.difference.high or 0.0


def policies(seeds: int) -> None:
    """Print every policy's mean over seeds."""
    print(f"\nmeans of {seeds} seeds, wrong 0.6, 600 episodes")
    print("policy          hit@1  hit@3  hit@5  mrr    reach  shown  brier  ece")
    rows: dict[str, list[list[float | None]]] = {}
    for seed in range(seeds):
        for standing in evaluation(World(seed=seed)).tools:
            rows.setdefault(standing.policy, []).append([*(each.value for each in standing.figures.values()), standing.ece])
    for name, values in rows.items():
        means = [None if None in column else statistics.mean(each or 0.0 for each in column) for column in zip(*values, strict=True)]
        print(f"{name:<14}  " + "  ".join("-    " if mean is None else f"{mean:.3f}"[:5] for mean in means))


def noise(seeds: int) -> None:
    """Print how often a log of pure noise changes any score."""
    changed = 0
    for seed in range(seeds):
        made = generate(World(seed=seed, noise=True))
        changed += bool(learn(made.static, episodes(made.executions), Parameters()).changes)
    print(f"\npure noise: scores changed in {changed} of {seeds} logs")


def starting(count: int = 10_000, queries: int = 1000) -> None:
    """Print the milliseconds to rank actions of twenty words, from a vocabulary with Zipf's frequencies."""
    draw = random.Random(1)
    vocabulary = [f"{draw.getrandbits(40):x}" for _ in range(5000)]
    weights = [1 / (rank + 1) for rank in range(5000)]
    began = time.perf_counter()
    starter = Starter({f"action-{number}": " ".join(draw.choices(vocabulary, weights, k=20)) for number in range(count)})
    print(f"\n{count} actions, indexed in {time.perf_counter() - began:.2f} s; ms per sentence")
    for words in (3, 8, 30):
        took = []
        for _ in range(queries):
            sentence = " ".join(draw.choices(vocabulary, weights, k=words))
            began = time.perf_counter()
            starter.rank(sentence)
            took.append((time.perf_counter() - began) * 1000)
        took.sort()
        print(f"{words:>2} words: p50 {took[len(took) // 2]:.2f}  p99 {took[len(took) * 99 // 100]:.2f}  max {took[-1]:.2f}")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30, help="seeds of each world (30)")
    parser.add_argument("--noise-seeds", type=int, default=300, help="logs of pure noise (300)")
    given = parser.parse_args()
    starting()
    gains(given.seeds)
    policies(given.seeds)
    noise(given.noise_seeds)


if __name__ == "__main__":
    main()
