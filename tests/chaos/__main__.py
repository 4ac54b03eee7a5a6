"""``python -m tests.chaos``: break things, and check that nothing is lost."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from tests.chaos.backlog import MOST, count
from tests.chaos.driver import Driver
from tests.chaos.history import History, read
from tests.chaos.options import Options
from tests.chaos.oracle import judge
from tests.chaos.plan import plan
from tests.chaos.report import Report, report, text
from tests.chaos.schedule import BACKLOG, DEFAULT, KINDS, schedule

_CALLS_A_MINUTE = 4000

_KINDS_HELP = "\b\nKinds of faults (those with * are not in a default run):\n" + "\n".join(
    f"  {name + ('' if name in DEFAULT else '*'):14} {kind.about}" for name, kind in KINDS.items()
)


@click.command(epilog=_KINDS_HELP)
@click.option("--seed", type=int, help="Decides calls, faults, times and targets; drawn when left out, and told.")
@click.option("--minutes", type=click.FloatRange(0.05, 600), default=5.0, show_default=True, help="How long faults are applied.")
@click.option("--faults", help="Kinds of faults, separated by commas; `all` for all of them.  [default: those without *]")
@click.option("--calls", type=click.IntRange(1), help=f"Calls in all.  [default: {_CALLS_A_MINUTE} a minute]")
@click.option("--agents", type=click.IntRange(1, 99), default=5, show_default=True, help="Agent processes.")
@click.option("--workers", type=click.IntRange(1, 99), default=10, show_default=True, help="Worker processes.")
@click.option("--intensity", type=click.FloatRange(0.01, 100), default=1.0, show_default=True, help="Factor on how often faults happen.")
@click.option("--lease", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, help="toolbus's lease, in seconds.")
@click.option("--timeout", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds an ordinary call may take.")
@click.option("--backlog", type=click.IntRange(1, MOST), default=1_000_000, show_default=True, help="Requests of the fault `backlog`.")
@click.option(
    "--other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the `toolbus` of another version, for every second process: a git worktree, or what `pip install --target` made.",
)
@click.option("--persistence/--no-persistence", default=True, show_default=True, help="Whether the server writes an append-only file.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the report there, as JSON.")
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Keep history and logs in this new folder.")
@click.option("--show-schedule", is_flag=True, help="Print the faults that the seed leads to, and stop.")
def main(
    seed: int | None,
    minutes: float,
    faults: str | None,
    calls: int | None,
    agents: int,
    workers: int,
    intensity: float,
    lease: float,
    timeout: float,
    backlog: int,
    other: Path | None,
    persistence: bool,
    json_file: Path | None,
    keep: Path | None,
    show_schedule: bool,
) -> None:
    """Run agents and workers against a server of their own while processes, network and server are broken on
    purpose; then check from what everybody wrote down that no promise of toolbus was broken.

    Exits with 0 when there was no violation, with 1 when there was one, and with 2 when the options are wrong.

    \b
    Examples:
      python -m tests.chaos --minutes 5
      python -m tests.chaos --seed 7 --minutes 1 --faults kill,stop,reset
      python -m tests.chaos --faults kill,backlog --backlog 100000
      git worktree add --detach ../old v0.1 && python -m tests.chaos --other ../old
      python -m tests.chaos --no-persistence --faults kill,server-kill,flushall
    """
    kinds = _kinds(faults)
    options = Options(
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        seconds=minutes * 60,
        calls=calls or max(1, round(_CALLS_A_MINUTE * minutes)),
        agents=agents,
        workers=workers,
        faults=kinds,
        intensity=intensity,
        durable=persistence,
        lease=lease,
        timeout=timeout,
        other="" if other is None else str(_with_package(other)),
        backlog=backlog if BACKLOG in kinds else 0,
    )
    if show_schedule:
        for fault in schedule(options.seed, options.seconds, options.faults, lease=lease, intensity=intensity):
            click.echo(f"{fault.at:8.2f} s  {fault.kind:14} {fault.lasts:5.2f} s  {fault.pick:.3f}")
        return
    folder = Path(tempfile.mkdtemp(prefix="toolbus-chaos-")) if keep is None else keep
    click.echo(f"seed {options.seed}: {options.calls} calls in {options.seconds:g} s by {agents} agents and {workers} workers")
    click.echo(f"faults: {', '.join(options.faults) or 'none'}")
    found = run(options, folder)
    click.echo(text(found))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    if keep is None and found.passed:
        shutil.rmtree(folder)
    else:
        click.echo(f"history and logs: {folder}")
    sys.exit(0 if found.passed else 1)


def run(options: Options, folder: Path) -> Report:
    """One run from start to judgement."""
    return judged(options, folder, asyncio.run(Driver(options, folder, click.echo).run()))


def judged(options: Options, folder: Path, seconds: float) -> Report:
    """Return what the oracle finds in the history of a run in which calls were made for some seconds."""
    planned = plan(options.seed, options.calls, options.agents, poisoned=options.poisoned, timeout=options.timeout, lease=options.lease)
    history = History(read(folder / "history"), count(folder / "history", options.backlog))
    return report(options, planned, history, judge(options, planned, history), seconds)


def _with_package(other: Path) -> Path:
    if not (other / "toolbus" / "__init__.py").is_file():
        raise click.BadParameter(f"there is no package toolbus in {other}", param_hint="--other")
    return other


def _kinds(given: str | None) -> tuple[str, ...]:
    if given is None:
        return DEFAULT
    if given == "all":
        return tuple(KINDS)
    kinds = tuple(kind.strip() for kind in given.split(",") if kind.strip())
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise click.BadParameter(f"there is no fault {', '.join(unknown)}; there are {', '.join(KINDS)}", param_hint="--faults")
    return kinds


if __name__ == "__main__":
    main()
