"""The registry of tools in one process: its table, and the same execution as over a bus."""

from __future__ import annotations

import types
from typing import Any

import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolRegistry, ToolResult, ToolService, tool
from toolbus.bus.values.events import Finished
from toolbus.bus.values.results import RegistrationRefused

pytestmark = pytest.mark.anyio


@tool(service="local-tests", effect="read")
async def knowledge_search(query: str) -> ToolResult:
    """Search the documents."""
    return ToolResult(output="found 1", data={"documents": [{"id": f"{query}-7"}]})


@tool(service="local-tests", effect="read")
def get_document_info(document: str, pages: int = 1) -> dict[str, Any]:
    """Say what a document is."""
    return {"document": document, "pages": pages}


@tool(service="local-tests", effect="read")
async def broken() -> str:
    """Fail on every call."""
    raise RuntimeError("out of order")


def plain(text: str) -> str:
    """Shout a text."""
    return text.upper()


class Counting(ToolService):
    """Keeps a count, and cleans up."""

    id = "local-counting"
    effect = "read"
    cleaned = 0
    tools = ({"name": "count", "description": "Count", "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}}},)

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Count."""
        return f"{user}: {arguments.get('by', 1)}"

    async def cleanup(self) -> None:
        """Remember it, and fail."""
        type(self).cleaned += 1
        raise RuntimeError("cleaning up failed")


class Quiet(ToolService):
    """Cleans up, too."""

    id = "local-quiet"
    effect = "read"
    cleaned = 0
    tools = ({"name": "hush", "description": "Hush", "arguments": []},)

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Hush."""
        return ""

    async def cleanup(self) -> None:
        """Remember it."""
        type(self).cleaned += 1


def test_the_table_is_sorted_and_the_same_each_time() -> None:
    """Tools are listed by name, an empty registry has no definitions, and a function needs no decorator."""
    assert ToolRegistry().function_definitions() == []
    registry = ToolRegistry(plain, Counting, broken)
    assert [each.name for each in registry.list_tools()] == ["broken", "count", "plain"]
    assert [each["name"] for each in registry.function_definitions()] == ["broken", "count", "plain"]
    assert registry.function_definitions()[2] == {
        "name": "plain",
        "description": "Shout a text.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False},
    }
    assert registry.get("count") is not None
    assert registry.get("nothing") is None


def test_the_first_keeps_its_name() -> None:
    """A second tool of a name is refused and changes nothing, unless it is to take the first one's place."""
    registry = ToolRegistry(plain)

    def other(text: str) -> str:
        """Whisper a text."""
        return text.lower()

    whispering = tool("plain", service="whispers", replace=True)(other)
    for again in (whispering, plain):
        with pytest.raises(RegistrationRefused, match="plain"):
            registry.register(again)
    found = registry.get("plain")
    assert found is not None
    assert found.description == "Shout a text."
    registry.register(whispering, replace=True)
    found = registry.get("plain")
    assert found is not None
    assert (found.description, len(registry.list_tools())) == ("Whisper a text.", 1)
    with pytest.raises(ConfigurationError, match="defines no"):
        registry.register(types.ModuleType("empty"))
    assert len(registry.list_tools()) == 1


async def test_tools_run_and_failures_are_results(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments are cast and validated; a crash and a missing tool are failed results, told in the log and to observers."""
    registry = ToolRegistry(plain, broken, get_document_info, Counting, user="ann")
    with pytest.raises(ConfigurationError, match="async with"):
        await registry.execute("plain", {"text": "a"})
    async with registry:
        ends: list[tuple[str, bool]] = []
        stop = registry.events.subscribe(
            lambda told: ends.append((told.tool, told.event.result.success)) if isinstance(told.event, Finished) else None
        )
        assert (await registry.execute("plain", {"text": "a"})).output == "A"
        assert (await registry.execute("get_document_info", {"document": "d", "pages": "3"})).data == {"document": "d", "pages": 3}
        assert (await registry.execute("count", {"by": 2})).output == "ann: 2"
        errors = [(await registry.execute(*call)).error for call in (("broken",), ("missing",), ("plain", {}))]
        stop()
        with pytest.raises(ConfigurationError, match="before"):
            registry.register(plain)
    assert [error.type for error in errors if error is not None] == ["tool_error", "not_found", "invalid_arguments"]
    assert ends == [("plain", True), ("get_document_info", True), ("count", True), ("broken", False), ("missing", False), ("plain", False)]
    told = [record.getMessage() for record in caplog.records if "execution." in record.getMessage()]
    assert any("execution.crashed" in line and "broken" in line for line in told)
    assert any("execution.failed" in line and "missing" in line for line in told)


async def test_results_are_referred_to_and_clean_ups_all_run() -> None:
    """A call takes a part of an earlier result of the session; at the end each service cleans up although one fails."""
    Counting.cleaned = Quiet.cleaned = 0
    async with ToolRegistry(knowledge_search, get_document_info, Counting, Quiet, session="s") as registry:
        await registry.execute("knowledge_search", {"query": "tea"})
        wanted = {"document": {"$from": "knowledge_search", "path": "documents[0].id"}}
        assert (await registry.execute("get_document_info", wanted)).data == {"document": "tea-7", "pages": 1}
    assert (Counting.cleaned, Quiet.cleaned) == (1, 1)


async def test_the_same_tools_give_the_same_over_a_bus(place: Place) -> None:
    """Results, errors and observations of a turn are alike here and with a worker behind any transport."""
    calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(
            [
                ("knowledge_search", '{"query": "tea"}'),
                ("get_document_info", '{"document": {"$from": "c0", "path": "documents[0].id"}, "pages": "2"}'),
                ("get_document_info", '{"document": 7, "page": 1}'),
                ("broken", "{}"),
                ("count", "{"),
                ("nothing", "{}"),
            ]
        )
    ]
    message = {"role": "assistant", "tool_calls": calls}
    async with ToolRegistry(knowledge_search, get_document_info, broken, Counting, user="ann") as registry:
        here = await registry.executor().process_tool_calls(message)
        definitions = registry.function_definitions()
    async with place.serving(knowledge_search, get_document_info, broken, Counting) as bus:
        await bus.wait_for_tool("count")
        there = await bus.executor(user="ann").process_tool_calls(message)
        assert bus.tools.definitions("bare") == definitions
    assert here == there


class Account:
    """An object that is no service."""

    def __init__(self, name: str) -> None:
        self.name = name

    def owner(self, greeting: str = "Hello") -> str:
        """Greet the owner."""
        return f"{greeting} {self.name}"

    async def letters(self):
        """Spell the owner's name."""
        for letter in self.name:
            yield letter

    @classmethod
    def kinds(cls) -> list[str]:
        """List the kinds."""
        return [cls.__name__]


async def test_an_objects_methods_are_tools_of_the_registry_alone() -> None:
    """Methods need no decorator and run on their own object, also when two objects of a class are registered at once."""
    ada, bob = ToolRegistry(Account("ada").owner, Account("ada").letters, Account.kinds), ToolRegistry(Account("bob").owner)
    assert [each.name for each in ada.list_tools()] == ["kinds", "letters", "owner"]
    assert ada.function_definitions()[2]["description"] == "Greet the owner."
    assert [*ada.function_definitions()[2]["parameters"]["properties"]] == ["greeting"]
    async with ada, bob:
        assert (await ada.execute("owner", {"greeting": "Hi"})).output == "Hi ada"
        assert (await bob.execute("owner")).output == "Hello bob"
        assert (await ada.execute("letters")).output == "ada"
        assert (await ada.execute("kinds")).data == ["Account"]
    with pytest.raises(RegistrationRefused):
        bob.register(Account("cy").owner)
