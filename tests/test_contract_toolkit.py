"""Published toolkit graphs over every transport: owners, hot updates, and tools narrowed to what makes sense now."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.endpoint import calls, endpoint, says
from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus, tool
from toolbus.agent import Agent, ChatEndpoint
from toolbus.bus.values.results import RegistrationRefused, ToolkitError
from toolbus.operations.cli.toolkit import rows_of
from toolbus.toolkit import Preset, for_actions, read_preset

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[1] / "docs" / "how-to" / "toolkit.md"
ANALYSIS = """\
name: analysis
tools:
  - {id: inspect_schema}
  - {id: run_sql}
  - {id: explain}
groups:
  - {id: charts, group: charting}
  - {id: mail, service: post}
actions:
  - id: inspect
    name: inspect schema
    description: Find out which tables there are
    next: [query]
    call: [inspect_schema]
  - id: query
    description: Ask the database
    next: [{to: report, score: 0.7}]
    call: [run_sql, {to: explain, score: 0.6}]
  - id: report
    call: [charts, mail]
"""


MORE = """\
name: more
tools: [{id: run_sql}]
actions:
  - {id: query, call: [run_sql]}
  - {id: extra, call: [run_sql]}
"""


@tool(service="data", effect="read")
async def inspect_schema() -> str:
    """Say the tables."""
    return "orders"


@tool(service="data", effect="read")
async def run_sql(statement: str) -> str:
    """Run a statement."""
    return "3"


@tool(service="drawing", effect="read", groups=["charting"])
async def bar_chart() -> str:
    """Draw bars."""
    return "|||"


@tool(service="post", effect="once")
async def send_mail() -> str:
    """Send a mail."""
    return "sent"


@tool(service="other", effect="read")
async def weather() -> str:
    """Say the weather."""
    return "rain"


async def publish(bus: ToolBus, text: str, owner: str = "ann") -> Preset:
    """Publish a preset as ``toolbus toolkit load`` does."""
    preset = read_preset(text.encode())
    await bus.put(f"toolkit/{preset.name}", msgspec.json.encode(preset), owner)
    return preset


NAMED = """\
name: named
tools:
  - {id: ask, bus: run_sql}
  - {id: look, bus: inspect_schema}
  - {id: gone, bus: nowhere}
groups:
  - {id: charts, group: charting}
actions:
  - id: query
    call: [{to: ask, score: 0.9}, {to: gone, score: 0.8}, {to: charts, score: 0.7}]
    next: [{to: more, score: 0.6}]
  - id: more
    call: [{to: ask, score: 0.95}, {to: look, score: 0.55}]
"""


async def test_a_view_knows_the_vertices_of_its_tools(place: Place) -> None:
    """Tools whose ids differ from their names on the bus, and those of live groups, have their ids and best scores."""
    async with place.serving(inspect_schema, run_sql, bar_chart, role="operator") as bus:
        await publish(bus, NAMED)
        await eventually(lambda: len(bus.tools) == 3 and for_actions(bus.tools, ["query"]).actions)
        view = for_actions(bus.tools, ["query"], hops=1)
        found = {name: view.vertices(name) for name in [*view, "nowhere", "weather"]}
        assert found == {"bar_chart": ["charts"], "inspect_schema": ["look"], "run_sql": ["ask"], "nowhere": ["gone"], "weather": []}
        assert [view.score(each) for each in ("ask", "look", "charts", "gone", "query", "x")] == [0.95, 0.55, 0.7, 0.8, None, None]
        assert [row[1:4] for row in rows_of(view)] == [
            ("query", "query", None),
            ("more", "more", 0.6),
            ("bar_chart", "bar_chart", 0.7),
            ("look", "inspect_schema", 0.55),
            ("ask", "run_sql", 0.95),
            ("gone", "gone", 0.8),
        ]


async def test_tools_are_narrowed_to_what_makes_sense(place: Place) -> None:
    """Actions lead to live tools by name, service and registry group; definitions, calls and the prompt follow them."""
    async with place.serving(inspect_schema, run_sql, bar_chart, send_mail, weather, role="operator") as bus:
        await publish(bus, ANALYSIS)
        await eventually(lambda: len(bus.tools) == 5 and for_actions(bus.tools, ["query"]).actions)
        assert list(for_actions(bus.tools, ["inspect schema"])) == ["inspect_schema"], "a name does, too"
        query = for_actions(bus.tools, ["query"], threshold=0.65, hops=1)
        assert list(query) == ["bar_chart", "run_sql", "send_mail"]
        assert [each["name"] for each in query.definitions()] == ["bar_chart", "run_sql", "send_mail"]
        assert [action.id for action in query.actions] == ["query", "report"]
        assert list(for_actions(bus.tools, ["query"], threshold=0.75, hops=1)) == ["run_sql"]
        assert list(for_actions(bus.tools, ["nowhere"])) == []
        loose = for_actions(bus.tools, ["query"], tell_missing=True)
        assert list(loose.missing) == ["explain"]
        assert loose.prompt() == (
            "Actions that make sense now:\n- query (at hand): Ask the database\n  tools: run_sql, explain (not available now)"
        )
        assert "explain" not in for_actions(bus.tools, ["query"]).prompt()
        executor = bus.executor(tools=query)
        assert (await executor.execute("run_sql", {"statement": "x"})).output == "3"
        error = (await executor.execute("weather")).error
        assert error is not None
        assert error.type == "not_found"
        with pytest.raises(ToolkitError, match="threshold"):
            for_actions(bus.tools, ["query"], threshold=2)
        await bus.delete("toolkit/analysis")


@pytest.mark.usefixtures("slow")
async def test_a_graph_is_shared_and_updated_while_agents_run(place: Place) -> None:
    """Another agent sees a preset, its change and its end; presets are merged, and a broken one is left out alone."""
    async with place.serving(inspect_schema, run_sql, role="operator") as bus, place.bus(role="operator") as other:
        await publish(bus, ANALYSIS)

        def seen(action: str) -> list[str]:
            return list(for_actions(other.tools, [action]))

        await eventually(lambda: seen("query") == ["run_sql"])
        await publish(bus, ANALYSIS.replace("call: [run_sql, {", "call: [inspect_schema, {"))
        await eventually(lambda: seen("query") == ["inspect_schema"])
        await publish(
            bus, "name: more\ntools: [{id: run_sql}]\nactions:\n  - {id: query, call: [run_sql]}\n  - {id: extra, call: [run_sql]}\n"
        )
        await eventually(lambda: seen("extra") == ["run_sql"])
        assert seen("query") == ["inspect_schema", "run_sql"], "edges of two presets add up"
        await bus.put("toolkit/broken", b'{"name": "broken", "actions": 3}', "ann")
        await bus.put("toolkit/sly", json.dumps({"name": "sly", "tools": [{"id": "t", "function": "os:system"}]}).encode(), "ann")
        await bus.delete("toolkit/analysis", "ann")
        await eventually(lambda: seen("query") == ["run_sql"])
        for name in ("more", "broken", "sly"):
            await bus.delete(f"toolkit/{name}", "ann")
        await eventually(lambda: not seen("extra"))


async def test_a_preset_belongs_to_who_published_it_first(place: Place) -> None:
    """Its owner changes and deletes it; others are told whose it is, until an operator deletes it."""
    async with place.bus(role="operator") as bus:
        await publish(bus, ANALYSIS)
        await publish(bus, ANALYSIS)
        for attempt in (publish(bus, ANALYSIS, "bob"), bus.delete("toolkit/analysis", "bob")):
            with pytest.raises(RegistrationRefused, match="ann"):
                await attempt
        assert await bus.delete("toolkit/analysis")
        await publish(bus, ANALYSIS, "bob")
        assert await bus.delete("toolkit/analysis", "bob")
        assert not await bus.delete("toolkit/analysis", "bob")
        await publish(bus, ANALYSIS)
        assert await bus.delete("toolkit/analysis", "ann")


async def test_the_example_of_the_guide_narrows_a_request(place: Place) -> None:
    """The preset of the guide is right, its mistake is told as the guide says, and its request offers what is recommended."""
    page = GUIDE.read_text("utf-8")
    (preset,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (mistake,) = re.findall(r"```\n(analysis\.yaml:.*?)\n```", page, re.DOTALL)
    with pytest.raises(ToolkitError, match=re.escape(mistake)):
        read_preset(preset.replace("score: 0.7", "score: 7").encode(), "analysis.yaml")
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "for_actions" in block)
    async with place.serving(inspect_schema, run_sql, bar_chart, send_mail, weather, role="operator") as bus:
        await publish(bus, preset.replace(", bus: data_analysis", ""))
        await eventually(lambda: len(bus.tools) == 5 and for_actions(bus.tools, ["query"]).actions)
        scope: dict[str, Any] = {"bus": bus, "messages": [{"role": "user", "content": "?"}]}
        exec(code, scope)
        await bus.delete("toolkit/analysis")
    assert [each["function"]["name"] for each in scope["body"]["tools"]] == ["bar_chart", "run_sql", "send_mail"]
    assert scope["body"]["messages"][0]["content"].startswith("Actions that make sense now:")


async def test_an_agent_walks_from_action_to_action(place: Place) -> None:
    """Each turn offers what makes sense where the last call led to, and the model is told where it stands."""
    from toolbus.toolkit import Walk

    script = [calls(("inspect_schema", {})), calls(("run_sql", {"statement": "x"})), calls(("bar_chart", {})), says("done")]
    async with place.serving(inspect_schema, run_sql, bar_chart, send_mail, weather, role="operator") as bus, endpoint(script) as model:
        await publish(bus, ANALYSIS)
        await eventually(lambda: len(bus.tools) == 5 and for_actions(bus.tools, ["inspect"]).actions)
        walk = Walk(bus.tools, ["inspect"])
        async with ChatEndpoint(model.url, "k") as chat:
            answer = await Agent(chat, bus.executor(model="m"), walk=walk).ask("How many orders?")
        await bus.delete("toolkit/analysis")
    assert answer.text == "done"
    offered = [[each["function"]["name"] for each in body["tools"]] for body in model.bodies]
    inspecting, querying, reporting = ["inspect_schema", "run_sql"], ["bar_chart", "run_sql", "send_mail"], ["bar_chart", "send_mail"]
    assert offered == [inspecting, inspecting, querying, reporting]
    assert walk.at == ("report",)
    told: list[Any] = [body["messages"][0]["content"] for body in model.bodies]
    assert "- inspect schema [inspect] (at hand)" in told[0]
    assert "- query (at hand)" in told[2]
    assert "- report (at hand)" in told[3]
