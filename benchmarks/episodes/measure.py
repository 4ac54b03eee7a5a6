"""Play all episodes in one way, many at once, and count the verdicts."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.episodes.player import VERDICTS, Player, Verdict
from benchmarks.episodes.pool import Pool
from benchmarks.episodes.script import Episode
from benchmarks.episodes.services import DECLARED, LOST
from benchmarks.episodes.ways.every import Way, way
from benchmarks.episodes.worlds.every import WORLDS
from toolbus import Settings, ToolBus
from toolbus.bus.values.options import CallOptions

_EPISODE_SECONDS = 120.0
_CALL_SECONDS = 20.0
_MOST_DETAILS = 10
_PROGRESS_SECONDS = 1.0
_SILENT_LEASES = 1.5


@dataclass(frozen=True)
class Plan:
    """One row of the table.

    Attributes:
        way: how the turns are made.
        declared: the services declare that their calls run one after another.
        kill_every: seconds after which a worker is ended and another one started; 0 ends none.
        lost: the services' ``session_lost``; empty for the default.
        signal: ``KILL``; ``TERM``, after which a worker finishes what it runs; or ``STOP``, after which it goes on when its lease is over.
        concurrency: calls that run at once in each worker.
        pause: most seconds that the model thinks before each turn.
        lease: seconds of the workers' lease.
    """

    way: str
    declared: bool = False
    kill_every: float = 0.0
    signal: str = "KILL"
    lost: str = ""
    concurrency: int = 100
    workers: int = 4
    together: int = 32
    pause: float = 0.0
    lease: float = 2.0
    seed: int = 1

    @property
    def title(self) -> str:
        """The row's name."""
        declared = "sequential" if self.declared else "default"
        ends = f", SIG{self.signal} every {self.kill_every:g} s" if self.kill_every else ""
        return f"{self.way}, {declared}{ends}{f', {self.lost}' if self.lost else ''}"


@dataclass
class Outcome:
    """The counts of one row, and the first few episodes that were not identical.

    Attributes:
        told: failures that were told, by their words without numbers.
    """

    plan: Plan
    counts: Counter[Verdict]
    calls: int = 0
    seconds: float = 0.0
    kills: int = 0
    told: Counter[str] = field(default_factory=Counter)
    details: dict[str, list[str]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        counts = {verdict: self.counts[verdict] for verdict in VERDICTS}
        figures = {"calls": self.calls, "seconds": round(self.seconds, 1), "kills": self.kills}
        plan = {**vars(self.plan), "title": self.plan.title}
        return {"plan": plan, "episodes": counts, **figures, "told": dict(self.told.most_common()), "details": self.details}


async def measure(plan: Plan, scripts: Sequence[Episode], url: str, progress: Callable[[str], None]) -> Outcome:
    """Start workers, play the episodes and stop the workers."""
    settings = Settings.load({}, url=url, namespace=f"episodes-{time.monotonic_ns()}")
    chance = random.Random(plan.seed)
    players = [Player(script, _pauses(script, plan.pause, chance)) for script in scripts]
    options = ("--lease", str(plan.lease), "--concurrency", str(plan.concurrency))
    variables = {DECLARED: "1" if plan.declared else "", LOST: plan.lost}
    async with Pool(settings, plan.workers, options, variables) as pool, ToolBus(settings=settings) as bus:
        for name in {name for script in scripts for name in script.services}:
            await bus.wait_for_tool(WORLDS[name].audit_tool(), timeout=_CALL_SECONDS)
        began = time.monotonic()
        killer = asyncio.create_task(_harm(plan, pool, chance))
        try:
            await play_all(plan, players, bus, progress)
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        seconds = time.monotonic() - began
    return judged(plan, players, seconds=seconds, kills=pool.kills)


async def play_all(plan: Plan, players: Sequence[Player], bus: ToolBus, progress: Callable[[str], None]) -> None:
    """Play the episodes on a bus whose workers serve the worlds, many at once."""
    play = way(plan.way)
    places = asyncio.Semaphore(plan.together)
    async with asyncio.TaskGroup() as group:
        teller = group.create_task(_tell(players, progress))
        await asyncio.gather(*(_episode(play, player, bus, plan, places) for player in players))
        teller.cancel()
    progress(_state(players))


async def _harm(plan: Plan, pool: Pool, chance: random.Random) -> None:
    if plan.kill_every and plan.signal == "STOP":
        await pool.stop_every(plan.kill_every, _SILENT_LEASES * plan.lease, chance)
    elif plan.kill_every:
        await pool.end_every(plan.kill_every, signal.Signals[f"SIG{plan.signal}"], chance)


def judged(plan: Plan, players: Sequence[Player], *, seconds: float, kills: int) -> Outcome:
    """Count the verdicts."""
    outcome = Outcome(plan, Counter(), seconds=seconds, kills=kills)
    for player in players:
        _count(outcome, player)
    return outcome


def _pauses(script: Episode, most: float, chance: random.Random) -> list[float]:
    return [chance.uniform(0.2, 1.0) * most for _ in range(len(script.turns) + 1)] if most else []


async def _episode(play: Way, player: Player, bus: ToolBus, plan: Plan, places: asyncio.Semaphore) -> None:
    options: CallOptions = {"user": "bench", "timeout": _CALL_SECONDS, "initial": {"episode": player.episode.session}}
    async with places, bus.session(player.episode.session, **options) as view:
        try:
            async with asyncio.timeout(_EPISODE_SECONDS):
                await play(view, player)
        except Exception as error:  # the others go on
            player.fail(f"{type(error).__name__}: {error}")
        player.over = True


async def _tell(players: Sequence[Player], progress: Callable[[str], None]) -> None:
    """Report the progress, at most once a second, until cancelled."""
    told = ""
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        if (state := _state(players)) != told:
            progress(state)
            told = state


def _state(players: Sequence[Player]) -> str:
    counts = Counter(player.verdict for player in players if player.over)
    done = f"{sum(counts.values())} of {len(players)} episodes"
    return ", ".join([done, *(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])])


def _count(outcome: Outcome, player: Player) -> None:
    outcome.counts[player.verdict] += 1
    outcome.calls += player.calls
    if player.error and player.verdict == "told":
        outcome.told["".join("#" if letter.isdigit() else letter for letter in player.error)] += 1
    if player.verdict != "identical":
        details = outcome.details.setdefault(player.verdict, [])
        if len(details) < _MOST_DETAILS:
            details.append(f"{player.episode.session}: {player.detail}")
