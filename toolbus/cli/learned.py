"""Print changes, revisions and evaluations of learned scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.toolkit.learning.evaluate import Comparison, Evaluation, Standing
    from toolbus.toolkit.learning.learn import Change, Learned
    from toolbus.toolkit.learning.revisions import Revision


def plain(learned: Learned) -> dict[str, Any]:
    """Return what was learned as values for JSON."""
    return {
        "verdicts": msgspec.to_builtins(learned.verdicts),
        "changes": msgspec.to_builtins(learned.changes),
        "edges": msgspec.to_builtins([*learned.scores]),
    }


def score_text(value: float | None) -> str:
    """Return a score for a table."""
    return "-" if value is None else f"{value:.3f}"


def print_changes(changes: Sequence[Change]) -> None:
    """Print changed scores with their reasons."""
    rows = [(each.kind, each.source, each.target, score_text(each.old), score_text(each.new), each.why) for each in changes]
    if rows:
        print_table(("EDGE", "FROM", "TO", "OLD", "NEW", "WHY"), rows, empty="")


def heading(revision: Revision) -> dict[str, Any]:
    """Return the heading of a revision as values for JSON."""
    return {
        "id": revision.id,
        "parent": revision.parent,
        "created_at": revision.created_at,
        "note": revision.note,
        "changes": len(revision.changes),
        "log": msgspec.to_builtins(revision.log),
    }


def print_revision(revision: Revision, output: str) -> None:
    """Print a revision with its origin and its changes."""
    if output == "json":
        print_json(msgspec.to_builtins(revision))
        return
    say(f"{revision.id}  {revision.created} UTC  {revision.note}")
    if revision.log is not None:
        say(f"log: sha256 {revision.log.sha256}")
    if revision.parameters is not None:
        say("with: " + ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(revision.parameters).items()))
    for verdict in revision.verdicts:
        say(f"{verdict.kind}: {verdict.why}")
    print_changes(revision.changes)


def print_evaluation(found: Evaluation) -> None:
    """Print the tables of an evaluation."""
    say(
        f"learned from {found.learned_from} episodes; replayed {found.held_out}, with {found.calls} calls that succeeded "
        f"and {found.transitions} changes of action"
    )
    for verdict in found.learned.verdicts:
        say(f"{verdict.kind}: {verdict.why}")
    say()
    _print_standings(found.tools, ("hit@1", "hit@3", "hit@5", "mrr", "reach", "tools shown", "brier"), ece=True)
    say()
    _print_standings(found.actions, ("next hit@1", "next hit@3", "next mrr"), ece=False)
    say()
    rows = [(_pair(each), each.measure, str(each.difference), str(each.relative)) for each in found.comparisons]
    print_table(("COMPARED", "MEASURE", "DIFFERENCE", "RELATIVE"), rows, empty="")


def _pair(comparison: Comparison) -> str:
    return f"{comparison.better} - {comparison.than}"


def _print_standings(standings: Sequence[Standing], measures: Sequence[str], *, ece: bool) -> None:
    columns = ("POLICY", *(measure.upper() for measure in measures), *(("ECE",) if ece else ()))
    more = [(score_text(each.ece),) if ece else () for each in standings]
    rows = [(each.policy, *(str(each.figures[name]) for name in measures), *last) for each, last in zip(standings, more, strict=True)]
    print_table(columns, rows, empty="")
