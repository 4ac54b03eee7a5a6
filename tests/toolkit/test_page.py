"""The interactive page: one file, safe whatever names say, and doing what it promises."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.toolkit.graphs import graph_of
from toolbus.toolkit import Action, Tool, Toolkit, ToolkitError
from toolbus.toolkit.picture import page

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "'\"><svg onload=alert(1)>",
    "%%SCRIPT%%",
    "\u2028alert(1)\u2029",
    "]]>&lt;/script&gt;",
]


class Parsed(HTMLParser):
    """A page's elements with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within:
            self.texts[self.within][-1] += data

    def data(self) -> dict[str, Any]:
        """Return the graph in the page."""
        return json.loads(self.texts["script"][0])


@pytest.fixture
def hostile() -> Toolkit:
    """Return a graph whose ids, names and descriptions try to be markup."""
    toolkit = Toolkit()
    for number, text in enumerate(HOSTILE):
        toolkit.add_vertex(f"a{text}", data=Action(f"a{text}", text, text))
        toolkit.add_vertex(f"t{text}", data=Tool(f"t{text}", text, text))
        toolkit.add_edge(f"a{text}", f"t{text}", number / 10)
    return toolkit


def test_nothing_in_a_graph_becomes_markup(hostile: Toolkit) -> None:
    """For any names, descriptions, ids and title, the elements are those of an empty page, and the data is complete."""
    title = HOSTILE[0] + HOSTILE[3]
    parsed = Parsed(page(hostile, title))
    assert [tag for tag, _ in parsed.elements] == [tag for tag, _ in Parsed(page(Toolkit())).elements]
    assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
    assert parsed.texts["title"] == parsed.texts["h1"] == [title]
    data = parsed.data()
    assert [vertex["name"] for vertex in data["vertices"] if vertex["kind"] == "tool"] == HOSTILE
    assert [vertex["description"] for vertex in data["vertices"] if vertex["kind"] == "action"] == HOSTILE


def test_a_page_needs_no_network_and_runs_its_own_script_only(hostile: Toolkit) -> None:
    """Nothing is loaded from anywhere, and the policy allows exactly the script and the style that are there."""
    text = page(hostile)
    parsed = Parsed(text)
    assert not [attributes for tag, attributes in parsed.elements if tag == "link" or {"src", "href"} & attributes.keys()]
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    policy = next(str(attributes["content"]) for tag, attributes in parsed.elements if "http-equiv" in attributes)
    for directive, content in (("style-src", parsed.texts["style"][0]), ("script-src", parsed.texts["script"][1])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    script = parsed.texts["script"][1]
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write", "fetch(") if word in script]


def test_the_page_has_every_vertex_edge_and_score() -> None:
    """Kinds, names, what runs a tool, and edges with their scores are in the page's data; the same graph gives the same page."""
    toolkit = graph_of(("a0", "a1", 0.5), ("a0", "g0"), ("g0", "t0", 0.25))
    toolkit.add_vertex("t1", data=Tool.from_function(page, id="t1"))
    data = Parsed(page(toolkit)).data()
    assert {(vertex["id"], vertex["kind"], vertex["name"], vertex["runs"]) for vertex in data["vertices"]} == {
        ("a0", "action", "the a0", ""), ("a1", "action", "the a1", ""), ("g0", "group", "the g0", ""),
        ("t0", "tool", "the t0", "bus: the t0"), ("t1", "tool", "page", "in this process"),
    }  # fmt: skip
    assert [(edge["from"], edge["to"], edge["score"]) for edge in data["edges"]] == [
        ("a0", "a1", 0.5),
        ("a0", "g0", 1.0),
        ("g0", "t0", 0.25),
    ]
    assert page(toolkit) == page(toolkit)


def test_a_large_graph_is_cut() -> None:
    """The page holds so many vertices and the edges between them, and how many are not there; descriptions are cut, too."""
    toolkit = graph_of(*((f"a{number}", f"t{number}") for number in range(20)))
    toolkit.add_vertex("a0", data=Action("a0", "A", "x" * 5_000))
    data = Parsed(page(toolkit, most=11)).data()
    assert (len(data["vertices"]), len(data["edges"]), data["left_out"]) == (11, 5, 29)
    assert len(data["vertices"][0]["description"]) == 1_000
    with pytest.raises(ToolkitError, match="at least one"):
        page(toolkit, most=0)


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")
def test_the_script_draws_filters_drags_and_tells(tmp_path: Path, hostile: Toolkit) -> None:
    """In a document of its own it draws every vertex and edge as text, filters by score, finds, drags, zooms and shows details."""
    toolkit = graph_of(("a0", "a1", 0.5), ("a0", "t0", 0.25), ("a1", "a1"), ("a0", "g0", 0.9), ("g0", "t1"))
    toolkit.update(hostile)
    parsed = Parsed(page(toolkit))
    (tmp_path / "data.json").write_text(parsed.texts["script"][0])
    (tmp_path / "page.js").write_text(parsed.texts["script"][1])
    driver = Path(__file__).with_name("page_driver.js")
    done = subprocess.run(["node", driver, tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["drawn"] == {"vertices": 5 + 2 * len(HOSTILE), "edges": 5 + len(HOSTILE), "texts_are_names": True}
    assert told["paths_are_numbers"] is True
    assert told["least 0.6"] == {"edges_away": 2 + len(HOSTILE) - 1, "tool_away": True, "group_away": False, "action_away": False}
    assert told["least 0"] == {"edges_away": 0}
    assert told["found"] == {"bright": ["a0"]}
    assert told["details"] == {"shown": True, "bold": "the a0", "hidden_after": True}
    assert told["dragged"] == {"moved": True, "edge_moved": True, "view_stayed": True}
    assert told["panned"] is True
    assert told["zoomed"] is True
    assert told["fitted"] is True
