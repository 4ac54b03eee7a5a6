"""``learning run`` and ``rollback``: the commands that change what agents see."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.values.results import ToolbusError
from toolbus.operations.cli.common import Seconds, fail, output_option, print_json, say, say_content, settings_of, with_admin
from toolbus.operations.cli.learning_inputs import Problems, folder_option, parameter_options, parameters_of, skip_option

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.toolkit.learning.pipeline import Outcome
    from toolbus.toolkit.learning.revisions import Revision, Revisions
    from toolbus.toolkit.starting import Preset

_publish_option = click.option("--no-publish", is_flag=True, help="Change only the folder of revisions, and ask no server.")


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--log", "logs", type=click.Path(path_type=Path), multiple=True, required=True, help="Executions (may be repeated).")
@folder_option
@click.option("--report", type=click.Path(path_type=Path), help="Write the report to this file (.md), and its picture beside it (.svg).")
@click.option("--every", type=Seconds(), help="Run again and again, with this many seconds in between, until stopped.")
@click.option("--dry-run", is_flag=True, help="Report what would change, but keep and publish nothing.")
@click.option("--resume", is_flag=True, help="Learn on after a rollback.")
@_publish_option
@click.option("--held-out", type=click.FloatRange(0.01, 0.99), default=0.3, show_default=True, help="Share of the log (its end) to replay.")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Score from which a tool is shown.")
@parameter_options
@skip_option
@output_option
@click.pass_context
def run_command(ctx: click.Context, /, every: float | None, **options: Any) -> None:
    """Learn scores for the preset FILE from what agents recorded, evaluate them, and publish them; running agents see them at once.

    FILE has the scores that people gave, from which each run begins; it is not changed. Other scores are taken when the log supports
    them and the evaluation on held-out episodes does not speak against them. Agents record with `toolbus agent --record`, or
    with a `Recorder`. Undo it with `toolbus learning rollback`.

    \b
    Examples:
      toolbus learning run support.yaml --log executions.jsonl --dry-run
      toolbus learning run support.yaml --log executions.jsonl --report report.md --every 3600
    """
    report = options["report"]
    if report is not None and (report.suffix != ".md" or not report.parent.is_dir()):
        raise click.UsageError(f"--report takes the name of a file that ends in .md, in a folder that is there; this is {str(report)!r}")
    if every is None:
        _round(ctx, **options)
        return
    while True:
        try:
            _round(ctx, **options)
        except (ToolbusError, OSError) as error:
            say(f"toolbus: {error}", fg="red", err=True)
        except click.ClickException as error:
            error.show()
        time.sleep(every)


@click.command("rollback")
@click.argument("revision", required=False)
@folder_option
@_publish_option
@click.pass_context
def rollback_command(ctx: click.Context, revision: str | None, folder: Path, no_publish: bool) -> None:
    """Make an earlier revision current again, by default the parent of the current one, and publish it. Nothing is deleted.

    It is published wherever another revision of the folder is. Then `toolbus learning run` changes nothing until it is told to with
    --resume.

    \b
    Example:
      toolbus learning rollback
      toolbus learning rollback 1
    """
    from toolbus.toolkit.learning.revisions import Revisions

    revisions = Revisions(folder)
    if revisions.current() is None and not revision:
        fail(f"{folder} has no current revision to roll back from")
    if no_publish:
        with revisions.alone():
            _tell(*revisions.roll_back(revision or ""))
        return
    owner = settings_of(ctx).owner or "operator"

    async def main(admin: Admin) -> list[str]:
        from toolbus.toolkit.publishing import publish_current

        with revisions.alone():
            _tell(*revisions.roll_back(revision or ""))
            return await publish_current(admin, revisions, owner)

    names = with_admin(ctx, main)
    for name in names:
        say(f"published toolkit/{name}")
    if not names:
        say(f"no published preset has scores of {folder}, so nothing was published")


def _tell(left: Revision | None, back: Revision) -> None:
    from toolbus.toolkit.learning.revisions import difference

    if left is None:
        say(f"revision {back.id} is current")
        return
    count = len(difference(left.scores, back.scores))
    say(f"revision {back.id} is current (before: {left.id}); {count} {'score is another' if count == 1 else 'scores are others'}")


# -- one round ---------------------------------------------------------------------------------------


def _round(ctx: click.Context, *, no_publish: bool, output: str, report: Path | None, file: Path, dry_run: bool, **options: Any) -> None:
    from toolbus.toolkit import load_preset
    from toolbus.toolkit.learning.revisions import Revisions
    from toolbus.toolkit.presets import find_preset

    preset = load_preset(find_preset(file))
    revisions = Revisions(options["folder"])
    if no_publish:
        outcome, published = _learned(preset, revisions, {}, dry_run, options), None
    else:
        outcome, published = _learned_and_published(ctx, preset, revisions, dry_run, options)
    title = f"Learning: {preset.name}"
    if output == "json":
        print_json({**_plain(outcome), "published": published})
    else:
        from toolbus.toolkit.learning.pipeline import text

        say_content(text(outcome, title))
        if published is not None:
            say(f"toolkit/{preset.name} {'is published' if published else 'is published already'} with revision {outcome.revision}")
    if report is not None:
        _write(report, outcome, title)


def _learned_and_published(
    ctx: click.Context, preset: Preset, revisions: Revisions, dry_run: bool, options: dict[str, Any]
) -> tuple[Outcome, bool | None]:
    """Return the outcome, and whether the published preset was replaced; None when there is nothing to publish."""
    from toolbus.toolkit import toolkit_of
    from toolbus.toolkit.presets import with_scores
    from toolbus.toolkit.publishing import is_published, live_names, publish

    toolkit_of(preset, functions=False)
    owner = settings_of(ctx).owner or "operator"

    async def main(admin: Admin) -> tuple[Outcome, bool | None]:
        names = await live_names(admin, preset)
        if dry_run:
            return _learned(preset, revisions, names, dry_run, options), None
        with revisions.alone():
            outcome = _learned(preset, revisions, names, dry_run, options)
            current = revisions.current()
            if current is None:
                return outcome, None
            scored = with_scores(preset, current.edges, current.id)
            if await is_published(admin, scored):
                return outcome, False
            await publish(admin, scored, owner)
            return outcome, True

    return with_admin(ctx, main)


def _learned(preset: Preset, revisions: Revisions, names: dict[str, list[str]], dry_run: bool, options: dict[str, Any]) -> Outcome:
    from contextlib import ExitStack

    from toolbus.toolkit.learning.evaluate import Options
    from toolbus.toolkit.learning.pipeline import run
    from toolbus.toolkit.learning.stores import open_store
    from toolbus.toolkit.presets import graph_of, scores_of
    from toolbus.toolkit.publishing import all_names

    given = {name: options[name] for name in options if name not in _OWN}
    known = {vertex: sorted(found) for vertex, found in all_names(preset, names).items()}
    problems = Problems(options["skip_corrupt"])
    with ExitStack() as stack:
        outcome = run(
            msgspec.structs.replace(scores_of(graph_of(preset)), names=known),
            [stack.enter_context(open_store(log, must_exist=True)) for log in options["logs"]],
            revisions,
            graph=preset.name,
            parameters=parameters_of(given),
            options=Options(held_out=options["held_out"], threshold=options["threshold"]),
            on_bad=problems.callback,
            dry=dry_run,
            resume=options["resume"],
        )
    problems.report()
    return outcome


_OWN = {"logs", "folder", "resume", "held_out", "threshold", "skip_corrupt"}


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as values for JSON."""
    evaluation = outcome.evaluation
    return {
        "decision": outcome.decision,
        "revision": outcome.revision,
        "added": outcome.added,
        "executions": outcome.executions,
        "episodes": outcome.episodes,
        "notes": outcome.notes,
        "verdicts": msgspec.to_builtins(outcome.learned.verdicts),
        "changes": msgspec.to_builtins(outcome.changes),
        "comparisons": None if evaluation is None else msgspec.to_builtins(evaluation.comparisons),
    }


def _write(report: Path, outcome: Outcome, title: str) -> None:
    """Write the report, and its picture where matplotlib is installed."""
    from toolbus.toolkit.learning.files import replace
    from toolbus.toolkit.learning.pipeline import text

    picture = report.with_suffix(".svg")
    content = text(outcome, title)
    try:
        from toolbus.toolkit.learning.picture import draw
    except ImportError as error:
        say(f"the picture is left out, since it needs {error.name}: pip install 'toolbus[draw]'", err=True)
        replace(report, content.encode())
        return
    replace(picture, draw(outcome, title))
    replace(report, f"{content}\n![scores before and now, and the evaluation]({picture.name})\n".encode())
