"""The graph in formats of others."""

from __future__ import annotations

import json

import networkx as nx

from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import kind_of


def graphml(toolkit: Toolkit) -> str:
    """GraphML with each vertex's kind, name and description, and each edge's score."""
    plain: nx.DiGraph[str] = nx.DiGraph()
    for vertex, item in toolkit.items():
        plain.add_node(vertex, kind=kind_of(item), name=item.name, description=item.description)
    plain.add_edges_from((u, v, {"score": toolkit.get_score(u, v)}) for u, v in toolkit.edges())
    return "\n".join(nx.generate_graphml(plain))


def dot(toolkit: Toolkit) -> str:
    """Graphviz's language: actions are rounded, tools boxes, groups hexagons, scores stand at the edges."""
    shapes = {"action": "box,style=rounded", "tool": "box", "group": "hexagon"}
    lines = ["digraph toolkit {", "  rankdir=LR"]
    lines += [f"  {_quoted(vertex)} [label={_quoted(item.name)},shape={shapes[kind_of(item)]}]" for vertex, item in toolkit.items()]
    lines += [f'  {_quoted(u)} -> {_quoted(v)} [label="{toolkit.get_score(u, v):.2f}"]' for u, v in toolkit.edges()]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    # Strings of dot are JSON's, but for what a backslash may stand before.
    return json.dumps(text.replace("\\", "/").replace("\n", " "), ensure_ascii=False)
