"""``python -m tests.chaos.platform``: kill hosts and programs under load, and check what callers are told and what is left."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

from tests.chaos.platform.driver import Driver, Options
from tests.chaos.platform.history import History
from tests.chaos.platform.oracle import judge

_SHOWN = 20


@click.command()
@click.option("--seed", type=int, help="Decides calls, victims and times; drawn when left out, and told.")
@click.option("--kills", type=click.IntRange(1, 10_000), default=50, show_default=True, help="SIGKILLs.")
@click.option("--between", type=click.FloatRange(0.05, 60), default=1.0, show_default=True, help="Most seconds between two of them.")
@click.option("--hosts", type=click.IntRange(1, 20), default=3, show_default=True, help="Host processes.")
@click.option("--callers", type=click.IntRange(1, 500), default=16, show_default=True, help="Calls at once.")
@click.option("--lease", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="toolbus's lease, in seconds.")
@click.option("--timeout", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds a call may take.")
@click.option("--most", type=click.FloatRange(1), default=300.0, show_default=True, help="Seconds after which nothing more is killed.")
@click.option("--ends", type=click.FloatRange(1), default=150.0, show_default=True, help="Seconds after that in which the run has to end.")
def main(
    seed: int | None, kills: int, between: float, hosts: int, callers: int, lease: float, timeout: float, most: float, ends: float
) -> None:
    """Kill hosts and the programs of their tools with SIGKILL while the tools are called; then check that every call has ended with
    its answer or a clear error, that no program outlived its host, and that no route outlived its lease.

    Exits with 0 when every promise was kept, with 1 when one was broken, and with 3 when the run did not end: then it says what each
    task waits for.
    """
    chosen = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    options = Options(chosen, kills, between, hosts, callers, lease, timeout, most, ends)
    folder = Path(tempfile.mkdtemp(prefix="toolbus-chaos-"))
    click.echo(f"seed {chosen}: {kills} kills among {hosts} hosts and their programs, {callers} calls at once")
    driver = Driver(options, folder, click.echo)
    asyncio.run(driver.run())
    broken = judge(driver.history)
    click.echo(text(driver.history, broken))
    if broken:
        click.echo(f"notes and logs: {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


def text(history: History, broken: list[str]) -> str:
    """Return a run in words."""
    times = sorted(ended.seconds for ended in history.ended if ended.how == "ok") or [0.0]
    rate = len(history.ended) / history.seconds if history.seconds else 0.0
    answered = f"answered: p50 {times[len(times) // 2] * 1000:.0f} ms, p99 {times[len(times) * 99 // 100]:.2f} s, most {times[-1]:.2f} s"
    lines = [
        "killed: " + ", ".join(f"{count} {what}s" for what, count in sorted(history.kills.items())),
        f"{len(history.ended)} calls in {history.seconds:.0f} s ({rate:.0f}/s); {answered}",
        f"run more than once: {sum(count > 1 for count in history.runs.values())}",
    ]
    tools: dict[str, Counter[str]] = {}
    for ended in history.ended:
        tools.setdefault(ended.call.tool, Counter())["/".join(filter(None, (ended.how, ended.code)))] += 1
    lines += [f"  {tool:9}" + ", ".join(f"{how} {count}" for how, count in counts.most_common()) for tool, counts in sorted(tools.items())]
    lines.append(f"broken promises: {len(broken)}")
    lines += [f"  {flaw}" for flaw in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        lines.append(f"  … and {len(broken) - _SHOWN} more")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
