"""``toolkit``: work with the graph of actions and tools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.command import JSON, Hops, Output, Share, argument, command, group, option
from toolbus.operations.cli.common import settings_of, with_admin
from toolbus.operations.cli.failing import fail, fail_if, needing
from toolbus.operations.cli.learning import learning_command
from toolbus.operations.cli.output import Columns, emit, print_content, print_json, print_line, show, titled

if TYPE_CHECKING:
    from toolbus import ToolBus
    from toolbus.toolkit import ActionView, Toolkit

File = Annotated[Path | None, option("A preset instead of the published graph: a file, or the name of a shipped one.")]
_MOST_ROWS = 500


@group("toolkit", extra="toolkit")
def toolkit_command() -> None:
    """Manage the graph of actions and tools. It decides which tools a model is shown, by scores.

    `toolbus toolkit learning` learns the scores from use.

    \b
    Example:
      toolbus toolkit load analysis.yaml
      toolbus toolkit recommend "count the orders of March"
    """


toolkit_command.add_command(learning_command)


@command("load", into=toolkit_command)
def load_command(
    file: Path,
    check: Annotated[bool, option("Only check the preset; publish nothing.")],
    revisions: Annotated[Path | None, option("A folder of learned scores: publish with the current revision.")],
) -> None:
    """Check the preset FILE (YAML or JSON) and publish it; every agent sees it at once.

    FILE may also be the name of a preset that comes with toolbus; `toolbus toolkit presets` lists them.

    An invalid preset is not published, and the error names file, line and key. The first to publish a
    preset owns its name (TOOLBUS_OWNER); `toolbus operate items rm toolkit/NAME` removes it.

    \b
    Examples:
      toolbus toolkit load analysis.yaml
      toolbus toolkit load analysis.yaml --revisions revisions/
      toolbus toolkit load data-analysis
    """
    from toolbus.toolkit import load_preset, toolkit_of
    from toolbus.toolkit.live import publish
    from toolbus.toolkit.presets import find_preset, graph_of, scores_of, with_scores

    preset = load_preset(find_preset(file))
    if revisions is not None:
        from toolbus.toolkit.learning.revisions import Revisions, check_graph

        current = Revisions(revisions).current()
        if current is None:
            fail(f"{revisions} has no revision yet; `toolbus toolkit learning run` makes one")
        check_graph(current, scores_of(graph_of(preset)).scores, preset.name)
        preset = with_scores(preset, current.edges, current.id)
    graph = toolkit_of(preset, functions=check)
    counts = f"{len(preset.actions):,} actions, {len(preset.tools):,} tools, {len(preset.groups):,} groups, {len(graph.edges()):,} edges"
    if check:
        print_line(f"{file} is right: {counts}")
        return
    owner = settings_of().owner or "operator"
    with_admin(lambda admin: publish(admin, preset, owner))
    print_line(f"published toolkit/{preset.name}: {counts}")


@command("presets", into=toolkit_command)
def presets_command(output: Output) -> None:
    """List the presets that come with toolbus, with the command that serves their tools.

    \b
    Example:
      toolbus toolkit presets
      toolbus toolkit load data-analysis
    """
    from toolbus.toolkit import load_preset
    from toolbus.toolkit.presets import shipped_presets

    found = [
        {"name": each.name, "actions": " → ".join(action.id for action in each.actions), "description": each.description}
        for each in map(load_preset, shipped_presets().values())
    ]
    emit(output, found, *("{name}: {actions}\n  {description}".format(**each) for each in found))


@command("show", into=toolkit_command)
def show_command(
    file: File,
    actions: Annotated[tuple[str, ...], option("Only edges from or to this action (may be repeated).", "--action")],
    output: Output,
) -> None:
    """List the graph's edges with their scores.

    \b
    Examples:
      toolbus toolkit show
      toolbus toolkit show --file analysis.yaml --action query
    """
    from toolbus.toolkit.graph import edge_kind, kind_of

    graph = _graph(file)
    for action in actions:
        fail_if(not graph.has_vertex(action), f"there is no action {action!r} in the graph; without --action all of it is listed")
    edges = [edge for edge in graph.edges() if not actions or not {*actions}.isdisjoint(edge)]
    found = [
        {"from": u, "from_kind": kind_of(graph.item(u)), "to": v, "to_kind": kind_of(graph.item(v)), "score": graph.get_score(u, v)}
        for u, v in edges
    ]
    columns: Columns = {
        **titled("from", "to"),
        "EDGE": lambda each: edge_kind(graph.item(each["from"]), graph.item(each["to"])),
        "SCORE": lambda each: f"{each['score']:.2f}",
    }
    nothing = "the graph is empty; `toolbus toolkit load FILE` publishes one"
    if show(output, found[:_MOST_ROWS], columns, empty=nothing, document=found) and len(found) > _MOST_ROWS:
        print_line(f"… and {len(found) - _MOST_ROWS:,} more; --action narrows it, --output json has all", err=True)


@command("recommend", into=toolkit_command)
async def recommend_command(
    bus: ToolBus,
    start: Annotated[tuple[str, ...], argument(required=True)],
    file: File,
    threshold: Annotated[Share, option("Lowest score of an edge that is followed.", default=0.5)],
    hops: Annotated[Hops, option("How many next actions are followed.", default=0, show_default=True)],
    prompt: Annotated[bool, option("Print the text for a model.")],
    output: Output,
) -> None:
    """Recommend actions and tools for START: ids or names of actions, or a sentence.

    \b
    Examples:
      toolbus toolkit recommend query --hops 1
      toolbus toolkit recommend "count the orders of March"
    """
    from toolbus.toolkit.live import for_actions, published, starts_of

    if file is None:
        _report_omitted(bus.tools.catalogue.presets)
    graph = published(bus.tools.catalogue) if file is None else _read(file)
    view = for_actions(bus.tools, starts_of(graph, start), threshold=threshold, hops=hops, toolkit=graph, tell_missing=True)
    nothing = f"nothing fits {' '.join(start)!r}"
    if prompt:
        print_line(view.prompt() if view.actions else nothing, err=not view.actions)
        return
    columns: Columns = {
        **titled("kind", "id", "name"),
        "SCORE": lambda each: "" if each["score"] is None else f"{each['score']:.2f}",
        "": "state",
    }
    show(output, [dict(zip(("kind", "id", "name", "score", "state"), row, strict=True)) for row in rows_of(view)], columns, empty=nothing)


@command("draw", into=toolkit_command)
def draw_command(
    picture: Path,
    file: File,
    starts: Annotated[tuple[str, ...], option("Only what is recommended from this action (may be repeated).", "--start")],
    threshold: Annotated[Share, option("Lowest score that is followed from there.", default=0.5, needs=("starts",))],
    hops: Annotated[Hops, option("How many next actions are followed from there.", default=1, needs=("starts",))],
    title: Annotated[str, option("Title of the picture.", default="")],
) -> None:
    """Draw the graph to PICTURE: .svg, .png, or .html for a page to pan and filter in, which works offline.

    \b
    Examples:
      toolbus toolkit draw graph.html
      toolbus toolkit draw query.svg --start query --hops 2
    """
    from toolbus.toolkit import recommend_subgraph

    graph = _graph(file)
    if starts:
        graph = recommend_subgraph(graph, starts, threshold, hops)
    fail_if(not graph.vertices(), "there is nothing to draw: " + ("no such action" if starts else "the graph is empty"))
    with needing("draw", "drawing"):
        from toolbus.toolkit.draw import save
    try:
        save(graph, picture, title)
    except OSError as error:
        fail(f"can't write {str(picture)!r}: {error.strerror}")
    print_line(f"drew {len(graph.vertices()):,} vertices to {picture}")


@command("export", into=toolkit_command)
def export_command(
    file: File, form: Annotated[Literal["scores", "graphml", "dot"], option("Format of the output.", "--format", default="scores")]
) -> None:
    """Write the graph to standard output: scores for `learn`, GraphML, or dot for Graphviz.

    \b
    Example:
      toolbus toolkit export > scores.json
      toolbus toolkit learning learn --scores scores.json --log executions.jsonl
    """
    from toolbus.toolkit.picture import dot, graphml
    from toolbus.toolkit.presets import scores_of

    graph = _graph(file)
    if form == "scores":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(scores_of(graph))) + b"\n")
    else:
        print_content(dot(graph) if form == "dot" else graphml(graph))


@command("schema", JSON, into=toolkit_command)
def schema_command() -> None:
    """Print the JSON Schema of presets, for editors.

    \b
    Example:
      toolbus toolkit schema > preset.schema.json
      # first line of a preset: `# yaml-language-server: $schema=preset.schema.json`
    """
    from toolbus.toolkit.presets import json_schema

    print_json(json_schema())


def _graph(file: Path | None) -> Toolkit:
    """Return the graph of a file, or the published one."""
    from toolbus.toolkit.live import merged

    if file is not None:
        return _read(file)

    found = with_admin(lambda admin: admin.items("toolkit/"))
    documents = {key.removeprefix("toolkit/"): document for key, document in found.items()}
    _report_omitted(documents)
    return merged(documents)


def _report_omitted(documents: Mapping[str, bytes]) -> None:
    from toolbus.toolkit.live import unreadable

    for name, why in unreadable(documents).items():
        print_line(f"toolkit/{visible(name)} is left out: {one_line(visible(why), 300)}; `toolbus toolkit load` replaces it", err=True)


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
