"""``toolkit learn``, ``evaluate``, ``revisions``, ``diff``, ``rollback`` and ``convert``: learn scores from recorded executions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from toolbus.cli.common import fail, output_option
from toolbus.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.toolkit.learning.evaluate import Comparison, Evaluation, Standing
    from toolbus.toolkit.learning.evidence import Episode
    from toolbus.toolkit.learning.learn import Change, Learned
    from toolbus.toolkit.learning.parameters import Parameters
    from toolbus.toolkit.learning.revisions import Revision
    from toolbus.toolkit.learning.scores import Scores

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_MOST_PROBLEMS = 20

_scores_option = click.option("--scores", "scores_file", type=click.Path(path_type=Path), help="Static scores: a JSON file of edges.")
_log_option = click.option("--log", "log_file", type=click.Path(path_type=Path), help="Executions: .jsonl, .db or .sqlite.")
_skip_option = click.option("--skip-corrupt", is_flag=True, help="Skip records that can't be read, and list them.")
_folder_option = click.option(
    "--revisions", "folder", type=click.Path(path_type=Path), default=Path("revisions"), show_default=True, help="Folder of revisions."
)


def _parameters(function: F) -> F:
    """Add the options for the parameters of learning."""
    for name, what in (
        ("--min-evidence", "Effective calls before a score moves (8)."),
        ("--half-life", "Days after which an execution counts half (30)."),
        ("--prior-strength", "Calls that a static score is worth (4)."),
        ("--clip", "Greatest weight of an execution that was improbable to be shown (10)."),
        ("--credibility", "Probability that a score is wrong before it moves (0.9)."),
        ("--guard", "Probability that a new order is better before it is accepted (0.99)."),
    ):
        function = click.option(name, type=float, help=what)(function)
    return function


@click.command("learn")
@_scores_option
@_log_option
@_folder_option
@_parameters
@_skip_option
@click.option("--dry-run", is_flag=True, help="Print what would change, but write nothing.")
@output_option
def learn_command(
    scores_file: Path | None, log_file: Path | None, folder: Path, skip_corrupt: bool, dry_run: bool, output: str, **given: float | None
) -> None:
    """Estimate scores from recorded executions, explain each change, and make the result the current revision.

    The same log, scores and parameters give the same result. A log without information changes nothing. Undo it with
    `toolbus toolkit rollback`.

    \b
    Example:
      toolbus toolkit learn --scores scores.json --log executions.jsonl --dry-run
      scores.json: {"edges": [{"kind": "call", "source": "count orders", "target": "run_sql", "score": 0.7},
                              {"kind": "next", "source": "count orders", "target": "report", "score": 0.9}]}
    """
    from toolbus.toolkit.learning.learn import learn
    from toolbus.toolkit.learning.revisions import Revisions, changed, digest

    parameters = _parameters_of(given)
    static, _, logged = _inputs(scores_file, log_file, skip_corrupt)
    learned = learn(static, logged, parameters)
    revisions = Revisions(folder)
    current = revisions.current()
    changes = changed(static if current is None else current.scores, static, learned)
    made = None if dry_run else revisions.add(static, learned, digest(logged), parameters)
    if output == "json":
        print_json({"revision": None if made is None else made.id, **_plain(learned), "changes": msgspec.to_builtins(changes)})
        return
    for verdict in learned.verdicts:
        say(f"{verdict.kind}: {verdict.why}")
    _print_changes(changes)
    if made is not None:
        say(f"{len(changes)} of {len(static)} scores changed; revision {made.id} is current (before: {made.parent})")
    else:
        say(f"{len(changes)} of {len(static)} scores would change" if dry_run else "nothing changed, so there is no new revision")


@click.command("evaluate")
@_scores_option
@_log_option
@click.option("--generated", is_flag=True, help="Use a generated log with known success rates, instead of --scores and --log.")
@click.option("--noise", is_flag=True, help="Use a generated log of pure noise.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the generated log and of the bootstrap.")
@click.option("--episodes", type=click.IntRange(10, 100_000), default=600, show_default=True, help="Episodes of the generated log.")
@click.option(
    "--wrong", type=click.FloatRange(0, 1), default=0.6, show_default=True, help="Share of generated static scores that are wrong."
)
@click.option("--held-out", type=click.FloatRange(0.01, 0.99), default=0.3, show_default=True, help="Share of the log (its end) to replay.")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Score from which a tool is shown.")
@_parameters
@_skip_option
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
      toolbus toolkit evaluate --generated --seed 1
      toolbus toolkit evaluate --scores scores.json --log executions.jsonl --output json
    """
    from toolbus.toolkit.learning.evaluate import Options, evaluate
    from toolbus.toolkit.learning.evidence import episodes as episodes_of
    from toolbus.toolkit.learning.generated import World, generate

    parameters = _parameters_of(given)
    if generated or noise:
        if scores_file or log_file:
            raise click.UsageError("--generated makes its own scores and log; leave out --scores and --log")
        made = generate(World(seed=seed, episodes=episodes, wrong=wrong, noise=noise))
        static, texts, logged = made.static, made.texts, episodes_of(made.executions)
    else:
        static, texts, logged = _inputs(scores_file, log_file, skip_corrupt)
    found = evaluate(static, texts, logged, parameters, Options(held_out=held_out, threshold=threshold, seed=seed))
    if output == "json":
        print_json({**msgspec.to_builtins(msgspec.structs.asdict(found) | {"learned": None}), "learned": _plain(found.learned)})
        return
    _print_evaluation(found)


@click.command("revisions")
@click.argument("revision", required=False)
@_folder_option
@output_option
def revisions_command(revision: str | None, folder: Path, output: str) -> None:
    """List the revisions of the scores, or show one of them with its origin, its changes and their reasons.

    \b
    Example:
      toolbus toolkit revisions
      toolbus toolkit revisions 2
    """
    from toolbus.toolkit.learning.revisions import Revisions

    revisions = Revisions(folder)
    current = revisions.current()
    if revision is not None:
        _print_revision(revisions.get(revision), output)
        return
    found = [revisions.get(each) for each in revisions.ids()]
    now = "" if current is None else current.id
    if output == "json":
        print_json([{**_heading(each), "current": each.id == now} for each in found])
        return
    rows = [("*" if each.id == now else "", each.id, each.parent or "-", each.created, len(each.changes), each.note) for each in found]
    print_table(("", "ID", "PARENT", "CREATED (UTC)", "CHANGES", "NOTE"), rows, empty="no revisions yet; `toolbus toolkit learn` makes one")


@click.command("diff")
@click.argument("old", required=False)
@click.argument("new", required=False)
@_folder_option
@output_option
def diff_command(old: str | None, new: str | None, folder: Path, output: str) -> None:
    """Show the scores that differ between two revisions: by default the current one and its parent.

    \b
    Example:
      toolbus toolkit diff
      toolbus toolkit diff 1 3
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
    rows = [(each.kind, each.source, each.target, _score(each.old), _score(each.new)) for each in found]
    print_table(("EDGE", "FROM", "TO", before.id, after.id), rows, empty=f"{before.id} and {after.id} have the same scores")


@click.command("rollback")
@click.argument("revision", required=False)
@_folder_option
def rollback_command(revision: str | None, folder: Path) -> None:
    """Make an earlier revision current again: by default the parent of the current one. Nothing is deleted.

    \b
    Example:
      toolbus toolkit rollback
      toolbus toolkit rollback 1
    """
    from toolbus.toolkit.learning.revisions import Revisions, difference

    left, back = Revisions(folder).roll_back(revision or "")
    if left is None:
        say(f"revision {back.id} is current")
        return
    count = len(difference(left.scores, back.scores))
    say(f"revision {back.id} is current (before: {left.id}); {count} {'score is another' if count == 1 else 'scores are others'}")


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@_skip_option
def convert_command(source: Path, target: Path, skip_corrupt: bool) -> None:
    """Add the executions of one log to another, of either format; existing ones are not added again.

    \b
    Example:
      toolbus toolkit convert executions.jsonl executions.db
    """
    from toolbus.toolkit.learning.stores import copy, open_store

    with open_store(source, must_exist=True) as before, open_store(target) as after:
        problems = _Problems(skip_corrupt)
        added = copy(before, after, problems.callback)
        problems.report()
    say(f"added {added} {'execution' if added == 1 else 'executions'} to {target}")


COMMANDS: tuple[click.Command, ...] = (
    learn_command,
    evaluate_command,
    revisions_command,
    diff_command,
    rollback_command,
    convert_command,
)


# -- input -------------------------------------------------------------------------------------------


class _Problems:
    """Counts skipped records and reports the first of them."""

    def __init__(self, skip: bool) -> None:
        self.callback = self._add if skip else None
        self._count = 0

    def _add(self, error: Exception) -> None:
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            say(f"left out: {error}", err=True)

    def report(self) -> None:
        """Print how many more were skipped."""
        if self._count > _MOST_PROBLEMS:
            say(f"left out: {self._count - _MOST_PROBLEMS} more", err=True)


def _parameters_of(given: dict[str, float | None]) -> Parameters:
    from toolbus.toolkit.learning.parameters import Parameters

    return Parameters(**{name: value for name, value in given.items() if value is not None}).checked()  # type: ignore[arg-type]


def _inputs(scores_file: Path | None, log_file: Path | None, skip_corrupt: bool) -> tuple[Scores, dict[str, str], list[Episode]]:
    from toolbus.toolkit.learning.evidence import episodes
    from toolbus.toolkit.learning.scores import load_scores
    from toolbus.toolkit.learning.stores import open_store

    if scores_file is None or log_file is None:
        raise click.UsageError("give --scores and --log")
    static, texts = load_scores(scores_file)
    problems = _Problems(skip_corrupt)
    with open_store(log_file, must_exist=True) as store:
        logged = episodes(store.read(problems.callback))
    problems.report()
    return static, texts, logged


def _current(revision: Revision | None, folder: Path) -> Revision:
    if revision is None:
        fail(f"{folder} has no revisions yet; `toolbus toolkit learn` makes one")
    return revision


# -- output ------------------------------------------------------------------------------------------


def _plain(learned: Learned) -> dict[str, Any]:
    return {
        "verdicts": msgspec.to_builtins(learned.verdicts),
        "changes": msgspec.to_builtins(learned.changes),
        "edges": msgspec.to_builtins([*learned.scores]),
    }


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _print_changes(changes: Sequence[Change]) -> None:
    rows = [(each.kind, each.source, each.target, _score(each.old), _score(each.new), each.why) for each in changes]
    if rows:
        print_table(("EDGE", "FROM", "TO", "OLD", "NEW", "WHY"), rows, empty="")


def _heading(revision: Revision) -> dict[str, Any]:
    return {
        "id": revision.id,
        "parent": revision.parent,
        "created_at": revision.created_at,
        "note": revision.note,
        "changes": len(revision.changes),
        "log": msgspec.to_builtins(revision.log),
    }


def _print_revision(revision: Revision, output: str) -> None:
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
    _print_changes(revision.changes)


def _print_evaluation(found: Evaluation) -> None:
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
    rows = [
        (each.policy, *(str(each.figures[measure]) for measure in measures), *((_score(each.ece),) if ece else ())) for each in standings
    ]
    print_table(columns, rows, empty="")
