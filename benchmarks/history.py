"""Keep the ratios to peers of each night, and draw them: a rate depends on the machine, a ratio of one run hardly does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import gateways, runner
from benchmarks.gateways import Window
from benchmarks.peers import HERE, ROOT, install, load, missing_server
from benchmarks.plot import lines
from benchmarks.runner import Measurement, Plan
from benchmarks.servers import NoServer, Server
from benchmarks.summary import median, ratio
from benchmarks.workloads import WORKLOADS

KEPT = HERE / "history.json"
PICTURE = HERE / "history.svg"
MOST = 400
"""Runs that are kept: a year of nights."""


@dataclass(frozen=True)
class Ratio:
    """A line of the picture: the rate of one as a multiple of another's.

    Attributes:
        place: calls in flight on the bus, or the operation of a gateway.
    """

    title: str
    one: str
    other: str
    place: int | str


RATIOS = (
    Ratio("1 in flight, of the floor's", "toolbus", "floor", 1),
    Ratio("64 in flight, of the floor's", "toolbus", "floor", 64),
    Ratio("64 in flight, of nats-py's", "toolbus", "nats-py", 64),
    Ratio("64 in flight, of saq's", "toolbus", "saq", 64),
    Ratio("MCP, of FastMCP's", "toolbus", "fastmcp", "echo"),
    Ratio("POST …/invoke, of FastAPI's", "toolbus-invoke", "fastapi", "echo"),
)


def measure(servers: Mapping[str, Server], rounds: int, seconds: float) -> dict[str, float]:
    """Return the ratios of one run by their titles; without those to peers whose server is missing.

    Raises:
        InstallError: the environment of a peer can't be made.
    """
    specs = load()
    wanted = dict.fromkeys(name for each in RATIOS if isinstance(each.place, int) for name in (each.one, each.other))
    peers = [specs[name] for name in wanted if not missing_server(specs[name])]
    for spec in peers:
        install(spec)
    levels = tuple(sorted({each.place for each in RATIOS if isinstance(each.place, int)}))
    plan = Plan("history", tuple(peers), (WORKLOADS["unary"],), rounds, seconds, warmup=0.4, seed=1, levels=levels)
    calls = runner.run(plan, {"none": NoServer(), **servers})
    names = list(dict.fromkeys(name for each in RATIOS if isinstance(each.place, str) for name in (each.one, each.other)))
    return ratios(calls, gateways.measure(names, connections=64, rounds=rounds, seconds=seconds, seed=1))


def ratios(calls: Sequence[Measurement], windows: Sequence[Window]) -> dict[str, float]:
    """Return each ratio of medians by its title, where both were measured."""
    rates: dict[tuple[str, int | str], list[float]] = {}
    for call in calls:
        if not call.failure:
            rates.setdefault((call.peer, call.concurrency), []).append(call.rate)
    for window in windows:
        if not window.failed:
            rates.setdefault((window.contestant, window.operation), []).append(window.rate)
    found = {each.title: ratio(*(median(rates.get((name, each.place), [])) for name in (each.one, each.other))) for each in RATIOS}
    return {title: round(value, 3) for title, value in found.items() if value is not None}


def keep(found: Mapping[str, float], kept: Path = KEPT, picture: Path = PICTURE) -> None:
    """Add a run to the history, of which the oldest leave, and draw it."""
    runs: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    runs.append({"date": f"{datetime.now().astimezone():%Y-%m-%d}", "commit": _commit(), "ratios": dict(found)})
    runs = runs[-MOST:]
    kept.write_text("[\n" + ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs) + "\n]\n")
    series = {each.title: [run["ratios"].get(each.title) for run in runs] for each in RATIOS}
    picture.write_text(lines("Calls per second, as multiples of peers'", [run["date"] for run in runs], series))


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
