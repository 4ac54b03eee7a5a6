"""The command ``episodes``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from pathlib import Path

from benchmarks.episodes.measure import Outcome, Plan, measure
from benchmarks.episodes.report import document, reasons, table
from benchmarks.episodes.script import Episode, episodes
from benchmarks.episodes.ways.every import PACKAGES, installed
from benchmarks.servers import redis_server

ABOUT = """\
Play episodes of several turns with stateful services, many at once on several workers, and compare every answer with that of the
same classes in one process. An episode is identical, told (the first other answer was a failure that the model could read), wrong
(the first other answer came from another state, in silence) or unfinished. The exit code is 0 when none is wrong or unfinished.
"""

_PAUSE_WITH_KILLS = 1.0
_LEASE_WITH_KILLS = 2.0
_LEASE = 30.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = commands.add_parser("episodes", help="episodes with stateful services, compared with one process", description=ABOUT)
    parser.set_defaults(function=run)
    ways = [*PACKAGES, "all"]
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--adapter", choices=ways, nargs="+", default=["executor"], help="who makes the turns (%(default)s)")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--declared", dest="orders", action="store_const", const=(True,), help="only with sequential services")
    order.add_argument("--default", dest="orders", action="store_const", const=(False,), help="only without a declaration")
    parser.set_defaults(orders=(False, True))
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="S", help="end a worker every so many seconds")
    parser.add_argument("--signal", choices=("KILL", "TERM", "STOP"), default="KILL", help="how it is ended (%(default)s)")
    parser.add_argument("--lost", choices=("error", "restart", "restore"), default="", help="the services' session_lost (error)")
    parser.add_argument("--concurrency", type=int, default=100, metavar="N", help="calls at once in each worker (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="worker processes (%(default)s)")
    parser.add_argument("--together", type=int, default=32, metavar="N", help="episodes at once (%(default)s)")
    parser.add_argument("--pause", type=float, metavar="S", help="most seconds that a model thinks; by default 0, or 1 with kills")
    parser.add_argument("--lease", type=float, metavar="S", help="lease of the workers in seconds; by default 30, or 2 with kills")
    parser.add_argument("--seed", type=int, default=1, help="seed of the episodes, pauses and kills (%(default)s)")
    parser.add_argument("--verbose", action="store_true", help="show why episodes were not identical")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    wanted = list(PACKAGES) if "all" in options.adapter else list(dict.fromkeys(options.adapter))
    absent = [name for name in wanted if not installed(name)]
    for name in absent:
        print(f"leaving out {name}: its package {PACKAGES[name]} is not installed", flush=True)
    pause = options.pause if options.pause is not None else (_PAUSE_WITH_KILLS if options.kill_every else 0.0)
    lease = options.lease or (_LEASE_WITH_KILLS if options.kill_every else _LEASE)
    plans = [
        Plan(
            name,
            declared,
            options.kill_every,
            options.signal,
            options.lost,
            options.concurrency,
            options.workers,
            options.together,
            pause,
            lease,
            options.seed,
        )
        for declared in options.orders
        for name in wanted
        if name not in absent
    ]
    scripts = episodes(options.episodes, options.seed)
    logging.disable(logging.WARNING)
    with redis_server() as server:
        outcomes = asyncio.run(_all(plans, scripts, server.url))
    calls = sum(each.calls for each in scripts)
    lines = [f"{len(scripts)} episodes of seed {options.seed}, {calls:,} calls each time", "", *table(outcomes)]
    if options.verbose:
        lines += ["", *reasons(outcomes)]
    print("\n".join(lines))
    if options.json is not None:
        options.json.write_text(json.dumps(document(outcomes, options.seed, options.episodes), indent=1) + "\n")
    return int(any(each.counts["wrong"] or each.counts["unfinished"] for each in outcomes))


async def _all(plans: list[Plan], scripts: list[Episode], url: str) -> list[Outcome]:
    outcomes = []
    for plan in plans:
        tty = sys.stderr.isatty()

        def show(text: str, title: str = plan.title, tty: bool = tty) -> None:
            print(f"{title}: {text}".ljust(100), end="\r" if tty else "\n", file=sys.stderr, flush=True)

        outcomes.append(await measure(plan, scripts, url, show))
    return outcomes
