"""Run the whole of learning once: read logs, match them with a graph, learn, evaluate, and keep a revision."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from toolbus.bus.support.display import visible
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.evaluate import Evaluation, Options, evaluate
from toolbus.toolkit.learning.evidence import DAY, Parameters, ScoreFile, Scores, episodes, matched
from toolbus.toolkit.learning.learn import Change, Learned, learn
from toolbus.toolkit.learning.revisions import Revisions, changed, difference, digest
from toolbus.toolkit.learning.stores import Execution, ExecutionStore, OnBad

# The measure by which an evaluation can refuse what was learned.
DECIDING = "mrr"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run.

    Attributes:
        executions, episodes: numbers of records that were learned from, and of their episodes.
        notes: sentences about records that were left out.
        learned: what the log supports.
        changes: the scores that differ from the current revision's before the run.
        evaluation: the replay of the last episodes; None when there are too few.
        revision: id of the current revision after the run; empty when there is none.
        added: whether the run made this revision.
        decision: the result in words.
    """

    executions: int
    episodes: int
    notes: list[str]
    learned: Learned
    changes: list[Change]
    evaluation: Evaluation | None
    revision: str
    added: bool
    decision: str


def run(
    static: ScoreFile,
    stores: Sequence[ExecutionStore],
    revisions: Revisions,
    *,
    parameters: Parameters | None = None,
    options: Options | None = None,
    graph: str = "",
    on_bad: OnBad | None = None,
    dry: bool = False,
    resume: bool = False,
) -> Outcome:
    """Learn from logs and make the result the current revision, if it is credible and the evaluation does not refuse it.

    Args:
        static: the scores that people gave, and the texts and other names of the vertices, see ``matched``.
        stores: the logs; a record in several counts once.
        graph: name of the graph's preset, so that the folder of another one is refused.
        on_bad: called with each record that can't be read, which is left out.
        dry: add no revision.
        resume: add a revision also after a rollback.

    Raises:
        RecordError: a record can't be read and there is no ``on_bad``.
        ConfigurationError: no record is of an edge of the graph, the folder is another graph's, or the folder or a log can't be
            read or written.
    """
    parameters, scores = (parameters or Parameters()).checked(), static.scores
    current = revisions.of(scores, graph)
    notes: list[str] = []
    found = matched(_present(_read(stores, on_bad), notes), scores, static.names)
    notes += [note for note in (found.told(),) if note]
    logged = episodes(found.executions)
    learned = learn(scores, logged, parameters)
    before = scores if current is None else current.scores
    changes = changed(before, scores, learned)
    evaluation = None
    with suppress(ConfigurationError):  # too few episodes to split, so that nothing is taken
        evaluation = evaluate(scores, static.texts, logged, parameters, options)
    decision, take = _decided(learned, before, evaluation, held=revisions.held and not resume)
    made = revisions.add(scores, learned, digest(logged), parameters, graph=graph) if take and not dry else None
    if take and dry:
        decision = f"{decision}; nothing is written, since this is a dry run"
    return Outcome(
        executions=len(found.executions),
        episodes=len(logged),
        notes=notes,
        learned=learned,
        changes=changes,
        evaluation=evaluation,
        revision=made.id if made is not None else "" if current is None else current.id,
        added=made is not None,
        decision=decision,
    )


def _read(stores: Sequence[ExecutionStore], on_bad: OnBad | None) -> Iterator[Execution]:
    """Yield the records of all logs, each id once."""
    seen: set[str] = set()
    for store in stores:
        for execution in store.read(on_bad):
            if execution.id not in seen:
                seen.add(execution.id)
                yield execution


def _present(executions: Iterable[Execution], notes: list[str]) -> list[Execution]:
    """Leave out records from the future: one from a wrong clock would make all others too old to count."""
    limit, found = time.time() + DAY, [*executions]
    kept = [execution for execution in found if execution.at <= limit]
    if len(kept) < len(found):
        notes.append(f"{len(found) - len(kept)} of {len(found)} executions are left out, since their times are in the future")
    return kept


def _decided(learned: Learned, before: Scores, evaluation: Evaluation | None, *, held: bool) -> tuple[str, bool]:
    """Return what to do in words, and whether a revision is made."""
    if not difference(before, learned.scores):
        return "nothing to change: the scores are what the log supports", False
    if held:
        return "held: scores differ, but the current revision was chosen by a rollback; --resume learns on", False
    if evaluation is None:
        return "refused: too few episodes to evaluate what was learned; record more, or hold out another part (--held-out)", False
    worse = next((each for each in evaluation.comparisons if each.measure == DECIDING), None)
    if worse is not None and worse.difference.high is not None and worse.difference.high < 0:
        return f"refused: on held-out episodes the learned order is worse ({DECIDING} {worse.difference})", False
    return "taken: the log supports other scores, and the evaluation does not speak against them", True


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
