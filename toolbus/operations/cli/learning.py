"""``learning``: learn scores from recorded executions, and inspect them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.operations.cli.common import fail, output_option, print_json, print_table, say
from toolbus.operations.cli.learning_inputs import (
    Problems,
    folder_option,
    inputs,
    log_option,
    parameter_options,
    parameters_of,
    scores_option,
    skip_option,
)
from toolbus.operations.cli.learning_run import rollback_command, run_command
from toolbus.operations.cli.toolkit import ToolkitGroup

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


@click.command("learn")
@scores_option
@log_option
@folder_option
@parameter_options
@skip_option
@click.option("--dry-run", is_flag=True, help="Print what would change, but write nothing.")
@output_option
def learn_command(
    scores_file: Path | None, log_file: Path | None, folder: Path, skip_corrupt: bool, dry_run: bool, output: str, **given: float | None
) -> None:
    """Estimate scores from recorded executions, explain each change, and make the result the current revision.

    The same log, scores and parameters give the same result. A log without information changes nothing. Undo it with
    `toolbus learning rollback`.

    \b
    Example:
      toolbus learning learn --scores scores.json --log executions.jsonl --dry-run
      scores.json: {"edges": [{"kind": "call", "source": "count orders", "target": "run_sql", "score": 0.7},
                              {"kind": "next", "source": "count orders", "target": "report", "score": 0.9}]}
    """
    from toolbus.toolkit.learning.learn import learn
    from toolbus.toolkit.learning.revisions import Revisions, changed, digest

    parameters = parameters_of(given)
    file, logged = inputs(scores_file, log_file, skip_corrupt)
    static = file.scores
    learned = learn(static, logged, parameters)
    revisions = Revisions(folder)
    current = revisions.of(static)
    changes = changed(static if current is None else current.scores, static, learned)
    made = None if dry_run else revisions.add(static, learned, digest(logged), parameters)
    if output == "json":
        print_json({"revision": None if made is None else made.id, **plain(learned), "changes": msgspec.to_builtins(changes)})
        return
    for verdict in learned.verdicts:
        say(f"{verdict.kind}: {verdict.why}")
    print_changes(changes)
    if made is not None:
        say(f"{len(changes)} of {len(static)} scores changed; revision {made.id} is current (before: {made.parent})")
    else:
        say(f"{len(changes)} of {len(static)} scores would change" if dry_run else "nothing changed, so there is no new revision")


@click.command("evaluate")
@scores_option
@log_option
@click.option("--generated", is_flag=True, help="Use a generated log with known success rates, instead of --scores and --log.")
@click.option("--noise", is_flag=True, help="Use a generated log of pure noise.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the generated log and of the bootstrap.")
@click.option("--episodes", type=click.IntRange(10, 100_000), default=600, show_default=True, help="Episodes of the generated log.")
@click.option(
    "--wrong", type=click.FloatRange(0, 1), default=0.6, show_default=True, help="Share of generated static scores that are wrong."
)
@click.option("--held-out", type=click.FloatRange(0.01, 0.99), default=0.3, show_default=True, help="Share of the log (its end) to replay.")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Score from which a tool is shown.")
@parameter_options
@skip_option
@output_option
def evaluate_command(
    scores_file: Path | None,
    log_file: Path | None,
    generated: bool,
    noise: bool,
    seed: int,
    episodes: int,
    wrong: float,
    held_out: float,
    threshold: float,
    skip_corrupt: bool,
    output: str,
    **given: float | None,
) -> None:
    """Learn from the first episodes of a log, replay the last, and compare ways to choose tools.

    hit@k is how often the tool that succeeded is among the first k, mrr the mean reciprocal rank, reach how often it is shown
    at all; brier and ece measure the distance between scores and success rates. Intervals cover 95 %, over episodes.

    \b
    Example:
      toolbus learning evaluate --generated --seed 1
      toolbus learning evaluate --scores scores.json --log executions.jsonl --output json
    """
    from toolbus.toolkit.learning.evaluate import Options, evaluate
    from toolbus.toolkit.learning.evidence import episodes as episodes_of
    from toolbus.toolkit.learning.generated import World, generate

    parameters = parameters_of(given)
    if generated or noise:
        if scores_file or log_file:
            raise click.UsageError("--generated makes its own scores and log; leave out --scores and --log")
        made = generate(World(seed=seed, episodes=episodes, wrong=wrong, noise=noise))
        static, texts, logged = made.static, made.texts, episodes_of(made.executions)
    else:
        file, logged = inputs(scores_file, log_file, skip_corrupt)
        static, texts = file.scores, file.texts
    found = evaluate(static, texts, logged, parameters, Options(held_out=held_out, threshold=threshold, seed=seed))
    if output == "json":
        print_json({**msgspec.to_builtins(msgspec.structs.asdict(found) | {"learned": None}), "learned": plain(found.learned)})
        return
    print_evaluation(found)


@click.command("revisions")
@click.argument("revision", required=False)
@folder_option
@output_option
def revisions_command(revision: str | None, folder: Path, output: str) -> None:
    """List the revisions of the scores, or show one of them with its origin, its changes and their reasons.

    \b
    Example:
      toolbus learning revisions
      toolbus learning revisions 2
    """
    from toolbus.toolkit.learning.revisions import Revisions

    revisions = Revisions(folder)
    current = revisions.current()
    if revision is not None:
        print_revision(revisions.get(revision), output)
        return
    found = [revisions.get(each) for each in revisions.ids()]
    now = "" if current is None else current.id
    if output == "json":
        print_json([{**heading(each), "current": each.id == now} for each in found])
        return
    rows = [("*" if each.id == now else "", each.id, each.parent or "-", each.created, len(each.changes), each.note) for each in found]
    print_table(("", "ID", "PARENT", "CREATED (UTC)", "CHANGES", "NOTE"), rows, empty="no revisions yet; `toolbus learning run` makes one")


@click.command("diff")
@click.argument("old", required=False)
@click.argument("new", required=False)
@folder_option
@output_option
def diff_command(old: str | None, new: str | None, folder: Path, output: str) -> None:
    """Show the scores that differ between two revisions: by default the current one and its parent.

    \b
    Example:
      toolbus learning diff
      toolbus learning diff 1 3
    """
    from toolbus.toolkit.learning.revisions import Revisions, difference

    revisions = Revisions(folder)
    after = revisions.get(new) if new is not None else _current(revisions.current(), folder)
    if old is None and not after.parent:
        fail(f"{after.id} is the first revision; name the one to compare it with")
    before = revisions.get(old or after.parent)
    found = difference(before.scores, after.scores)
    if output == "json":
        print_json({"old": before.id, "new": after.id, "differences": msgspec.to_builtins(found)})
        return
    rows = [(each.kind, each.source, each.target, score_text(each.old), score_text(each.new)) for each in found]
    print_table(("EDGE", "FROM", "TO", before.id, after.id), rows, empty=f"{before.id} and {after.id} have the same scores")


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@skip_option
def convert_command(source: Path, target: Path, skip_corrupt: bool) -> None:
    """Add the executions of one log to another, of either format; existing ones are not added again.

    \b
    Example:
      toolbus learning convert executions.jsonl executions.db
    """
    from toolbus.toolkit.learning.stores import copy, open_store

    with open_store(source, must_exist=True) as before, open_store(target) as after:
        problems = Problems(skip_corrupt)
        added = copy(before, after, problems.callback)
        problems.report()
    say(f"added {added} {'execution' if added == 1 else 'executions'} to {target}")


def _current(revision: Revision | None, folder: Path) -> Revision:
    if revision is None:
        fail(f"{folder} has no revisions yet; `toolbus learning run` makes one")
    return revision


@click.group("learning", cls=ToolkitGroup, no_args_is_help=True)
def learning_command() -> None:
    """Learn the scores of the toolkit's graph from what agents recorded, publish them, and roll them back.

    \b
    Example:
      toolbus agent "count the orders of March" --walk --record executions.jsonl
      toolbus learning run analysis.yaml --log executions.jsonl
      toolbus learning rollback
    """


for command in (run_command, learn_command, evaluate_command, revisions_command, diff_command, rollback_command, convert_command):
    learning_command.add_command(command)
