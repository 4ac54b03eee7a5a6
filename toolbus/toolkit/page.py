"""Draw a toolkit graph as an interactive page: one HTML file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from typing import Any

import msgspec

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Toolkit
from toolbus.toolkit.items import Tool, kind_of
from toolbus.toolkit.layout import layout

MOST = 2_000
"""Most vertices on a page by default; more make a browser slow."""

_DESCRIPTION_LENGTH = 1_000
# Characters that could end a script element or a line of JavaScript when they stand within JSON.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(graph: Toolkit, title: str = "Toolkit", *, most: int = MOST) -> str:
    """Return an HTML page to pan, zoom and drag in, with details under the pointer, a search, and a filter by score.

    Script, style and data are inside the page, and its content security policy allows nothing else. When the graph has more than
    ``most`` vertices, the page says how many were left out.

    Raises:
        ToolkitError: ``most`` is not at least 1.
    """
    if most < 1:
        raise ToolkitError(f"most is {most!r}: a page shows at least one vertex")
    parts = {name: _asset(f"page.{name}") for name in ("html", "css", "js")}
    parts["js"] = drawing() + parts["js"]
    data = msgspec.json.encode(picture(graph, most)).decode()
    for unsafe, escaped in _UNSAFE.items():
        data = data.replace(unsafe, escaped)
    policy = (
        f"default-src 'none'; style-src '{_hash(parts['css'])}'; script-src '{_hash(parts['js'])}'; base-uri 'none'; form-action 'none'"
    )
    filled = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": parts["css"], "SCRIPT": parts["js"], "DATA": data}
    # The template is split once instead of searched again, so that no text of the graph is taken for a placeholder.
    pieces = parts["html"].split("%%")
    return "".join(filled[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def drawing() -> str:
    """Return the script that draws a ``picture``: a function ``drawGraph(data, parts)``."""
    return _asset("drawing.js")


def picture(graph: Toolkit, most: int) -> dict[str, Any]:
    """Return what the page draws as plain data: ``vertices`` with positions, ``edges`` with scores, and the number ``left_out``."""
    placed = layout(graph, most)
    vertices = [
        {"id": vertex, "kind": kind_of(placed.toolkit.item(vertex)), "x": x, "y": y, **_about(placed.toolkit, vertex)}
        for vertex, (x, y) in placed.places.items()
    ]
    edges = [{"from": u, "to": v, "score": placed.toolkit.get_score(u, v)} for u, v in placed.toolkit.edges()]
    return {"vertices": vertices, "edges": edges, "left_out": placed.left_out}


def _about(toolkit: Toolkit, vertex: str) -> dict[str, str]:
    item = toolkit.item(vertex)
    if item is None:
        return {"name": vertex, "description": "", "runs": ""}
    runs = "" if not isinstance(item, Tool) else f"bus: {item.bus_name}" if item.bus_name else "in this process"
    return {"name": item.name, "description": item.description[:_DESCRIPTION_LENGTH], "runs": runs}


def _asset(name: str) -> str:
    return resources.files("toolbus.toolkit").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash of a text in the form that content security policies use."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
