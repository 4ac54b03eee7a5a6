"""Report a run of learning as text, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolbus.display import visible
from toolbus.toolkit.learning.evaluate import Evaluation
from toolbus.toolkit.learning.learn import Change
from toolbus.toolkit.learning.pipeline import Outcome

MEASURES = ("hit@1", "hit@3", "mrr", "reach", "tools shown", "brier")
_MOST_CHANGES = 200


def text(outcome: Outcome, title: str) -> str:
    """Return the report of a run: the decision, the changes with their reasons, and the evaluation."""
    lines = [f"# {visible(title)}", "", f"{outcome.decision[:1].upper()}{outcome.decision[1:]}.", ""]
    lines.append(f"- learned from {outcome.executions:,} executions of {outcome.episodes:,} episodes")
    lines += [f"- {visible(note)}" for note in outcome.notes]
    lines += [f"- {verdict.kind} edges: {verdict.why}" for verdict in outcome.learned.verdicts]
    lines.append(f"- current revision: {outcome.revision or 'none'}{' (new)' if outcome.added else ''}")
    if outcome.changes:
        lines += ["", "## Scores that differ from those before", "", *_changes(outcome.changes)]
    if outcome.evaluation is not None:
        lines += ["", "## Evaluation", "", *_evaluation(outcome.evaluation)]
    return "\n".join(lines) + "\n"


def _changes(changes: Sequence[Change]) -> list[str]:
    rows = [(each.kind, each.source, each.target, f"{each.old:.3f}", f"{each.new:.3f}", each.why) for each in changes[:_MOST_CHANGES]]
    more = [] if len(rows) == len(changes) else ["", f"and {len(changes) - len(rows):,} more"]
    return [*_table(("edge", "from", "to", "before", "now", "why"), rows), *more]


def _evaluation(found: Evaluation) -> list[str]:
    replayed = f"replayed on the last {found.held_out:,} ({found.calls:,} calls that succeeded)"
    intervals = f"Intervals cover {found.options.level:.0%}"
    lines = [f"Learned from the first {found.learned_from:,} episodes, and {replayed}. {intervals}.", ""]
    lines += _table(("policy", *MEASURES), [(each.policy, *(str(each.figures[measure]) for measure in MEASURES)) for each in found.tools])
    lines.append("")
    rows = [(f"{each.better} - {each.than}", each.measure, str(each.difference)) for each in found.comparisons]
    return lines + _table(("compared", "measure", "difference"), rows)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[visible(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]
