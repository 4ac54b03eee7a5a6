"""The graph store's tools: where they are served, and what they answer."""

import re
from pathlib import Path

import pytest
from toolbus_workers import charts, graph_store
from toolbus_workers.graph_engine import MAX_CELL
from toolbus_workers.graph_store import GraphStore, tools
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits

from tests.workers.graph_client import KNOWS, PEOPLE, TOOLS, Client, process, serving
from tests.workers.outcomes import failed
from toolbus import Settings, ToolBus, ToolError
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.provide import Services

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "data-tools.md"


@pytest.mark.usefixtures("slow")
async def test_one_command_serves_them_over_a_graph_in_memory(server, namespace):
    """The package brings its own store; no schema shows it, and an argument of its name is refused."""
    async with process(server, namespace, "toolbus_workers.graph_store"), ToolBus(server, namespace=namespace) as bus:
        for name in TOOLS:
            await bus.wait_for_tool(name, 30)
        assert all("store" not in bus.tools[name].parameters.get("properties", {}) for name in TOOLS)
        graph = Client(bus, None)
        assert (await graph.load("vertices", "Person", csv=PEOPLE)).success
        assert await graph.rows("MATCH (p:Person) RETURN count(*)") == [[3]]
        assert "store" in failed(await graph.query("RETURN 1", store={"query": "mine"}), "invalid_arguments", "")


@pytest.mark.usefixtures("slow")
async def test_without_a_store_none_of_them_is_served(server, namespace):
    """A worker that nobody gave a store leaves them out, names what they need, and serves the rest."""
    targets = ("toolbus_workers.graph_store.tools", "toolbus_workers.joke")
    async with process(server, namespace, *targets) as worker, ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("tell-pun", 30)
        assert TOOLS.isdisjoint(bus.tools)
        worker.terminate()
        _, said = await worker.communicate()
    told = [line for line in said.decode().splitlines() if "tool.left_out" in line]
    assert len(told) == 3
    assert all("GraphStore" in line for line in told)


@pytest.mark.usefixtures("slow")
async def test_they_appear_with_a_store_of_ones_own(server, namespace, tmp_path):
    """The store of the guide is what they ask."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "mystore.py").write_text(example)
    async with process(server, namespace, f"{tmp_path}/mystore.py:tools"), ToolBus(server, namespace=namespace) as bus:
        for name in TOOLS:
            await bus.wait_for_tool(name, 30)
        assert (await Client(bus, None).query("anything")).data["rows"] == [["anything"]]
        assert (await bus.call("graph_schema")).output == "(:City) 2 vertices; id text"


@pytest.mark.usefixtures("slow")
async def test_a_graph_in_a_file_outlives_its_worker_and_belongs_to_one(server, namespace, tmp_path):
    """Imported data is there for the next worker, also after a kill; a second worker at the same time gets an error with the reason."""
    limits = {"path": str(tmp_path / "people.graph")}
    async with serving(namespace, server, **limits) as graph:
        assert (await graph.load("vertices", "Person", csv=PEOPLE)).success
        with pytest.raises(ToolError, match=r"the graph can't be opened: .*[Ll]ock"):
            await EmbeddedGraph(Limits(**limits)).__aenter__()
        graph.store._program._process.kill()
        await graph.store._program._process.wait()
        assert await graph.rows("MATCH (p:Person) RETURN count(*)") == [[3]]
    async with serving(namespace, server, **limits) as graph:
        assert await graph.rows("MATCH (p:Person) RETURN p.name ORDER BY p.id") == [["Ann"], ["Bob"], ["Cid"]]
        failed(await graph.query("LOAD FROM 'x.csv' RETURN *"), "forbidden", "statement_refused")


def test_the_guide_lists_the_tools_and_variables():
    """Each tool stands in the guide's row of its service, and each setting is listed with its default; arguments are described."""
    page = GUIDE.read_text("utf-8")
    for module, service in ((tools, "graph_store"), (charts, "charts")):
        (served,) = collect(module, Settings(), Services({GraphStore: EmbeddedGraph()}))
        for tool in served.publication.tools:
            assert re.search(rf"^\| `{service}` \| .*`{tool.name}`", page, re.MULTILINE), tool.name
            assert all(schema.get("description") for schema in tool.parameters["properties"].values())
    for name in Limits.__struct_fields__:
        default = str(getattr(Limits(), name))
        assert graph_store.SETTINGS[f"TOOLBUS_GRAPH_{name.upper()}"].endswith(f"({default})" if default else "empty")


async def test_an_empty_graph_says_so(graph):
    """The schema says how data comes in, and a query of a label names what there is."""
    assert "graph_import" in (await graph.call("graph_schema")).output
    assert "graph_import" in failed(await graph.query("MATCH (n:Person) RETURN n"), "invalid_arguments", "bad_query")


async def test_the_schema_shows_labels_types_properties_and_counts(same_people):
    """CSV columns have the types of their values, and edges say what they connect."""
    result = await same_people.call("graph_schema")
    properties = {"id": "STRING", "name": "STRING", "age": "INT64", "score": "DOUBLE"}
    assert result.data["vertices"] == [{"name": "Person", "count": 3, "properties": properties}]
    ends = {"source": "Person", "target": "Person"}
    assert result.data["edges"] == [{"name": "KNOWS", "count": 2, "properties": {"since": "INT64"}, **ends}]
    assert "(:Person)-[:KNOWS]->(:Person) 2 edges; since INT64" in result.output


async def test_a_query_with_parameters_returns_rows(same_people):
    """Values come by name; vertices, edges and paths are plain objects without the database's own ids."""
    query = "MATCH p = (a:Person)-[k:KNOWS*1..2]->(b) WHERE a.id = $id RETURN b.name, p ORDER BY b.id"
    result = await same_people.query(query, parameters={"id": "ann"})
    ann, bob = {"label": "Person", "id": "ann", "name": "Ann", "age": 30}, {"label": "Person", "id": "bob", "name": "Bob", "score": 1.5}
    assert result.data["columns"] == ["b.name", "p"]
    assert result.data["rows"][0] == ["Bob", {"vertices": [ann, bob], "edges": [{"label": "KNOWS", "since": 2001}]}]
    assert [row[0] for row in result.data["rows"]] == ["Bob", "Cid"]
    assert result.output.startswith("b.name | p\nBob | {")


async def test_importing_again_changes_nothing_and_updates_what_is_said(people):
    """Vertices and edges are found again; what a row does not say stays, and a new property is added."""
    assert (await people.load("edges", "KNOWS", rows=KNOWS, source="Person", target="Person")).data["label"]["count"] == 2
    result = await people.load("vertices", "Person", rows=[{"id": "ann", "age": 31, "nick": "A"}, {"id": 7}])
    assert result.data["imported"] == 2
    found = await people.rows("MATCH (p:Person) RETURN p.id, p.name, p.age, p.nick ORDER BY p.id")
    assert found == [["7", None, None, None], ["ann", "Ann", 31, "A"], ["bob", "Bob", None, None], ["cid", "Cid", 41, None]]


@pytest.mark.usefixtures("slow")
async def test_an_import_is_taken_whole_or_not_at_all(people):
    """An edge to a vertex that is not there undoes the rest of its import, its new type included."""
    rows = [{"from": "ann", "to": "cid"}, {"from": "ann", "to": "nobody"}]
    told = failed(await people.load("edges", "LIKES", rows=rows, source="Person", target="Person"), "invalid_arguments", "no_vertex")
    assert told == "there are no Person vertices with the ids 'nobody'; import them first (nothing was imported)"
    assert [each["name"] for each in (await people.call("graph_schema")).data["edges"]] == ["KNOWS"]
    failed(
        await people.load("vertices", "Person", rows=[{"id": "x", "hat": "red"}, {"id": "y", "age": "old"}]),
        "invalid_arguments",
        "bad_type",
    )
    assert await people.rows("MATCH (p:Person) RETURN count(*)") == [[3]]


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"rows": []}, "no_data"),
        ({}, "no_data"),
        ({"rows": [{"id": 1}], "csv": "id\n1"}, "no_data"),
        ({"rows": [{"name": "x"}]}, "no_id"),
        ({"rows": [{"id": True}]}, "no_id"),
        ({"rows": [{"id": "x", "a b": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "ID": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "a`": 1}]}, "bad_name"),
        ({"rows": [{"id": "x", "n": 1 << 63}]}, "too_large"),
        ({"rows": [{"id": "x", "n": "y" * 10_001}]}, "too_long"),
        ({"rows": [{"id": "x", **{f"p{number}": 1 for number in range(60)}}]}, "too_many_properties"),
        ({"rows": [{"id": "x"}], "label": "A`) DETACH DELETE (n"}, "bad_name"),
        ({"rows": [{"id": "x"}], "label": "person"}, "bad_name"),
        ({"rows": [{"id": "x"}], "label": "KNOWS"}, "bad_kind"),
        ({"rows": [{"id": "x"}], "source": "Person"}, "bad_ends"),
        ({"rows": [{"from": "ann", "to": "bob"}], "kind": "edges", "label": "E"}, "bad_ends"),
        ({"rows": [{"from": "ann", "to": "x"}], "kind": "edges", "label": "E", "source": "Person", "target": "City"}, "no_label"),
        ({"csv": 'id,name\n1,"x'}, "bad_csv"),
        ({"csv": "id,name\n1"}, "bad_csv"),
        ({"csv": "id,id\n1,2"}, "bad_csv"),
        ({"csv": "id\n" + "1\n" * 5_001}, "too_many_rows"),
        ({"csv": "id\n\0"}, "bad_character"),
    ],
)
async def test_what_can_not_be_imported_is_told(same_people, arguments, code):
    """Each mistake has a code of its own and changes nothing."""
    failed(await same_people.load(**{"kind": "vertices", "label": "Person", **arguments}), "invalid_arguments", code)
    assert [each["name"] for each in (await same_people.call("graph_schema")).data["vertices"]] == ["Person"]
    assert await same_people.rows("MATCH (n) RETURN count(*)") == [[3]]


async def test_a_result_is_bounded_in_rows_and_bytes(graph):
    """The first rows come, long values cut, with a note for each."""
    result = await graph.query("UNWIND range(1, 1000000) AS x RETURN x", max_rows=5)
    assert result.data["rows"] == [[1], [2], [3], [4], [5]]
    assert "only the first 5 rows are shown" in result.output
    result = await graph.query("UNWIND range(1, 500) AS x RETURN repeat('y', 5000)", max_rows=1000)
    assert 1 <= len(result.data["rows"]) < 500
    assert all(len(text) == MAX_CELL for (text,) in result.data["rows"])
    assert len(result.output) < 120_000
    assert "long values are cut short" in result.output
