"""Convert scores between a graph or preset and the learning package."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolbus.toolkit.checks import target_of
from toolbus.toolkit.entries import Link, Preset
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup
from toolbus.toolkit.learning.scores import Edge, EdgeKind, ScoreFile


def scores_of(toolkit: Toolkit) -> ScoreFile:
    """Return the scores of a graph's Next and Call edges, with the texts of its vertices."""
    edges: list[Edge] = []
    texts: dict[str, str] = {}
    for vertex, item in toolkit.items():
        texts[vertex] = text_of(item)
        if isinstance(item, Action):
            for target in toolkit.successors(vertex):
                kind: EdgeKind = "next" if isinstance(toolkit.item(target), Action) else "call"
                edges.append(Edge(kind, vertex, target, toolkit.get_score(vertex, target)))
    return ScoreFile(edges=edges, texts=texts)


def text_of(item: Action | Tool | ToolGroup) -> str:
    """Return the text by which a search for a sentence finds an action or a tool."""
    return f"{item.name}. {item.description}" if item.description else item.name


def with_scores(preset: Preset, edges: Iterable[Edge], revision: str) -> Preset:
    """Return the preset with other scores on its existing edges; ``revision`` names their source."""
    learned = {(edge.source, edge.target): edge.score for edge in edges}

    def scored(source: str, links: Iterable[str | Link]) -> tuple[str | Link, ...]:
        return tuple(
            Link(target_of(link), learned[source, target_of(link)]) if (source, target_of(link)) in learned else link for link in links
        )

    actions = tuple(
        msgspec.structs.replace(action, next=scored(action.id, action.next), call=scored(action.id, action.call))
        for action in preset.actions
    )
    return msgspec.structs.replace(preset, actions=actions, revision=revision)
