"""Export a toolkit graph as GraphML or DOT."""

from __future__ import annotations

import json

import networkx as nx

from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import kind_of


def graphml(toolkit: Toolkit) -> str:
    """Return GraphML with the kind, name and description of each vertex and the score of each edge."""
    plain: nx.DiGraph[str] = nx.DiGraph()
    for vertex, item in toolkit.items():
        plain.add_node(vertex, kind=kind_of(item), name=item.name, description=item.description)
    plain.add_edges_from((u, v, {"score": toolkit.get_score(u, v)}) for u, v in toolkit.edges())
    return "\n".join(nx.generate_graphml(plain))


def dot(toolkit: Toolkit) -> str:
    """Return DOT for Graphviz: rounded boxes for actions, boxes for tools, hexagons for groups, and scores as edge labels."""
    shapes = {"action": "box,style=rounded", "tool": "box", "group": "hexagon"}
    lines = ["digraph toolkit {", "  rankdir=LR"]
    lines += [f"  {_quoted(vertex)} [label={_quoted(item.name)},shape={shapes[kind_of(item)]}]" for vertex, item in toolkit.items()]
    lines += [f'  {_quoted(u)} -> {_quoted(v)} [label="{toolkit.get_score(u, v):.2f}"]' for u, v in toolkit.edges()]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    # DOT strings are like JSON strings, except for what may follow a backslash.
    return json.dumps(text.replace("\\", "/").replace("\n", " "), ensure_ascii=False)
