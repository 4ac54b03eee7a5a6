"""nanoClaw's names: its registry and executor in process, and the same tools over the bus."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from tests.contract import Place
from toolbus import Settings, Worker, sync
from toolbus.bus.values.results import ConfigurationError
from toolbus.compat import nanoclaw
from toolbus.compat.nanoclaw import (
    BusRegistry,
    ToolDefinition,
    ToolExecutor,
    ToolRegistry,
    ToolResult,
    create_crawler_tools,
    create_data_tools,
    create_file_tools,
    init_tools,
    register,
    registry,
    tool,
)
from toolbus.compat.nanoclaw.builtin import city_weather

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
PAGE = {"type": "object", "properties": {"url": {"type": "string"}, "extract_type": {"type": "string"}}, "required": ["url"]}


def define() -> None:
    """Register this module's tools, as importing the module that defines them does."""

    @tool(name="search", description="搜索", parameters=QUERY, category="crawler")
    def search(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"results": [arguments["query"]]}

    @tool(name="maybe", description="May fail", parameters={"type": "object", "properties": {}})
    def maybe(arguments: dict[str, Any]) -> ToolResult:
        if arguments.get("how") == "exit":
            sys.exit("gone")
        return ToolResult.fail("no luck") if arguments.get("how") == "fail" else ToolResult.ok(arguments)

    @tool("later", "Answer later", {"type": "object", "properties": {}})
    async def later(arguments: dict[str, Any]) -> str:
        return "später"

    assert search({"query": "x"}) == {"results": ["x"]}
    register("broken", lambda arguments: arguments["missing"], "Break", {"type": "object", "properties": {}})


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the registry with only this module's tools in it; restore its content afterwards."""
    monkeypatch.setattr(registry, "_tools", {})
    define()


def call(name: str, arguments: Any, id: str = "c") -> dict[str, Any]:
    """Return a model's tool call."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_definitions_and_results_have_that_projects_form() -> None:
    """A definition tells itself in the OpenAI form, a result exactly success, data and error."""
    definition = ToolDefinition("n", "d", QUERY, print)
    assert definition.category == "general"
    assert definition.to_openai_format() == {"type": "function", "function": {"name": "n", "description": "d", "parameters": QUERY}}
    assert ToolResult.ok([1]).to_dict() == {"success": True, "data": [1], "error": None}
    assert ToolResult.fail("no").to_dict() == {"success": False, "data": None, "error": "no"}
    assert ToolResult(success=True) == ToolResult.ok()


def test_there_is_one_registry_and_registering_overwrites() -> None:
    """ToolRegistry() is the global one; a later registration of a name takes its place."""
    assert ToolRegistry() is registry
    found = registry.get("search")
    assert found is not None
    assert (found.description, found.category) == ("搜索", "crawler")
    assert [each["function"]["name"] for each in registry.list_all()] == ["broken", "later", "maybe", "search"]
    register("search", lambda arguments: "new", "New", QUERY)
    assert registry.execute("search", {"query": "x"}) == {"success": True, "data": "new", "error": None}
    assert registry.get("nothing") is None


def test_execute_never_raises() -> None:
    """An unknown tool, an exception, an exit and a failed result are answers."""
    assert registry.execute("nothing", {}) == {"success": False, "data": None, "error": "Tool not found: nothing"}
    assert registry.execute("broken", {}) == {"success": False, "data": None, "error": "'missing'"}
    assert registry.execute("maybe", {"how": "exit"}) == {"success": False, "data": None, "error": "gone"}
    assert registry.execute("maybe", {"how": "fail"}) == {"success": False, "data": None, "error": "no luck"}
    assert registry.execute("later", {}) == {"success": True, "data": "später", "error": None}
    assert registry.execute("search", None)["success"] is False  # type: ignore[arg-type]


def test_tool_calls_become_messages_in_order() -> None:
    """Each message carries its call's id and name, and the JSON of the result with non-ASCII kept."""
    calls = [call("later", "", "1"), call("search", '{"query": "猫"}', "2"), call("nothing", "{}", "3")]
    calls.append(call("search", {"query": "x"}, "4"))
    messages = ToolExecutor().process_tool_calls(calls)
    assert [(message["role"], message["tool_call_id"], message["name"]) for message in messages] == [
        ("tool", "1", "later"),
        ("tool", "2", "search"),
        ("tool", "3", "nothing"),
        ("tool", "4", "search"),
    ]
    assert messages[0]["content"] == '{"success": true, "data": "später", "error": null}'
    assert messages[1]["content"] == '{"success": true, "data": {"results": ["猫"]}, "error": null}'
    assert json.loads(messages[2]["content"])["error"] == "Tool not found: nothing"


@pytest.mark.parametrize("arguments", ['{"query": ', "[1]", "7", "[" * 100_000, '"text"', '{"query": "x", "query": "y"}'])
def test_malformed_arguments_are_told_to_the_model(arguments: str) -> None:
    """Arguments that are no JSON object give an error message that says so, and the other calls go on."""
    bad, good = ToolExecutor().process_tool_calls([call("search", arguments), call("search", '{"query": "x"}')])
    assert "not a JSON object" in json.loads(bad["content"])["error"]
    assert json.loads(good["content"])["success"]


def test_answers_that_json_can_not_tell() -> None:
    """Values without a JSON form are told as text, and rings as a failure."""
    ring: list[Any] = []
    ring.append(ring)
    register("path", lambda arguments: {"path": Path("a")}, "d", {"type": "object"})
    register("ring", lambda arguments: ring, "d", {"type": "object"})
    path, circle = ToolExecutor().process_tool_calls([call("path", "{}"), call("ring", "{}")])
    assert json.loads(path["content"])["data"] == {"path": "a"}
    assert json.loads(circle["content"])["success"] is False


def test_requests_have_that_projects_default_model() -> None:
    """build_request carries the messages and every tool, and lets the model choose."""
    messages = [{"role": "user", "content": "hi"}]
    request = ToolExecutor(registry).build_request(messages)
    assert request == {"model": "glm-5", "messages": messages, "tools": registry.list_all(), "tool_choice": "auto"}
    assert ToolExecutor().build_request(messages, model="other")["model"] == "other"


@pytest.fixture
def bus(server: str, namespace: str) -> Iterator[sync.ToolBus]:
    """Provide a synchronous bus, with a worker of this module's tools."""
    settings = Settings.load({}, url=server, namespace=namespace)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: Worker(sys.modules[__name__], settings=settings))),
        sync.ToolBus(settings=settings) as made,
    ):
        yield made


def test_a_worker_serves_the_module_and_the_executor_calls_over_the_bus(bus: sync.ToolBus) -> None:
    """The same messages come from tools that run elsewhere; schemas are enforced there."""
    calls = [call("later", ""), call("search", '{"query": "猫"}'), call("maybe", '{"how": "fail"}'), call("nothing", "{}")]
    here, there = ToolExecutor(), ToolExecutor(BusRegistry(bus.bind(user="al"), bus))
    assert there.process_tool_calls(calls) == here.process_tool_calls(calls)
    names = [each["function"]["name"] for each in there.build_request([])["tools"]]
    assert names == sorted(names)
    assert {"broken", "later", "maybe", "search"} <= set(names)
    assert BusRegistry(bus).execute("maybe", {"how": "x"}) == {"success": True, "data": {"how": "x"}, "error": None}
    assert "query" in BusRegistry(bus).execute("search", {})["error"]
    assert "missing" in BusRegistry(bus).execute("broken", {})["error"]
    found = BusRegistry(bus).get("search")
    assert found is not None
    assert (found.category, found.handler({"query": "x"})) == ("crawler", ToolResult.ok({"results": ["x"]}))


def test_a_closed_bus_is_an_error_like_any_other(bus: sync.ToolBus) -> None:
    """Also when the bus can't be used, execute answers with an error."""
    remote = BusRegistry(bus)
    bus.close()
    assert "not open" in remote.execute("search", {"query": "x"})["error"]
    bus.open()


@pytest.mark.anyio
async def test_values_of_handlers_reach_callers_of_the_bus(place: Place) -> None:
    """A dict is data, text is text, nothing is null, and a failure keeps its message."""
    register("nothing_to_say", lambda arguments: None, "d", {"type": "object"})
    async with place.serving(sys.modules[__name__]) as bus:
        assert (await bus.call("search", {"query": "x"})).data == {"results": ["x"]}
        assert (await bus.call("later")).output == "später"
        assert (await bus.call("nothing_to_say")).success
        failed = await bus.call("maybe", {"how": "fail"})
        assert failed.error is not None
        assert failed.error.message == "no luck"


def test_ready_made_data_tools_run_here() -> None:
    """create_data_tools gives definitions whose handlers take a dict, and failures are answers."""
    tools = {each.name: each for each in create_data_tools()}
    calculator = tools["calculator"]
    assert calculator.category == "data"
    assert calculator.handler({"expression": "6*7"}).data["result"] == 42
    registry.register(calculator)
    assert registry.execute("calculator", {"expression": "1/0"})["success"] is False
    assert registry.execute("calculator", {"wrong": 1})["success"] is False


def test_data_tools_take_and_answer_what_that_projects_do() -> None:
    """Names of arguments, operations and fields of answers are those of its code."""
    tools = {each.name: each for each in create_data_tools()}
    registry.register(tools["text_process"])
    registry.register(tools["json_process"])

    def answer(name: str, **arguments: Any) -> Any:
        result = registry.execute(name, arguments)
        return result["data"] if result["success"] else result["error"]

    asked = {"count": {"count": 8}, "lines": {"lines": 2}, "words": {"words": 3}, "upper": {"result": "AÄ B\nCDE"}}
    asked |= {"lower": {"result": "aä b\ncde"}, "reverse": {"result": "edc\nb Äa"}}
    assert tools["text_process"].parameters["properties"]["operation"]["enum"] == list(asked)
    assert {operation: answer("text_process", text="aÄ b\ncde", operation=operation) for operation in asked} == asked
    given = '{"b": [1], "ä": null}'
    said = {"parse": {"data": {"b": [1], "ä": None}}, "format": {"result": '{\n  "b": [\n    1\n  ],\n  "ä": null\n}'}}
    said |= {"keys": {"keys": ["b", "ä"]}, "validate": {"valid": True}}
    assert tools["json_process"].parameters["properties"]["operation"]["enum"] == list(said)
    assert {operation: answer("json_process", json_string=given, operation=operation) for operation in said} == said
    for wrong in ({"json_string": "[", "operation": "parse"}, {"json_string": "[1]", "operation": "keys"}, {"json_string": "1"}):
        assert isinstance(answer("json_process", **wrong), str)
    assert "operation is one of count, " in answer("text_process", text="a", operation="shout")
    assert "2,000,000" in answer("text_process", text="a" * 2_000_001, operation="upper")


def test_the_weather_of_a_city_has_that_projects_fields() -> None:
    """A city is asked for, and its facts stand beside the whole report; a failure stays one."""
    now = {"temperature": 21.5, "humidity": 40.0, "sky": "clear", "time": "2026-11-24T12:00"}
    asked: list[Any] = []

    def report(arguments: dict[str, Any]) -> ToolResult:
        asked.append(arguments)
        return ToolResult.fail("no such place") if arguments["location"] == "?" else ToolResult.ok({"current": now, "days": []})

    made = city_weather(ToolDefinition("get_weather", "d", {}, report, "weather"))
    registry.register(made)
    assert made.parameters["required"] == ["city"]
    data = registry.execute("get_weather", {"city": "北京"})["data"]
    facts = {"city": "北京", "temperature": 21.5, "humidity": 40.0, "description": "clear", "query_time": "2026-11-24T12:00"}
    assert {name: data[name] for name in facts} == facts
    assert data["report"]["current"] == now
    assert registry.execute("get_weather", {"city": "?"})["error"] == "no such place"
    assert asked[0] == {"location": "北京"}


def test_an_executor_may_answer_from_what_it_has_run() -> None:
    """A successful call with the same name and arguments is not run again, within its time, and only when that is asked for."""
    ran: list[Any] = []
    register("counted", lambda arguments: ran.append(arguments) or len(ran), "d", {"type": "object"})
    calls = [{"id": str(each), "function": {"name": "counted", "arguments": '{"a": 1, "b": 2}'}} for each in range(2)]
    ToolExecutor().process_tool_calls(calls)
    assert len(ran) == 2
    executor = ToolExecutor(enable_cache=True)
    said = [json.loads(each["content"])["data"] for each in executor.process_tool_calls([*calls, *calls])]
    assert said == [3] * 4
    executor.clear_history()
    executor.process_tool_calls(calls[:1])
    assert len(ran) == 4
    ToolExecutor(enable_cache=True, cache_ttl=0).process_tool_calls(calls)
    assert len(ran) == 6
    failing = [{"id": "1", "function": {"name": "unknown", "arguments": "{}"}}]
    assert all("Tool not found" in each["content"] for each in executor.process_tool_calls(failing * 2))


def test_file_tools_are_told_the_project_of_the_conversation() -> None:
    """The context's project_id becomes an argument of tools whose names begin with ``file_``, and of no other."""
    for name in ("file_seen", "seen"):
        register(name, lambda arguments: arguments, "d", {"type": "object"})
    calls = [{"id": "1", "function": {"name": name, "arguments": '{"path": "a"}'}} for name in ("file_seen", "seen")]
    said = [json.loads(each["content"])["data"] for each in ToolExecutor().process_tool_calls(calls, {"project_id": "p", "user_id": 1})]
    assert said == [{"path": "a", "project_id": "p"}, {"path": "a"}]


def test_ready_made_tools_come_from_the_modules_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that streams text, progress and a result is collected; sets without any installed tool say what to install."""
    from toolbus import Progress
    from toolbus.bus.values.results import ToolResult as BusResult
    from toolbus.bus.worker.service import ToolService

    for name in ("web_search", "fetch_page", "crawl_batch"):
        monkeypatch.setitem(sys.modules, f"toolbus_workers.{name}", None)
    with pytest.raises(ConfigurationError, match="web_search"):
        create_crawler_tools()

    # Classes: a decorated function would stay a tool of this process after the test.
    class FetchPage(ToolService):
        id = "nanoclaw-fetch"
        effect = "read"
        tools = ({"name": "fetch_page", "description": "Fetch", "category": "general", "parameters": PAGE},)

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Any]:
            yield "some text"
            yield Progress(1)
            if arguments.get("extract_type") == "links":
                yield BusResult.ok({"links": [arguments["url"]]})

    fetching = types.ModuleType("toolbus_workers.fetch_page")
    FetchPage.__module__ = fetching.__name__
    fetching.FetchPage = FetchPage  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toolbus_workers.fetch_page", fetching)
    prepared: list[str] = []

    class WebSearch(ToolService):
        id = "nanoclaw-search"
        effect = "read"
        tools = ({"name": "web_search", "description": "Search", "category": "crawler", "parameters": QUERY},)

        async def startup(self) -> None:
            prepared.append("ready")

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> BusResult:
            return BusResult.ok({"results": [arguments["query"], *prepared]})

    searching = types.ModuleType("toolbus_workers.web_search")
    WebSearch.__module__ = searching.__name__
    searching.WebSearch = WebSearch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toolbus_workers.web_search", searching)
    made = create_crawler_tools()
    assert [(each.name, each.category) for each in made] == [("web_search", "crawler"), ("fetch_page", "general")]
    assert made[0].handler({"query": "x"}).data == {"results": ["x", "ready"]}
    assert "query" in made[0].handler({}).error
    assert made[0].parameters == QUERY
    assert made[1].handler({"url": "u"}).data == "some text"
    assert made[1].handler({"url": "u", "extract_type": "links"}).data == {"links": ["u"]}
    register("calculator", lambda arguments: "mine", "d", {"type": "object"})
    init_tools()
    assert registry.get("fetch_page") is not None
    assert registry.execute("calculator", {})["data"] == "mine"


def test_file_tools_stay_in_their_folder(tmp_path: Path) -> None:
    """Files are written, listed, read and deleted; nothing outside of the folder is reached, by dots, links or absolute paths."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("s")
    (root / "link").symlink_to(tmp_path)
    for each in create_file_tools(str(root)):
        assert each.category == "file"
        registry.register(each)

    def run(name: str, **arguments: Any) -> Any:
        return registry.execute(name, arguments)

    assert run("file_mkdir", path="a/b")["success"]
    assert run("file_write", path="a/b/c.txt", content="é")["data"] == {"written": 2}
    assert run("file_read", path="a/b/c.txt")["data"] == {"content": "é"}
    assert run("file_write", path="a/b/c.txt", content="!", mode="append")["data"] == {"written": 1}
    assert run("file_read", path="a/b/c.txt")["data"] == {"content": "é!"}
    assert "mode is one of" in run("file_write", path="a/b/c.txt", content="!", mode="x")["error"]
    assert run("file_list", path="a/b")["data"] == {"entries": [{"name": "c.txt", "type": "file"}], "total": 1}
    assert run("file_list")["data"]["total"] == 2
    assert run("file_exists", path="nothing")["data"] == {"exists": False}
    for path in ("../secret", "link/secret", str(tmp_path / "secret")):
        assert "outside" in run("file_read", path=path)["error"]
        assert "outside" in run("file_write", path=path, content="x")["error"]
        assert "outside" in run("file_exists", path=path)["error"]
    assert run("file_delete", path="a/b/c.txt")["success"]
    assert run("file_delete", path=".")["success"] is False
    assert run("file_delete", path="a")["success"] is False
    (root / "big").write_bytes(b"x" * 1_000_001)
    assert "larger" in run("file_read", path="big")["error"]
    assert "larger" in run("file_write", path="new", content="x" * 1_000_001)["error"]
    assert "larger" in run("file_write", path="big", content="x", mode="append")["error"]


def test_every_public_name_is_there() -> None:
    """Every name that nanoClaw's modules export can be imported."""
    assert all(hasattr(nanoclaw, name) for name in nanoclaw.__all__)
