"""Convert scores between a graph or preset and the learning package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup, edge_kind
from toolbus.toolkit.learning.scores import Edge, ScoreFile
from toolbus.toolkit.presets import target_of, toolkit_of
from toolbus.toolkit.starting import ActionEntry, Link, Preset


def scores_of(toolkit: Toolkit) -> ScoreFile:
    """Return the scores of a graph's Next and Call edges, with the texts and other names of its vertices."""
    edges: list[Edge] = []
    texts: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for vertex, item in toolkit.items():
        texts[vertex] = text_of(item)
        names[vertex] = sorted(names_of(toolkit, vertex) - {vertex})
        if isinstance(item, Action):
            for target in toolkit.successors(vertex):
                kind = edge_kind(item, toolkit.item(target))
                if kind != "holds":
                    edges.append(Edge(kind, vertex, target, toolkit.get_score(vertex, target)))
    return ScoreFile(edges=edges, texts=texts, names={vertex: found for vertex, found in names.items() if found})


def names_of(toolkit: Toolkit, vertex: str) -> set[str]:
    """Return the names by which a log may know a vertex: ids, names, names on the bus, and those of a group's tools."""
    item = toolkit.item(vertex)
    if isinstance(item, Tool):
        return {item.bus_name or item.name}
    if isinstance(item, ToolGroup):
        return {vertex}.union(*({member} | names_of(toolkit, member) for member in toolkit.successors(vertex)))
    return {vertex} if item is None else {vertex, item.name}


def text_of(item: Action | Tool | ToolGroup) -> str:
    """Return the text by which a search for a sentence finds an action or a tool."""
    return f"{item.name}. {item.description}" if item.description else item.name


def with_scores(preset: Preset, edges: Iterable[Edge], revision: str) -> Preset:
    """Return the preset with other scores on its existing edges; ``revision`` names their source.

    An edge that stands only in a chain becomes a link of its action, since chains have no scores.
    """
    learned = {(edge.source, edge.target): edge.score for edge in edges}
    graph = graph_of(preset)
    actions = tuple(_scored(action, graph, learned) for action in preset.actions)
    return msgspec.structs.replace(preset, actions=actions, revision=revision)


def graph_of(preset: Preset) -> Toolkit:
    """Return the graph of a preset without importing its functions."""
    return toolkit_of(msgspec.structs.replace(preset, tools=tuple(msgspec.structs.replace(tool, function="") for tool in preset.tools)))


def _scored(action: ActionEntry, graph: Toolkit, learned: Mapping[tuple[str, str], float]) -> ActionEntry:
    links = {"next": action.next, "call": action.call}
    written = {target_of(link) for found in links.values() for link in found}
    for target in graph.successors(action.id):
        if target not in written and (action.id, target) in learned:
            links[edge_kind(graph.item(action.id), graph.item(target))] += (target,)

    def scored(link: str | Link) -> str | Link:
        score = learned.get((action.id, target_of(link)))
        return link if score is None else Link(target_of(link), score)

    return msgspec.structs.replace(action, next=tuple(map(scored, links["next"])), call=tuple(map(scored, links["call"])))
