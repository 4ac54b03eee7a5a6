"""Whole sets of tools become groups in one call each."""

from __future__ import annotations

import types
from dataclasses import dataclass

import pytest
from toolbus_workers import calculator

from tests.toolkit.graphs import facts
from toolbus import ConfigurationError, ToolBus, ToolService, Worker
from toolbus.toolkit import (
    Action,
    ToolGroup,
    ToolkitError,
    ToolkitService,
    group_of_definitions,
    group_of_module,
    group_of_registry,
    group_of_service,
    group_of_worker,
)


class Jokes(ToolService):
    """Tells jokes."""

    id = "toolkit-jokes"
    effect = "read"
    tools = (
        {"name": "tell-pun", "description": "a pun", "groups": ["fun"], "arguments": []},
        {"name": "tell-haiku", "description": "a haiku", "groups": ["fun", "art"], "arguments": []},
    )

    async def invoke(self, config: dict[str, object], arguments: dict[str, object]) -> str:  # type: ignore[override]
        """Tell one."""
        return "ha"


def told(group: ToolGroup) -> list[tuple[str, str, str]]:
    """Id, name and bus name of a group's tools."""
    return [(tool.id, tool.name, tool.bus_name) for tool in group.tools]


@pytest.mark.anyio
async def test_everything_of_a_service_or_group_of_the_bus(namespace: str, server: str) -> None:
    """The tools that a running worker registered become a group with their schemas, by service and by registry group."""
    async with Worker([Jokes], url=server, namespace=namespace), ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("tell-pun")
        service = group_of_service(bus.tools, "toolkit-jokes")
        assert (service.id, service.name, service.description) == ("service:toolkit-jokes", "toolkit-jokes", "Tells jokes.")
        assert told(service) == [(name, name, name) for name in ("tell-haiku", "tell-pun")]
        assert service.tools[0].definition() == bus.tools["tell-haiku"].definition()
        fun, art = (group_of_registry(bus.tools, name) for name in ("fun", "art"))
        assert (fun.id, [tool.name for tool in fun.tools], [tool.name for tool in art.tools]) == (
            "group:fun",
            ["tell-haiku", "tell-pun"],
            ["tell-haiku"],
        )
        for find in (group_of_service, group_of_registry):
            with pytest.raises(ToolkitError, match="'nothing' has no tools"):
                find(bus.tools, "nothing")


def test_everything_that_a_worker_would_serve() -> None:
    """A service's class, an instance and a module become the group that a worker of them publishes, without a bus."""
    for target in (Jokes, Jokes()):
        group = group_of_worker(target)
        assert (group.id, group.description) == ("worker:toolkit-jokes", "Tells jokes.")
        assert told(group) == [(name, name, name) for name in ("tell-haiku", "tell-pun")]
    group = group_of_worker(calculator)
    assert [tool.name for tool in group.tools] == ["calculator"]
    assert group.tools[0].parameters["required"] == ["expression"]
    with pytest.raises(ConfigurationError, match="defines no ToolService"):
        group_of_worker(types)


def test_every_function_of_a_module() -> None:
    """Public functions that the module defines run in this process; ``__all__`` says otherwise which they are."""
    module = types.ModuleType("sums", "Adds things.\n\nAnd more.")
    exec("def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\ndef _hidden(): pass\nclass Sum: pass\nNUMBER = 1", vars(module))
    vars(module)["imported"] = told
    group = group_of_module(module)
    assert (group.id, group.name, group.description, told(group)) == ("module:sums", "sums", "Adds things.", [("sums.add", "add", "")])
    assert group.tools[0].function is vars(module)["add"]
    assert group.tools[0].parameters["required"] == ["a", "b"]
    vars(module)["__all__"] = ["imported", "NUMBER"]
    assert [tool.name for tool in group_of_module(module).tools] == ["told"]
    with pytest.raises(ToolkitError, match="'empty' has no tools"):
        group_of_module(types.ModuleType("empty"))


@dataclass
class Listed:
    """A tool as an MCP client's objects say it."""

    name: str
    description: str | None
    inputSchema: dict[str, object]


def test_definitions_of_an_mcp_server_or_a_model() -> None:
    """Mappings and objects, with either name for the schema, become tools of the bus under ids of their group."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    given = [
        Listed("search", None, schema),
        {"name": "fetch", "description": "Fetch.", "inputSchema": schema},
        {"name": "add", "parameters": schema},
    ]
    group = group_of_definitions("mcp:web", given, name="Web", description="The Web.")
    assert (group.id, group.name, group.description) == ("mcp:web", "Web", "The Web.")
    assert told(group) == [(f"mcp:web/{name}", name, name) for name in ("add", "fetch", "search")]
    assert [tool.description for tool in group.tools] == ["", "Fetch.", ""]
    assert all(tool.parameters == schema for tool in group.tools)


@pytest.mark.parametrize(
    ("definitions", "why"),
    [
        ([], "'g' has no tools"),
        ([{"description": "d"}], "definition 0 of the group 'g' has no name"),
        ([{"name": "a"}, {"name": ""}], "definition 1"),
        ([{"name": "a"}, {"name": "a"}], "two definitions of the tool 'a'"),
        ([{"name": "a", "parameters": "string"}], "schema of the tool 'a' in the group 'g' is a str"),
    ],
)
def test_definitions_that_make_no_group_are_refused(definitions: list[object], why: str) -> None:
    """The error names the group and what is wrong in it."""
    with pytest.raises(ToolkitError, match=why):
        group_of_definitions("g", definitions)


def test_a_whole_set_is_added_in_one_call_and_goes_in_one() -> None:
    """An action that calls the group is recommended every tool of it; removing the group removes them."""
    service, action = ToolkitService(), Action("a", "Laugh")
    service.add_action(action)
    service.add_tool_group(group_of_worker(Jokes), [(action, 0.9)])
    assert [tool.name for tool in service.recommend_tools_actions([action])[0]] == ["tell-haiku", "tell-pun"]
    service.remove_tool_group("worker:toolkit-jokes")
    assert list(facts(service.get_toolkit())[0]) == ["a"]
