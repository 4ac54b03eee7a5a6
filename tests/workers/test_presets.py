"""The shipped presets over a real server: an agent walks them from the first action to a report, with the ready-made tools."""

import asyncio
import base64
import contextlib
import os
import sys

import msgspec
import pytest
from toolbus_workers import charts
from toolbus_workers.graph_store import GraphStore, tools
from toolbus_workers.graph_store.embedded import EmbeddedGraph, Limits

from tests.agent.endpoint import calls, endpoint, says
from tests.servers import eventually
from toolbus import ToolBus, Worker
from toolbus.agent import Agent, ChatEndpoint
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Finished
from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit import Walk, for_actions, load_preset, toolkit_of
from toolbus.toolkit.presets import find_preset, shipped_presets

pytestmark = pytest.mark.anyio

ORDERS = "region,month,amount\nnorth,May,10\nsouth,May,20\nnorth,June,5\nsouth,June,7\n"


def served_by(preset):
    """Return the command in a preset's description, as the words after ``toolbus``."""
    return preset.description.partition("Serve it with: toolbus ")[2].split()


@contextlib.asynccontextmanager
async def toolbus(url, namespace, *words, **environment):
    """Run a command as a process that is ended afterwards."""
    command = [sys.executable, "-m", "toolbus", "--url", url, "--namespace", namespace, *words]
    made = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment}, stdout=-1, stderr=-1)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.terminate()
        await asyncio.wait_for(made.communicate(), 30)


@contextlib.asynccontextmanager
async def published(command, url, namespace, name):
    """Load a shipped preset by its name on the command line."""
    assert await command(url, namespace, "toolkit", "load", name)
    yield load_preset(find_preset(name))
    await command(url, namespace, "operate", "items", "rm", f"toolkit/{name}")


class Heard:
    """The results of an agent's tools."""

    def __init__(self):
        self.results = []

    def __call__(self, event):
        if isinstance(event, ToolEvent) and isinstance(event.event, Finished):
            self.results.append(event.event.result)

    def check(self):
        assert all(result.success for result in self.results), [result.error for result in self.results]


async def walked(bus, operator, script):
    """Let a scripted model walk; what it was offered in each turn, what tools answered, and where it stands at the end."""
    heard = Heard()
    walk = Walk(bus.tools, operator.actions, threshold=operator.threshold, hops=operator.hops)
    async with endpoint(script) as model, ChatEndpoint(model.url, "k") as chat:
        agent = Agent(chat, bus.executor(model="m", user="alice", session="one"), walk=walk, system=operator.instruction)
        answer = await agent.ask("Which region sells more? Write a report.", heard)
    heard.check()
    assert answer.text == "done"
    return [[each["function"]["name"] for each in body.get("tools", [])] for body in model.bodies], heard.results, walk.at


@pytest.mark.usefixtures("slow")
async def test_an_agent_walks_from_a_file_to_a_report(server, namespace, tmp_path, command):
    """Each turn offers the tools of where the agent stands and of what follows, and the report holds the table and the chart."""
    (tmp_path / "orders.csv").write_text(ORDERS)
    query = {"sql": "SELECT region, sum(amount)::INT AS amount FROM orders GROUP BY region ORDER BY region"}
    chart = {"kind": "bar", "title": "Sales", "labels": ["north", "south"], "series": [{"name": "amount", "values": [15, 27]}]}
    sections = [
        {"heading": "Sums", "text": "The south sells more.", "table": {"$from": "data_analysis"}},
        {"heading": "Chart", "chart": {"$from": "draw_chart", "path": "svg"}},
    ]
    script = [
        calls(("file_read", {"path": "orders.csv"})),
        calls(("data_upload", {"table": "orders", "content": {"$from": "file_read", "path": "text"}})),
        calls(("data_describe", {"table": "orders"})),
        calls(("data_analysis", query)),
        calls(("draw_chart", chart)),
        calls(("write_report", {"title": "Sales by region", "sections": sections})),
        says("done"),
    ]
    async with published(command, server, namespace, "data-analysis") as preset:
        environment = {"TOOLBUS_FILES_ROOT": str(tmp_path)}
        async with (
            toolbus(server, namespace, *served_by(preset), **environment),
            ToolBus(server, namespace=namespace) as bus,
        ):
            named = {tool.bus or tool.name or tool.id for tool in preset.tools}
            await eventually(lambda: named <= set(bus.tools) and "file_read" in bus.tools, 30)
            offered, results, at = await walked(bus, preset.operator("analyst"), script)
    connecting = ["data_describe", "data_tables", "data_upload", "file_list", "file_read"]
    inspecting, querying = ["data_analysis", "data_describe", "data_tables"], ["data_analysis", "draw_chart", "write_report"]
    assert offered == [connecting] * 3 + [inspecting, querying, ["draw_chart", "write_report"], ["write_report"]]
    assert at == ("report",)
    _, _, described, found, drawn, report = results
    assert "4 rows" in described.output
    assert found.data["rows"] == [["north", 15], ["south", 27]]
    text = report.content[0].data.decode()
    assert text.startswith(
        "# Sales by region\n\n## Sums\n\nThe south sells more.\n\n| region | amount |\n|---|---|\n| north | 15 |\n| south | 27 |"
    )
    assert base64.b64encode(drawn.content[0].data).decode() in text


@pytest.mark.usefixtures("slow")
async def test_graph_tools_are_offered_while_a_store_is_provided(server, namespace, command):
    """Without a store the actions are there and their tools missing; with one, an agent imports, looks, asks and tells."""
    people = {"kind": "vertices", "label": "Person", "rows": [{"id": "ann"}, {"id": "bob"}, {"id": "cid"}]}
    rows = [{"from": "ann", "to": "bob"}, {"from": "ann", "to": "cid"}]
    knows = {"kind": "edges", "label": "KNOWS", "source": "Person", "target": "Person", "rows": rows}
    query = {"query": "MATCH (a:Person)-[:KNOWS]->() RETURN a.id AS who, count(*) AS knows ORDER BY knows DESC"}
    report = {"title": "Friends", "sections": [{"heading": "Who knows whom", "table": {"$from": "graph_query"}}]}
    script = [
        calls(("graph_schema", {})),
        calls(("graph_import", people)),
        calls(("graph_import", knows)),
        calls(("graph_schema", {})),
        calls(("graph_query", query)),
        calls(("write_report", report)),
        says("done"),
    ]
    names = {"graph_import", "graph_query", "graph_schema"}
    async with (
        published(command, server, namespace, "graph") as preset,
        Worker(charts, url=server, namespace=namespace),
        ToolBus(server, namespace=namespace) as bus,
    ):
        await bus.wait_for_tool("write_report", 10)
        everything = {"threshold": 0.0, "hops": 9}
        before = await eventually(lambda: for_actions(bus.tools, ["understand"], **everything))
        assert set(before) == {"draw_chart", "write_report"}
        assert set(before.missing) == names
        async with (
            EmbeddedGraph(Limits(memory=64 << 20)) as store,
            Worker(tools, url=server, namespace=namespace, provide={GraphStore: store}),
        ):
            await eventually(lambda: names <= set(for_actions(bus.tools, ["understand"], **everything)), 10)
            offered, results, at = await walked(bus, preset.operator("explorer"), script)
        await eventually(lambda: not names & set(for_actions(bus.tools, ["understand"], **everything)), 10)
    understanding, importing = ["graph_import", "graph_query", "graph_schema"], ["graph_import", "graph_schema"]
    asking, telling = ["draw_chart", "graph_query", "write_report"], ["draw_chart", "write_report"]
    assert offered == [understanding, understanding, importing, importing, understanding, asking, telling]
    assert at == ("tell",)
    assert results[4].data["rows"] == [["ann", 2]]
    assert "| who | knows |\n|---|---|\n| ann | 2 |" in results[5].content[0].data.decode()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", sorted(shipped_presets()))
async def test_a_preset_names_tools_that_its_command_serves(name, server, namespace, tmp_path):
    """Every tool of it appears when its command runs, the whole graph is reached from its operators' actions, and it can be published."""
    preset = load_preset(find_preset(name))
    assert preset.name == name
    graph = toolkit_of(preset, functions=False)
    assert all(graph.item(action) is not None for operator in preset.operators for action in operator.actions)
    assert len(msgspec.json.encode(preset)) < 10_000
    async with (
        toolbus(server, namespace, *served_by(preset), TOOLBUS_FILES_ROOT=str(tmp_path)),
        ToolBus(server, namespace=namespace) as bus,
    ):
        await eventually(lambda: {tool.id for tool in preset.tools} <= set(bus.tools), 30)
        view = for_actions(bus.tools, preset.operators[0].actions, threshold=0.0, hops=9, toolkit=graph)
        assert {action.id for action in view.actions} == {action.id for action in preset.actions}
        assert view.missing == {}


def test_a_name_means_a_file_before_a_shipped_preset(tmp_path, monkeypatch):
    """A file in the folder wins over a shipped preset, a path stays a path, and an unknown name is reported with the known ones."""
    monkeypatch.chdir(tmp_path)
    assert find_preset("graph").name == "graph.yaml"
    (tmp_path / "graph").write_text("name: mine\nactions: []\n")
    assert str(find_preset("graph")) == "graph"
    assert str(find_preset("data-analysis.yaml")) == "data-analysis.yaml"
    with pytest.raises(ToolkitError, match="no file 'analysis' here, and no preset of that name \\(there are: data-analysis, graph\\)"):
        find_preset("analysis")


async def test_shipped_presets_are_listed(command):
    """The command says each one's name, its actions and how its tools are served."""
    said = await command("memory://", "n", "toolkit", "presets")
    assert "data-analysis: connect → inspect → query → chart → report" in said
    assert "toolbus worker graph_store" in said
