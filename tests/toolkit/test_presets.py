"""Presets: what they make, and how each mistake is told."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit import LiveGroup, load_preset, read_preset, toolkit_of
from toolbus.toolkit.learning.evidence import Edge
from toolbus.toolkit.picture import dot, graphml
from toolbus.toolkit.presets import graph_of, json_schema, scores_of, with_scores

PRESET = """\
name: analysis
description: From a question to a chart
tools:
  - id: connect_db
  - id: run_sql
    name: run_sql
    description: Run a statement
    bus: data.query
  - {id: title, function: "string:capwords"}
groups:
  - id: charts
    group: charting
  - id: both
    tools: [run_sql, title]
actions:
  - id: connect
    next: [{to: inspect, score: 0.9}]
    call: [connect_db]
  - id: inspect
    name: inspect schema
    next: [query]
  - id: query
    call:
      - {to: run_sql, score: 0.8}
      - both
  - id: chart
    call: [charts]
chains:
  - [inspect, run_sql, [query, [run_sql, title]], chart]
operators:
  - id: analyst
    instruction: Answer with a chart
    actions: [connect]
    threshold: 0.6
    hops: 2
"""


def test_a_preset_makes_its_graph() -> None:
    """Entries become vertices, links and chains become edges with their scores, and operators say where to start."""
    preset = read_preset(PRESET.encode())
    graph = toolkit_of(preset)
    assert graph.vertices() == ["connect_db", "run_sql", "title", "charts", "both", "connect", "inspect", "query", "chart"]
    assert graph.get_score("connect", "inspect") == 0.9
    assert graph.get_score("query", "run_sql") == 0.8, "a chain changes no score"
    assert graph.has_edge("inspect", "run_sql")
    assert graph.has_edge("query", "chart")
    assert graph.has_edge("both", "title")
    run_sql, title, inspect = graph.get_tool("run_sql"), graph.get_tool("title"), graph.get_action("inspect")
    assert run_sql is not None
    assert (run_sql.bus_name, run_sql.description) == ("data.query", "Run a statement")
    assert title is not None
    assert title.function is not None
    assert title.function("a b") == "A B"
    assert inspect is not None
    assert inspect.name == "inspect schema"
    charts = graph.get_tool_group("charts")
    assert isinstance(charts, LiveGroup)
    assert charts.group == "charting"
    assert (preset.operator("analyst").threshold, preset.operator("analyst").hops) == (0.6, 2)
    with pytest.raises(ToolkitError, match="analyst"):
        preset.operator("nobody")


MISTAKES = [
    ("name: x\nactions:\n  - id: a\n    next: [b]\n", "p.yaml:4: actions[0].next[0]: there is no entry 'b'"),
    (
        "name: x\nactions:\n  - id: a\n    next:\n      - to: a\n        score: 1.5\n",
        "p.yaml:6: actions[0].next[0].score: Expected `float` <= 1.0",
    ),
    ("name: x\nactions:\n  - id: a\n    next:\n      - {to: a, score: .nan}\n", "p.yaml:5: actions[0].next[0].score"),
    ("name: x\ntools:\n  - id: a\nactions:\n  - id: a\n", "p.yaml:5: actions[0].id: the id 'a' is taken by another of the tools"),
    (
        "name: x\nactions:\n  - id: a\n    call: [a]\n",
        "p.yaml:4: actions[0].call[0]: 'a' is one of the actions, where one of the tools or groups",
    ),
    ("name: x\ntools: [{id: t}]\nchains:\n  - [t]\n", "p.yaml:4: chains[0]: Chain must start with an Action"),
    ("name: x\nchains:\n  - [nobody]\n", "p.yaml:3: chains[0][0]: there is no entry 'nobody'"),
    ("name: x\nactions: [{id: a}]\nchains:\n  - [a, 7]\n", "p.yaml:4: chains[0][1]: expected an id or a list of ids, got int"),
    ("name: x\nactions:\n  - id: a\n    calls: []\n", "p.yaml:4: actions[0].calls: Object contains unknown field `calls`"),
    ("name: x\ngroups:\n  - id: g\n", "p.yaml:3: groups[0]: the group 'g' has no tools"),
    ("name: x\ntools:\n  - id: t\n    function: nothing\n", "p.yaml:4: tools[0].function: 'nothing' is not module:function"),
    (
        "name: x\ntools:\n  - id: t\n    bus: b\n    function: a:b\n",
        "p.yaml:5: tools[0].function: the tool 't' is a function or a tool of the bus",
    ),
    ("name: x\noperators:\n  - {id: o, actions: [a]}\n", "p.yaml:3: operators[0].actions[0]: there is no entry 'a'"),
    ("name: x\noperators:\n  - {id: o}\n  - {id: o}\n", "p.yaml:4: operators[1].id: there are two operators 'o'"),
    ("name: a b\n", "p.yaml:1: name: "),
    ("name: '..'\n", "p.yaml:1: name: "),
    ('name: "a\\n"\n', "p.yaml:1: name: "),
    ("version: 2\nname: x\n", "p.yaml:1: version: Invalid enum value 2"),
    ("tools: []\n", "p.yaml:1: preset: Object missing required field `name`"),
    ("name: x\ntools: [\n", "p.yaml:3: not YAML"),
    ("name: x\nname: y\n", "p.yaml:2: not YAML: duplicate entry"),
    ('{"name": "x", "name": "y"}', 'p.yaml: the key "name" stands twice in one object; write it once'),
    ('{\n"name": "x",\n"name": "y"}', 'p.yaml:3: the key "name" stands twice in one object; write it once'),
    (
        '{"name": "x", "actions": [{"id": "a", "next": [{"to": "a", "to": "b"}]}]}',
        'p.yaml: the key "to" stands twice in one object; write it once',
    ),
    ("name: x\n\ttools: []\n", "p.yaml:2: not YAML"),
    ("--- {}\n--- {}\n", "p.yaml: not YAML"),
    ("", "p.yaml: preset: Expected `object`, got `null`"),
    ("- x\n", "p.yaml:1: preset: Expected `object`, got `array`"),
    ('{"name": "x", "tools": 1}', "p.yaml:1: tools: Expected `array`, got `int`"),
    ("? {a: 1}\n: 2\n", "p.yaml: not YAML that a preset can be"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[told for _, told in MISTAKES])
def test_a_mistake_is_named_with_file_line_and_key(text: str, told: str) -> None:
    """The first thing that is wrong is said with its place."""
    with pytest.raises(ToolkitError) as refused:
        read_preset(text.encode(), "p.yaml")
    assert str(refused.value).startswith(told)


@pytest.mark.usefixtures("slow")
def test_hostile_text_is_refused_at_once() -> None:
    """Bombs of aliases, endless nesting and bytes that are no text end in a clear error."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for text in (bomb.encode(), b"name: " + b"[" * 100_000, b"name: \xff\xfe", b"name: x\x00"):
        with pytest.raises(ToolkitError, match=r"p\.yaml"):
            read_preset(text, "p.yaml")
    with pytest.raises(ToolkitError, match="bytes"):
        read_preset(b" " * 33 * 1024 * 1024, "p.yaml")


@pytest.mark.usefixtures("slow")
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from(["name: x", "tools:", " - id: a", "- [", "&a", "*a", "!!x", "{", ":"])).map("\n".join),
    )
)
def test_any_text_is_a_preset_or_refused(text: str) -> None:
    """Nothing that is read raises anything but the refusal."""
    with contextlib.suppress(ToolkitError):
        toolkit_of(read_preset(text.encode("utf-8", "surrogatepass")), functions=False)


@pytest.mark.usefixtures("slow")
def test_files_are_read_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML and JSON files make the same preset; a missing one and a missing function are told."""
    (tmp_path / "a.yaml").write_text(PRESET)
    preset = load_preset(tmp_path / "a.yaml")
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(preset))
    assert load_preset(tmp_path / "a.json") == preset
    with pytest.raises(ToolkitError, match="No such file"):
        load_preset(tmp_path / "none.yaml")
    (tmp_path / "raising.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for function in ("nomodule:f", "string:nothing", "string:digits", "raising:f"):
        with pytest.raises(ToolkitError, match=function):
            toolkit_of(read_preset(f"name: x\ntools:\n  - {{id: t, function: '{function}'}}\n".encode()))
    with pytest.raises(ToolkitError, match="published"):
        toolkit_of(preset, functions=False)


def test_the_schema_for_editors_accepts_what_is_right() -> None:
    """The JSON Schema accepts the example and refuses what the reader refuses by its types."""
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(json_schema())
    good: dict[str, Any] = json.loads(msgspec.json.encode(read_preset(PRESET.encode())))
    validator.validate(good)
    assert not validator.is_valid({**good, "actions": [{"id": "a", "next": [{"to": "a", "score": 2}]}]})
    assert not validator.is_valid({**good, "more": 1})


@pytest.mark.usefixtures("slow")
def test_scores_leave_and_return() -> None:
    """A graph's scores go out for learning, and learned ones come back into the preset under their revision."""
    preset = read_preset(PRESET.encode())
    file = scores_of(toolkit_of(preset))
    assert Edge("call", "query", "run_sql", 0.8) in file.edges
    assert Edge("next", "connect", "inspect", 0.9) in file.edges
    assert file.texts["inspect"] == "inspect schema"
    learned = with_scores(preset, [Edge("call", "query", "both", 0.25), Edge("call", "query", "nobody", 0.1)], "r7")
    graph = toolkit_of(learned)
    assert (learned.revision, graph.get_score("query", "both"), graph.get_score("query", "run_sql")) == ("r7", 0.25, 0.8)
    assert toolkit_of(preset).get_score("query", "both") == 1.0


@pytest.mark.usefixtures("slow")
def test_edges_of_chains_get_scores_as_well() -> None:
    """An edge that stands only in a chain gets its learned score, and all other edges, also of functions, stay as they are."""
    lines = "tools: [{id: a}, {id: b, function: 'no.such:function'}]\ngroups: [{id: g, tools: [a]}]"
    preset = read_preset(f"name: x\n{lines}\nactions: [{{id: one, call: [a]}}, {{id: two}}]\nchains: [[one, [b, g], two, a]]".encode())
    edges = [Edge("next", "one", "two", 0.2), Edge("call", "one", "b", 0.3), Edge("call", "two", "a", 0.4), Edge("call", "one", "g", 1.0)]
    learned = with_scores(preset, edges, "r1")
    graph, before = graph_of(learned), graph_of(preset)
    assert set(graph.edges()) == set(before.edges())
    changed = {edge: graph.get_score(*edge) for edge in graph.edges() if graph.get_score(*edge) != before.get_score(*edge)}
    assert changed == {("one", "two"): 0.2, ("one", "b"): 0.3, ("two", "a"): 0.4}
    assert graph_of(with_scores(learned, [Edge("call", "one", "b", 0.5)], "r2")).get_score("one", "b") == 0.5
    assert learned.chains == preset.chains


def test_other_formats_have_every_edge() -> None:
    """GraphML and dot can be read by others, whatever names say."""
    import networkx as nx

    graph = toolkit_of(read_preset(b'name: x\nactions:\n  - {id: "a\\"b", name: "c\\\\d", next: [{to: "a\\"b", score: 0.5}]}\n'))
    assert nx.parse_graphml(graphml(graph)).edges['a"b', 'a"b']["score"] == 0.5
    assert '"a\\"b" -> "a\\"b" [label="0.50"]' in dot(graph)


@pytest.mark.usefixtures("slow")
def test_a_large_preset_is_read_whole() -> None:
    """Thousands of entries arrive with all their edges."""
    chosen = random.Random(5)
    lines = ["name: large", "tools:", *(f"  - id: t{index}" for index in range(5000)), "actions:"]
    for index in range(1000):
        links = ", ".join(f"{{to: t{chosen.randrange(5000)}, score: 0.5}}" for _ in range(5))
        lines += [f"  - id: a{index}", f"    next: [a{(index + 1) % 1000}]", f"    call: [{links}]"]
    graph = toolkit_of(read_preset("\n".join(lines).encode()))
    assert len(graph.vertices()) == 6000
    assert len(graph.edges()) > 5900
