"""``toolkit``: work with the graph of actions and tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import (
    fail,
    json_option,
    output_option,
    print_json,
    print_table,
    say,
    say_content,
    settings_of,
    with_admin,
    with_bus,
)

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.bus.broker.admin import Admin
    from toolbus.toolkit import ActionView, Toolkit

_file_option = click.option(
    "--file", type=click.Path(path_type=Path), help="A preset instead of the published graph: a file, or the name of a shipped one."
)
_MOST_ROWS = 500


@click.command("load")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Only check the preset; publish nothing.")
@click.option("--revisions", type=click.Path(path_type=Path), help="A folder of learned scores: publish with the current revision.")
@click.pass_context
def load_command(ctx: click.Context, file: Path, check: bool, revisions: Path | None) -> None:
    """Check the preset FILE (YAML or JSON) and publish it; every agent sees it at once.

    FILE may also be the name of a preset that comes with toolbus; `toolbus toolkit presets` lists them.

    An invalid preset is not published, and the error names file, line and key. The first to publish a
    preset owns its name (TOOLBUS_OWNER); `toolbus rm toolkit/NAME` removes it.

    \b
    Examples:
      toolbus toolkit load analysis.yaml
      toolbus toolkit load analysis.yaml --revisions revisions/
      toolbus toolkit load data-analysis
    """
    from toolbus.toolkit import load_preset, toolkit_of
    from toolbus.toolkit.presets import find_preset, graph_of, scores_of, with_scores
    from toolbus.toolkit.publishing import publish

    preset = load_preset(find_preset(file))
    if revisions is not None:
        from toolbus.toolkit.learning.revisions import Revisions, check_graph

        current = Revisions(revisions).current()
        if current is None:
            fail(f"{revisions} has no revision yet; `toolbus learning run` makes one")
        check_graph(current, scores_of(graph_of(preset)).scores, preset.name)
        preset = with_scores(preset, current.edges, current.id)
    graph = toolkit_of(preset, functions=check)
    counts = f"{len(preset.actions):,} actions, {len(preset.tools):,} tools, {len(preset.groups):,} groups, {len(graph.edges()):,} edges"
    if check:
        say(f"{file} is right: {counts}")
        return
    owner = settings_of(ctx).owner or "operator"

    async def main(admin: Admin) -> None:
        await publish(admin, preset, owner)

    with_admin(ctx, main)
    say(f"published toolkit/{preset.name}: {counts}")


@click.command("presets")
@output_option
def presets_command(output: str) -> None:
    """List the presets that come with toolbus, with the command that serves their tools.

    \b
    Example:
      toolbus toolkit presets
      toolbus toolkit load data-analysis
    """
    from toolbus.toolkit import load_preset
    from toolbus.toolkit.presets import shipped_presets

    presets = [load_preset(path) for path in shipped_presets().values()]
    rows = [(each.name, " → ".join(action.id for action in each.actions), each.description) for each in presets]
    if output == "json":
        print_json([dict(zip(("name", "actions", "description"), row, strict=True)) for row in rows])
        return
    for name, actions, description in rows:
        say(f"{name}: {actions}\n  {description}")


@click.command("show")
@_file_option
@click.option("--action", "actions", multiple=True, help="Only edges from or to this action (may be repeated).")
@output_option
@click.pass_context
def show_command(ctx: click.Context, file: Path | None, actions: tuple[str, ...], output: str) -> None:
    """List the graph's edges with their scores.

    \b
    Examples:
      toolbus toolkit show
      toolbus toolkit show --file analysis.yaml --action query
    """
    from toolbus.toolkit.items import edge_kind, kind_of

    graph = _graph(ctx, file)
    for action in actions:
        if not graph.has_vertex(action):
            fail(f"there is no action {action!r} in the graph; without --action all of it is listed")
    edges = [edge for edge in graph.edges() if not actions or not {*actions}.isdisjoint(edge)]
    rows = [(u, kind_of(graph.item(u)), v, kind_of(graph.item(v)), graph.get_score(u, v)) for u, v in edges]
    if output == "json":
        keys = ("from", "from_kind", "to", "to_kind", "score")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    shown = [(u, v, edge_kind(graph.item(u), graph.item(v)), f"{score:.2f}") for u, _, v, _, score in rows]
    print_table(("FROM", "TO", "EDGE", "SCORE"), shown[:_MOST_ROWS], empty="the graph is empty; `toolbus toolkit load FILE` publishes one")
    if len(rows) > _MOST_ROWS:
        say(f"… and {len(rows) - _MOST_ROWS:,} more; --action narrows it, --output json has all", err=True)


@click.command("recommend")
@click.argument("start", nargs=-1, required=True)
@_file_option
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Lowest score of an edge that is followed.")
@click.option("--hops", type=click.IntRange(0, 100), default=0, show_default=True, help="How many next actions are followed.")
@click.option("--prompt", is_flag=True, help="Print the text for a model.")
@output_option
@click.pass_context
def recommend_command(
    ctx: click.Context, start: tuple[str, ...], file: Path | None, threshold: float, hops: int, prompt: bool, output: str
) -> None:
    """Recommend actions and tools for START: ids or names of actions, or a sentence.

    \b
    Examples:
      toolbus toolkit recommend query --hops 1
      toolbus toolkit recommend "count the orders of March"
    """

    async def main(bus: ToolBus) -> ActionView:
        return _recommended(bus, start, file, threshold, hops)

    view = with_bus(ctx, main)
    nothing = f"nothing fits {' '.join(start)!r}"
    if prompt:
        say(view.prompt() if view.actions else nothing, err=not view.actions)
        return
    rows = rows_of(view)
    if output == "json":
        print_json([dict(zip(("kind", "id", "name", "score", "state"), row, strict=True)) for row in rows])
        return
    shown = [(*row[:3], "" if row[3] is None else f"{row[3]:.2f}", row[4]) for row in rows]
    print_table(("KIND", "ID", "NAME", "SCORE", ""), shown, empty=nothing)


@click.command("draw")
@click.argument("picture", type=click.Path(path_type=Path))
@_file_option
@click.option("--start", "starts", multiple=True, help="Only what is recommended from this action (may be repeated).")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.5, show_default=True, help="Lowest score that is followed from there.")
@click.option("--hops", type=click.IntRange(0, 100), default=1, show_default=True, help="How many next actions are followed from there.")
@click.option("--title", default="", help="Title of the picture.")
@click.pass_context
def draw_command(
    ctx: click.Context, picture: Path, file: Path | None, starts: tuple[str, ...], threshold: float, hops: int, title: str
) -> None:
    """Draw the graph to PICTURE: .svg, .png, or .html for a page to pan and filter in, which works offline.

    \b
    Examples:
      toolbus toolkit draw graph.html
      toolbus toolkit draw query.svg --start query --hops 2
    """
    from toolbus.toolkit import recommend_subgraph

    graph = _graph(ctx, file)
    if starts:
        graph = recommend_subgraph(graph, starts, threshold, hops)
    if not graph.vertices():
        fail("there is nothing to draw: " + ("no such action" if starts else "the graph is empty"))
    try:
        from toolbus.toolkit.draw import save
    except ImportError as error:
        fail(f"drawing needs {error.name}: pip install 'toolbus[draw]'")
    try:
        save(graph, picture, title)
    except OSError as error:
        fail(f"can't write {str(picture)!r}: {error.strerror}")
    say(f"drew {len(graph.vertices()):,} vertices to {picture}")


@click.command("export")
@_file_option
@click.option(
    "--format", "form", type=click.Choice(["scores", "graphml", "dot"]), default="scores", show_default=True, help="Format of the output."
)
@click.pass_context
def export_command(ctx: click.Context, file: Path | None, form: str) -> None:
    """Write the graph to standard output: scores for `learn`, GraphML, or dot for Graphviz.

    \b
    Example:
      toolbus toolkit export > scores.json
      toolbus learning learn --scores scores.json --log executions.jsonl
    """
    from toolbus.toolkit.export import dot, graphml
    from toolbus.toolkit.presets import scores_of

    graph = _graph(ctx, file)
    if form == "scores":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(scores_of(graph))) + b"\n")
    else:
        say_content(dot(graph) if form == "dot" else graphml(graph))


@click.command("schema")
@json_option
def schema_command() -> None:
    """Print the JSON Schema of presets, for editors.

    \b
    Example:
      toolbus toolkit schema > preset.schema.json
      # first line of a preset: `# yaml-language-server: $schema=preset.schema.json`
    """
    from toolbus.toolkit.presets import json_schema

    print_json(json_schema())


COMMANDS = (load_command, presets_command, show_command, recommend_command, draw_command, export_command, schema_command)


def _graph(ctx: click.Context, file: Path | None) -> Toolkit:
    """Return the graph of a file, or the published one."""
    from toolbus.toolkit.live import merged

    if file is not None:
        return _read(file)

    async def main(admin: Admin) -> dict[str, bytes]:
        return await admin.items("toolkit/")

    documents = {key.removeprefix("toolkit/"): document for key, document in with_admin(ctx, main).items()}
    _tell_left_out(documents)
    return merged(documents)


def _recommended(bus: ToolBus, start: tuple[str, ...], file: Path | None, threshold: float, hops: int) -> ActionView:
    from toolbus.toolkit.live import for_actions, published, starts_of

    if file is None:
        _tell_left_out(bus.tools.catalogue.presets)
    graph = published(bus.tools.catalogue) if file is None else _read(file)
    return for_actions(bus.tools, starts_of(graph, start), threshold=threshold, hops=hops, toolkit=graph, tell_missing=True)


def _tell_left_out(documents: Mapping[str, bytes]) -> None:
    from toolbus.toolkit.live import unreadable

    for name, why in unreadable(documents).items():
        say(f"toolkit/{visible(name)} is left out: {one_line(visible(why), 300)}; `toolbus toolkit load` replaces it", err=True)


def _read(file: Path) -> Toolkit:
    from toolbus.toolkit import load_preset, toolkit_of
    from toolbus.toolkit.presets import find_preset

    return toolkit_of(load_preset(find_preset(file)))


def rows_of(view: ActionView) -> list[tuple[str, str, str, float | None, str]]:
    """Return kind, id, name, score and state of everything that is recommended."""
    rows = [("action", each.id, each.name, view.score(each.id), "start" if each.id in view.starts else "") for each in view.actions]
    for name in view:
        found = view.vertices(name)
        if any(view.toolkit.get_tool(vertex) for vertex in found):
            rows += [("tool", vertex, name, view.score(vertex), "") for vertex in found if vertex not in view.missing]
        else:
            # A tool of a group has no vertex of its own.
            scores = [score for group in found if (score := view.score(group)) is not None]
            rows.append(("tool", name, name, max(scores, default=None), "" if view[name].available else "not there now"))
    rows += [("tool", tool.id, tool.name, view.score(tool.id), "not there now") for tool in view.missing.values()]
    return rows + [("function", tool.id, tool.name, view.score(tool.id), "") for tool in view.local.values()]


class ToolkitGroup(click.Group):
    """A group of commands that need the packages of an extra."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; say what to install when a package is missing."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            fail(f"the toolkit needs {error.name}: pip install 'toolbus[toolkit]'")


@click.group("toolkit", cls=ToolkitGroup, no_args_is_help=True)
def toolkit_command() -> None:
    """Manage the graph of actions and tools. It decides which tools a model is shown, by scores.

    `toolbus learning` learns the scores from use.

    \b
    Example:
      toolbus toolkit load analysis.yaml
      toolbus toolkit recommend "count the orders of March"
    """


for command in COMMANDS:
    toolkit_command.add_command(command)
