"""Between a graph and learning: its scores as learning takes them, and learned ones in a preset."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolbus.toolkit.checks import target_of
from toolbus.toolkit.entries import Link, Preset
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Action, Tool, ToolGroup
from toolbus.toolkit.learning.scores import Edge, EdgeKind, ScoreFile


def scores_of(toolkit: Toolkit) -> ScoreFile:
    """The scores of a graph's Next and Call edges, and what its actions and tools are for."""
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
    """What is searched for when a sentence is to lead to an action or a tool."""
    return f"{item.name}. {item.description}" if item.description else item.name


def with_scores(preset: Preset, edges: Iterable[Edge], revision: str) -> Preset:
    """The preset with other scores for the edges that it has; ``revision`` is where they come from."""
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
