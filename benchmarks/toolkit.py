"""Measure recommendations from a large toolkit graph by the number of hops."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from benchmarks.limits import Limit, quantile
from toolbus.toolkit import Action, Tool, Toolkit, recommend_subgraph

MOST_MS = 2.0
THRESHOLD = 0.5
HOPS = 2
NEXT_EDGES = 10


def measure(actions: int, tools: int, recommendations: int, seed: int) -> tuple[list[Limit], dict[str, Any]]:
    """Recommend from random actions of a random graph; measure the milliseconds and the size of the result for each number of hops."""
    chance = random.Random(seed)
    toolkit = _random_toolkit(actions, tools, chance)
    starts = [f"action {chance.randrange(actions)}" for _ in range(recommendations)]
    figures: dict[str, Any] = {"actions": actions, "tools": tools, "edges": len(toolkit.edges()), "threshold": THRESHOLD}
    limits: list[Limit] = []
    for hops in range(HOPS + 1):
        took: list[float] = []
        sizes: list[int] = []
        for start in starts:
            before = time.perf_counter()
            part = recommend_subgraph(toolkit, [start], THRESHOLD, hops)
            took.append(1000 * (time.perf_counter() - before))
            sizes.append(len(part.get_graph()))
        p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
        figures[f"{hops} hops"] = {"p50_ms": p50, "p99_ms": p99, "vertices": statistics.median(sizes)}
        detail = f"p99 {p99:.2f} ms; {statistics.median(sizes):g} of {actions + tools:,} vertices"
        limits.append(Limit(f"recommendation within {hops} hops, p50", p50, MOST_MS, "ms", detail=detail))
    return limits, figures


def _random_toolkit(actions: int, tools: int, chance: random.Random) -> Toolkit:
    """Return a graph where every action leads to ten others and every tool is called by one action, with random scores."""
    toolkit = Toolkit()
    for number in range(actions):
        toolkit.add_vertex(f"action {number}", data=Action(f"action {number}", f"Action {number}", "does something"))
    for number in range(actions):
        for _ in range(NEXT_EDGES):
            toolkit.add_edge(f"action {number}", f"action {chance.randrange(actions)}", chance.random())
    for number in range(tools):
        toolkit.add_vertex(f"tool {number}", data=Tool(f"tool {number}", f"tool {number}", "calls something"))
        toolkit.add_edge(f"action {number % actions}", f"tool {number}", chance.random())
    return toolkit
