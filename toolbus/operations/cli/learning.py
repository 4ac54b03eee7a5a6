"""``toolkit learning``: learn the scores of the toolkit's graph from recorded executions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click
import msgspec

from toolbus.bus.values.results import ToolbusError
from toolbus.operations.cli.command import Number, Output, Seconds, Share, argument, command, group, option
from toolbus.operations.cli.common import settings_of, with_admin
from toolbus.operations.cli.failing import fail, fail_if, wrong_if
from toolbus.operations.cli.output import Columns, complain, emit, print_content, print_line, show, titled

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.toolkit.learning.evaluate import Evaluation, Standing
    from toolbus.toolkit.learning.evidence import Episode, Parameters, ScoreFile
    from toolbus.toolkit.learning.learn import Change, Learned, Verdict
    from toolbus.toolkit.learning.pipeline import Outcome
    from toolbus.toolkit.learning.revisions import Revision, Revisions
    from toolbus.toolkit.presets import Preset

_MOST_PROBLEMS = 20

Static = Annotated[Path | None, option("Static scores: a preset (.yaml), or JSON.", "--scores")]
Log = Annotated[Path | None, option("Executions: .jsonl, .db or .sqlite.", "--log")]
Skip = Annotated[bool, option("Skip records that can't be read, and list them.")]
RevisionsFolder = Annotated[Path, option("Folder of revisions.", "--revisions", default=Path("revisions"))]
HeldOut = Annotated[float, option("Share of the log (its end) to replay.", type=Number(0.01, 0.99), default=0.3)]
Threshold = Annotated[Share, option("Score from which a tool is shown.", default=0.5)]
Unpublished = Annotated[bool, option("Change only the folder of revisions, and ask no server.")]


class Learning(NamedTuple):
    """The parameters of learning that were given."""

    min_evidence: Annotated[float | None, option("Effective calls before a score moves (8).")]
    half_life: Annotated[float | None, option("Days after which an execution counts half (30).")]
    prior_strength: Annotated[float | None, option("Calls that a static score is worth (4).")]
    clip: Annotated[float | None, option("Greatest weight of an execution that was improbable to be shown (10).")]
    credibility: Annotated[float | None, option("Probability that a score is wrong before it moves (0.9).")]
    guard: Annotated[float | None, option("Probability that a new order is better before it is accepted (0.99).")]

    def checked(self) -> Parameters:
        """Return all parameters.

        Raises:
            ConfigurationError: one is out of bounds.
        """
        from toolbus.toolkit.learning.evidence import Parameters

        return Parameters(**{name: value for name, value in self._asdict().items() if value is not None}).checked()


@group("learning", extra="toolkit")
def learning_command() -> None:
    """Learn the scores of the toolkit's graph from what agents recorded, publish them, and roll them back.

    \b
    Example:
      toolbus agent "count the orders of March" --walk --record executions.jsonl
      toolbus toolkit learning run analysis.yaml --log executions.jsonl
      toolbus toolkit learning rollback
    """


class Round(NamedTuple):
    """The options of what is learned from, and of what is done with it."""

    file: Annotated[Path, argument()]
    logs: Annotated[tuple[Path, ...], option("Executions (may be repeated).", "--log", required=True)]
    folder: RevisionsFolder
    report: Annotated[Path | None, option("Write the report to this file (.md), and its picture beside it (.svg).")]
    dry_run: Annotated[bool, option("Report what would change, but keep and publish nothing.")]
    resume: Annotated[bool, option("Learn on after a rollback.")]
    no_publish: Unpublished
    held_out: HeldOut
    threshold: Threshold
    learning: Learning
    skip_corrupt: Skip
    output: Output


@command("run", into=learning_command)
def learning_run(
    options: Round,
    every: Annotated[float | None, option("Run again and again, with this many seconds in between, until stopped.", type=Seconds())],
) -> None:
    """Learn scores for the preset FILE from what agents recorded, evaluate them, and publish them; running agents see them at once.

    FILE has the scores that people gave, from which each run begins; it is not changed. Other scores are taken when the log supports
    them and the evaluation on held-out episodes does not speak against them. Agents record with `toolbus agent --record`, or
    with a `Recorder`. Undo it with `toolbus toolkit learning rollback`.

    \b
    Examples:
      toolbus toolkit learning run support.yaml --log executions.jsonl --dry-run
      toolbus toolkit learning run support.yaml --log executions.jsonl --report report.md --every 3600
    """
    report = options.report
    if report is not None and (report.suffix != ".md" or not report.parent.is_dir()):
        raise click.UsageError(f"--report takes the name of a file that ends in .md, in a folder that is there; this is {str(report)!r}")
    if every is None:
        _round(options)
        return
    while True:
        try:
            _round(options)
        except (ToolbusError, OSError) as error:
            complain(f"toolbus: {error}")
        except click.ClickException as error:
            error.show()
        time.sleep(every)


@command("rollback", into=learning_command)
def learning_rollback(revision: str | None, folder: RevisionsFolder, no_publish: Unpublished) -> None:
    """Make an earlier revision current again, by default the parent of the current one, and publish it. Nothing is deleted.

    It is published wherever another revision of the folder is. Then `toolbus toolkit learning run` changes nothing until it is told to with
    --resume.

    \b
    Example:
      toolbus toolkit learning rollback
      toolbus toolkit learning rollback 1
    """
    from toolbus.toolkit.learning.revisions import Revisions, difference

    revisions = Revisions(folder)
    fail_if(revisions.current() is None and not revision, f"{folder} has no current revision to roll back from")

    def roll_back() -> None:
        left, back = revisions.roll_back(revision or "")
        if left is None:
            print_line(f"revision {back.id} is current")
            return
        count = len(difference(left.scores, back.scores))
        print_line(
            f"revision {back.id} is current (before: {left.id}); {count} {'score is another' if count == 1 else 'scores are others'}"
        )

    if no_publish:
        with revisions.alone():
            roll_back()
        return

    async def main(admin: Admin) -> list[str]:
        from toolbus.toolkit.live import publish_current

        with revisions.alone():
            roll_back()
            return await publish_current(admin, revisions, settings_of().owner or "operator")

    names = with_admin(main)
    for name in names:
        print_line(f"published toolkit/{name}")
    if not names:
        print_line(f"no published preset has scores of {folder}, so nothing was published")


# -- one round ---------------------------------------------------------------------------------------


def _round(options: Round) -> None:
    from toolbus.toolkit import load_preset
    from toolbus.toolkit.learning.pipeline import text
    from toolbus.toolkit.learning.revisions import Revisions
    from toolbus.toolkit.presets import find_preset

    preset = load_preset(find_preset(options.file))
    revisions = Revisions(options.folder)
    if options.no_publish:
        outcome, published = _learned(preset, revisions, {}, options), None
    else:
        outcome, published = with_admin(lambda admin: _learned_and_published(admin, preset, revisions, options))
    title = f"Learning: {preset.name}"
    told = text(outcome, title)
    document = {
        **{name: getattr(outcome, name) for name in ("decision", "revision", "added", "executions", "episodes", "notes", "changes")},
        "verdicts": outcome.learned.verdicts,
        "comparisons": None if outcome.evaluation is None else outcome.evaluation.comparisons,
        "published": published,
    }
    if emit(options.output, document):
        print_content(told)
        if published is not None:
            print_line(f"toolkit/{preset.name} {'is published' if published else 'is published already'} with revision {outcome.revision}")
    if options.report is not None:
        _write(options.report, outcome, title, told)


async def _learned_and_published(admin: Admin, preset: Preset, revisions: Revisions, options: Round) -> tuple[Outcome, bool | None]:
    """Return the outcome, and whether the published preset was replaced; None when there is nothing to publish."""
    from toolbus.toolkit import toolkit_of
    from toolbus.toolkit.live import is_published, live_names, publish
    from toolbus.toolkit.presets import with_scores

    toolkit_of(preset, functions=False)
    names = await live_names(admin, preset)
    if options.dry_run:
        return _learned(preset, revisions, names, options), None
    with revisions.alone():
        outcome = _learned(preset, revisions, names, options)
        current = revisions.current()
        if current is None:
            return outcome, None
        scored = with_scores(preset, current.edges, current.id)
        if await is_published(admin, scored):
            return outcome, False
        await publish(admin, scored, settings_of().owner or "operator")
        return outcome, True


def _learned(preset: Preset, revisions: Revisions, names: dict[str, list[str]], options: Round) -> Outcome:
    from toolbus.toolkit.learning.evaluate import Options
    from toolbus.toolkit.learning.pipeline import run
    from toolbus.toolkit.learning.stores import open_store
    from toolbus.toolkit.live import all_names
    from toolbus.toolkit.presets import graph_of, scores_of

    known = {vertex: sorted(found) for vertex, found in all_names(preset, names).items()}
    with _skipping(options.skip_corrupt) as on_bad, contextlib.ExitStack() as stack:
        return run(
            msgspec.structs.replace(scores_of(graph_of(preset)), names=known),
            [stack.enter_context(open_store(log, must_exist=True)) for log in options.logs],
            revisions,
            graph=preset.name,
            parameters=options.learning.checked(),
            options=Options(held_out=options.held_out, threshold=options.threshold),
            on_bad=on_bad,
            dry=options.dry_run,
            resume=options.resume,
        )


def _write(report: Path, outcome: Outcome, title: str, content: str) -> None:
    """Write the report, and its picture where matplotlib is installed."""
    from toolbus.toolkit.learning.stores import write_file

    picture = report.with_suffix(".svg")
    try:
        from toolbus.toolkit.learning.picture import draw
    except ImportError as error:
        print_line(f"the picture is left out, since it needs {error.name}: pip install 'toolbus[draw]'", err=True)
        write_file(report, content.encode())
        return
    write_file(picture, draw(outcome, title))
    write_file(report, f"{content}\n![scores before and now, and the evaluation]({picture.name})\n".encode())


# -- learn, evaluate, compare ------------------------------------------------------------------------


@command("learn", into=learning_command)
def learning_learn(
    scores_file: Static,
    log_file: Log,
    folder: RevisionsFolder,
    learning: Learning,
    skip_corrupt: Skip,
    dry_run: Annotated[bool, option("Print what would change, but write nothing.")],
    output: Output,
) -> None:
    """Estimate scores from recorded executions, explain each change, and make the result the current revision.

    The same log, scores and parameters give the same result. A log without information changes nothing. Undo it with
    `toolbus toolkit learning rollback`.

    \b
    Example:
      toolbus toolkit learning learn --scores scores.json --log executions.jsonl --dry-run
      scores.json: {"edges": [{"kind": "call", "source": "count orders", "target": "run_sql", "score": 0.7},
                              {"kind": "next", "source": "count orders", "target": "report", "score": 0.9}]}
    """
    from toolbus.toolkit.learning.learn import learn
    from toolbus.toolkit.learning.revisions import Revisions, changed, digest

    parameters = learning.checked()
    file, logged = _inputs(scores_file, log_file, skip_corrupt)
    static = file.scores
    learned = learn(static, logged, parameters)
    revisions = Revisions(folder)
    current = revisions.of(static)
    changes = changed(static if current is None else current.scores, static, learned)
    made = None if dry_run else revisions.add(static, learned, digest(logged), parameters)
    if not emit(output, {"revision": None if made is None else made.id, **_plain(learned), "changes": changes}):
        return
    _print_verdicts(learned.verdicts, changes)
    count = f"{len(changes)} of {len(static)} scores"
    if made is not None:
        print_line(f"{count} changed; revision {made.id} is current (before: {made.parent})")
    else:
        print_line(f"{count} would change" if dry_run else "nothing changed, so there is no new revision")


@command("evaluate", into=learning_command)
def learning_evaluate(
    scores_file: Static,
    log_file: Log,
    generated: Annotated[bool, option("Use a generated log with known success rates, instead of --scores and --log.")],
    noise: Annotated[bool, option("Use a generated log of pure noise.")],
    seed: Annotated[int, option("Seed of the generated log and of the bootstrap.", default=0, show_default=True)],
    episodes: Annotated[
        int, option("Episodes of the generated log.", type=click.IntRange(10, 100_000), default=600, needs=("generated", "noise"))
    ],
    wrong: Annotated[Share, option("Share of generated static scores that are wrong.", default=0.6, needs=("generated", "noise"))],
    held_out: HeldOut,
    threshold: Threshold,
    learning: Learning,
    skip_corrupt: Skip,
    output: Output,
) -> None:
    """Learn from the first episodes of a log, replay the last, and compare ways to choose tools.

    hit@k is how often the tool that succeeded is among the first k, mrr the mean reciprocal rank, reach how often it is shown
    at all; brier and ece measure the distance between scores and success rates. Intervals cover 95 %, over episodes.

    \b
    Example:
      toolbus toolkit learning evaluate --generated --seed 1
      toolbus toolkit learning evaluate --scores scores.json --log executions.jsonl --output json
    """
    from toolbus.toolkit.learning.evaluate import Options, evaluate
    from toolbus.toolkit.learning.evidence import episodes as episodes_of
    from toolbus.toolkit.learning.generated import World, generate

    parameters = learning.checked()
    if generated or noise:
        wrong_if(scores_file or log_file, "--generated makes its own scores and log; leave out --scores and --log")
        made = generate(World(seed=seed, episodes=episodes, wrong=wrong, noise=noise))
        static, texts, logged = made.static, made.texts, episodes_of(made.executions)
    else:
        file, logged = _inputs(scores_file, log_file, skip_corrupt)
        static, texts = file.scores, file.texts
    found = evaluate(static, texts, logged, parameters, Options(held_out=held_out, threshold=threshold, seed=seed))
    if emit(output, {**msgspec.to_builtins(msgspec.structs.asdict(found) | {"learned": None}), "learned": _plain(found.learned)}):
        _print_evaluation(found)


@command("revisions", into=learning_command)
def learning_revisions(revision: str | None, folder: RevisionsFolder, output: Output) -> None:
    """List the revisions of the scores, or show one of them with its origin, its changes and their reasons.

    \b
    Example:
      toolbus toolkit learning revisions
      toolbus toolkit learning revisions 2
    """
    from toolbus.toolkit.learning.revisions import Revisions

    revisions = Revisions(folder)
    current = revisions.current()
    if revision is not None:
        _print_revision(revisions.get(revision), output)
        return
    found = [revisions.get(each) for each in revisions.ids()]
    now = "" if current is None else current.id
    columns: Columns = {
        "": lambda each: "*" if each.id == now else "",
        "ID": "id",
        "PARENT": lambda each: each.parent or "-",
        "CREATED (UTC)": "created",
        "CHANGES": lambda each: len(each.changes),
        "NOTE": "note",
    }
    said = ("id", "parent", "created_at", "note", "log")
    document = [{**{name: getattr(each, name) for name in said}, "changes": len(each.changes), "current": each.id == now} for each in found]
    show(output, found, columns, empty="no revisions yet; `toolbus toolkit learning run` makes one", document=document)


@command("diff", into=learning_command)
def learning_diff(old: str | None, new: str | None, folder: RevisionsFolder, output: Output) -> None:
    """Show the scores that differ between two revisions: by default the current one and its parent.

    \b
    Example:
      toolbus toolkit learning diff
      toolbus toolkit learning diff 1 3
    """
    from toolbus.toolkit.learning.revisions import Revisions, difference

    revisions = Revisions(folder)
    after = revisions.current() if new is None else revisions.get(new)
    if after is None:
        fail(f"{folder} has no revisions yet; `toolbus toolkit learning run` makes one")
    fail_if(old is None and not after.parent, f"{after.id} is the first revision; name the one to compare it with")
    before = revisions.get(old or after.parent)
    found = difference(before.scores, after.scores)
    document = {"old": before.id, "new": after.id, "differences": found}
    show(output, found, _changed(before.id, after.id), empty=f"{before.id} and {after.id} have the same scores", document=document)


@command("convert", into=learning_command)
def learning_convert(source: Path, target: Path, skip_corrupt: Skip) -> None:
    """Add the executions of one log to another, of either format; existing ones are not added again.

    \b
    Example:
      toolbus toolkit learning convert executions.jsonl executions.db
    """
    from toolbus.toolkit.learning.stores import copy, open_store

    with open_store(source, must_exist=True) as before, open_store(target) as after, _skipping(skip_corrupt) as on_bad:
        added = copy(before, after, on_bad)
    print_line(f"added {added} {'execution' if added == 1 else 'executions'} to {target}")


# -- what they print ---------------------------------------------------------------------------------


def _plain(learned: Learned) -> dict[str, Any]:
    """Return what was learned as values for JSON."""
    return {"verdicts": learned.verdicts, "changes": learned.changes, "edges": [*learned.scores]}


def _score_text(value: float | None) -> str:
    """Return a score for a table."""
    return "-" if value is None else f"{value:.3f}"


def _changed(old: str, new: str) -> Columns:
    """Return the columns of an edge whose score has changed."""
    edge: Columns = {"EDGE": "kind", "FROM": "source", "TO": "target"}
    return {**edge, old: lambda each: _score_text(each.old), new: lambda each: _score_text(each.new)}


def _print_verdicts(verdicts: Sequence[Verdict], changes: Sequence[Change] = ()) -> None:
    """Print why scores may change, and those that have, with their reasons."""
    for verdict in verdicts:
        print_line(f"{verdict.kind}: {verdict.why}")
    if changes:
        show("text", changes, {**_changed("OLD", "NEW"), "WHY": "why"}, empty="")


def _print_revision(revision: Revision, output: str) -> None:
    """Print a revision with its origin and its changes."""
    if not emit(output, revision, f"{revision.id}  {revision.created} UTC  {revision.note}"):
        return
    if revision.log is not None:
        print_line(f"log: sha256 {revision.log.sha256}")
    if revision.parameters is not None:
        print_line("with: " + ", ".join(f"{name} {value:g}" for name, value in msgspec.structs.asdict(revision.parameters).items()))
    _print_verdicts(revision.verdicts, revision.changes)


def _print_evaluation(found: Evaluation) -> None:
    """Print the tables of an evaluation."""
    print_line(
        f"learned from {found.learned_from} episodes; replayed {found.held_out}, with {found.calls} calls that succeeded "
        f"and {found.transitions} changes of action"
    )
    _print_verdicts(found.learned.verdicts)
    print_line()
    ece: Columns = {"ECE": lambda each: _score_text(each.ece)}
    _print_standings(found.tools, ("hit@1", "hit@3", "hit@5", "mrr", "reach", "tools shown", "brier"), ece)
    print_line()
    _print_standings(found.actions, ("next hit@1", "next hit@3", "next mrr"), {})
    print_line()
    compared: Columns = {"COMPARED": lambda each: f"{each.better} - {each.than}"}
    show("text", found.comparisons, {**compared, **titled("measure", "difference", "relative")}, empty="")


def _print_standings(standings: Sequence[Standing], measures: Sequence[str], more: Columns) -> None:
    measured: Columns = {name.upper(): partial(lambda name, each: each.figures[name], name) for name in measures}
    show("text", standings, {"POLICY": "policy", **measured, **more}, empty="")


# -- what they read ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _skipping(skip: bool) -> Iterator[Callable[[Exception], None] | None]:
    """Yield what is told of each record that is skipped, prints the first of them, and at the end how many more there are.

    It is None when none is to be skipped.
    """
    count = 0

    def left_out(error: Exception) -> None:
        nonlocal count
        count += 1
        if count <= _MOST_PROBLEMS:
            print_line(f"left out: {error}", err=True)

    yield left_out if skip else None
    if count > _MOST_PROBLEMS:
        print_line(f"left out: {count - _MOST_PROBLEMS} more", err=True)


def _inputs(scores_file: Path | None, log_file: Path | None, skip_corrupt: bool) -> tuple[ScoreFile, list[Episode]]:
    """Return the static scores, and the episodes of a log as far as they are of the graph's edges.

    Raises:
        ConfigurationError: a file can't be read, or none of the log's executions is of an edge.
    """
    from toolbus.toolkit import load_preset
    from toolbus.toolkit.learning.evidence import episodes, load_scores, matched
    from toolbus.toolkit.learning.stores import open_store
    from toolbus.toolkit.presets import graph_of, scores_of

    if scores_file is None or log_file is None:
        raise click.UsageError("give --scores and --log")
    is_preset = scores_file.suffix in {".yaml", ".yml"}
    static = scores_of(graph_of(load_preset(scores_file))) if is_preset else load_scores(scores_file)
    with _skipping(skip_corrupt) as on_bad, open_store(log_file, must_exist=True) as store:
        found = matched(store.read(on_bad), static.scores, static.names)
    if found.left_out:
        print_line(found.told(), err=True)
    return static, episodes(found.executions)
