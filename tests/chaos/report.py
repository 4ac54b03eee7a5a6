"""The result of a run: counts, times and violations, for people and as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from tests.chaos.history import Begun, Counted, Ended, Exited, History, Hit, Issued, Started
from tests.chaos.options import Options
from tests.chaos.oracle import Violation
from tests.chaos.oracle.sessions import answers, seat
from tests.chaos.plan import FAILING, Planned

_SHOWN = 20
# A silence counts as a recovery when the stream's first worker was killed just before or within it.
_BEFORE = 0.5


class Times(msgspec.Struct, frozen=True):
    """The spread of a set of durations (seconds)."""

    count: int = 0
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        results: how many calls ended how, by tool: ``ok`` or the error's type and code.
        abandoned: calls whose agent was killed before they ended.
        kills: worker processes that died, killed or of poison.
        recoveries: for streams whose worker was killed in mid-stream, the longest silence their caller sat through.
        resets: streams that began anew.
        early: frames that came before earlier ones of their runs.
        unbegun: calls told as unknown whose handler never began: their worker died between the mark and the handler's first step.
        reruns: calls that were begun more than once, though their tools don't fail at first.
        others: processes that imported the other version of toolbus.
        sessions, moves: sticky sessions, and how often one began anew because its worker was gone.
        backlog, backlog_reruns: requests without a caller, and how many of them were run more than once.
    """

    options: Options
    seconds: float
    calls: int
    calls_per_second: float
    results: dict[str, dict[str, int]]
    abandoned: int
    kills: int
    faults: dict[str, int]
    recoveries: Times
    resets: int
    early: int
    unbegun: int
    reruns: int
    others: int
    sessions: int
    moves: int
    backlog: int
    backlog_reruns: int
    violations: list[Violation]

    @property
    def passed(self) -> bool:
        """Return whether every promise was kept."""
        return not self.violations


def report(options: Options, planned: list[Planned], history: History, violations: list[Violation], seconds: float) -> Report:
    """Count a run's history."""
    tools = {call.key: call.tool for call in planned}
    shares = {call.key: call.shares for call in planned}
    results: dict[str, Counter[str]] = {}
    ended = history.of(Ended)
    for record in ended:
        how = "ok" if record.success else "/".join(filter(None, (record.error, record.code)))
        results.setdefault(tools[record.key], Counter())[how] += 1
    begun = Counter(record.key for record in history.of(Begun))
    early = {counted.id: counted.early for counted in history.of(Counted)}
    lives = {session: len({seat(ended)[0] for ended in answered}) for session, answered in answers(planned, ended).items() if answered}
    return Report(
        options=options,
        seconds=round(seconds, 1),
        calls=len(ended),
        calls_per_second=round(len(ended) / seconds, 1) if seconds else 0.0,
        results={tool: dict(counts) for tool, counts in sorted(results.items())},
        abandoned=len({issued.key for issued in history.of(Issued)} - {record.key for record in ended}),
        kills=sum(gone.role == "worker" and gone.status != 0 for gone in history.of(Exited)),
        faults=dict(sorted(Counter(hit.kind for hit in history.of(Hit) if not hit.what.startswith("failed")).items())),
        recoveries=recoveries(history),
        resets=sum(len(record.segments) - 1 for record in ended if record.segments),
        early=sum(early.values()),
        unbegun=sum(record.error == "outcome_unknown" and not begun[record.key] for record in ended if not shares[record.key]),
        reruns=sum(count > 1 for key, count in begun.items() if tools.get(key) not in FAILING),
        others=sum(started.other for started in history.of(Started)),
        sessions=len(lives),
        moves=sum(count - 1 for count in lives.values()),
        backlog=options.backlog,
        backlog_reruns=sum(count > 1 for count in history.runs[:-1]),
        violations=violations,
    )


def recoveries(history: History) -> Times:
    """Return how long callers of streams waited for the next event after their worker had been killed."""
    systems = {started.pid: started.system for started in history.of(Started)}
    deaths: dict[int, list[float]] = defaultdict(list)
    for gone in history.of(Exited):
        if gone.role == "worker" and gone.status != 0:
            deaths[systems.get(gone.pid, 0)].append(gone.at)
    waits = []
    for record in history.of(Ended):
        since, until = record.silence
        if record.attempts > 1 and any(since - _BEFORE <= death <= until for death in deaths[_system(record.first)]):
            waits.append(until - since)
    return spread(waits)


def _system(instance: str) -> int:
    """The system's number of a process, in an instance id (host-number-random)."""
    parts = instance.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else 0


def spread(values: Iterable[float]) -> Times:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values)
    if not ordered:
        return Times()
    return Times(
        len(ordered),
        *(round(value, 3) for value in (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], ordered[-1])),
    )


def text(found: Report) -> str:
    """The report for people."""
    options, times = found.options, found.recoveries
    called = f"{found.calls} calls in {found.seconds:.0f} s ({found.calls_per_second:g}/s)"
    lines = [
        f"seed {options.seed}: {called}, {found.abandoned} more abandoned by killed agents",
        (
            f"workers that died: {found.kills}; calls run more than once: {found.reruns}; resets seen: {found.resets}; "
            f"frames out of order: {found.early}; "
            f"unknown though never begun: {found.unbegun}"
        ),
        "faults: " + (", ".join(f"{kind} {count}" for kind, count in found.faults.items()) or "none"),
    ]
    if options.other:
        lines.append(f"processes with the version in {options.other}: {found.others}")
    if found.sessions:
        lines.append(f"sessions: {found.sessions}, begun anew at another worker: {found.moves}")
    if options.backlog:
        lines.append(f"requests without a caller: {found.backlog}, run more than once: {found.backlog_reruns}")
    for tool, counts in found.results.items():
        lines.append(f"  {tool:9}" + ", ".join(f"{how} {count}" for how, count in sorted(counts.items(), key=lambda item: -item[1])))
    silence = f"longest silence p50 {times.p50:.2f} s, p99 {times.p99:.2f} s, most {times.most:.2f} s (lease {options.lease:g} s)"
    lines.append(f"streams whose worker was killed: {times.count}; {silence}")
    counts = Counter(violation.rule for violation in found.violations)
    lines.append(
        f"violations: {len(found.violations)}" + (f" ({', '.join(f'{rule} {n}' for rule, n in counts.items())})" if counts else "")
    )
    lines += [f"  {violation.rule} {violation.key}: {violation.what}" for violation in found.violations[:_SHOWN]]
    if len(found.violations) > _SHOWN:
        lines.append(f"  … and {len(found.violations) - _SHOWN} more")
    return "\n".join(lines)
