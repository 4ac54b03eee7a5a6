"""Nothing that a user is told names a tool that is for others."""

from __future__ import annotations

import pytest

from tests.contract import Place
from toolbus import Settings, ToolBus, ToolRegistry, ToolService, tool
from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord
from toolbus.bus.client.calls.refusals import unknown_tool
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.bus.worker.collect import collect

pytestmark = pytest.mark.anyio


@tool(service="hiding", effect="read", tenants=["alice"])
async def audit_books() -> str:
    """Audit the books."""
    return "all well"


@tool(service="hiding", effect="read")
async def order_books() -> str:
    """Order books."""
    return "ordered"


async def answers(bus: ToolBus, name: str) -> dict[str, ToolResult]:
    """Return the answer of every way of calling a tool as bob, or as nobody."""
    bob = bus.bind(user="bob")
    async with bob.stream(name) as call:
        streamed = await call.result()
    [message] = await bob.executor().process_tool_calls([{"id": "1", "function": {"name": name, "arguments": "{}"}}])
    return {
        "call with an option": await bus.call(name, user="bob"),
        "call without a user": await bus.call(name),
        "call of a view": await bob.call(name),
        "call that waits": await bob.call(name, wait=0.05),
        "stream": streamed,
        "execute": await bob.executor().execute(name),
        "model": ToolResult(success=False, output=message["content"]),
    }


@pytest.mark.parametrize("name", ["audit_books", "audit_book", "audit_bookss"])
async def test_no_answer_suggests_a_tool_for_others(place: Place, name: str) -> None:
    """A user who names a hidden tool, or nearly, is told of similar tools of his own alone."""
    async with place.serving([audit_books, order_books]) as bus:
        await bus.wait_for_tool("audit_books")
        for way, answer in (await answers(bus, name)).items():
            told = repr(answer).replace(f"no tool '{name}'", "")
            assert not answer.success, way
            assert "audit_books" not in told, way
        alice = await bus.call("audit_bookss", user="alice")
        assert alice.error is not None
        assert "'audit_books'" in alice.error.message
        assert (bus.near("audit_book", "bob"), bus.near("audit_book")) == (["order_books"], ["audit_books", "order_books"])


async def test_a_registry_lists_what_its_user_can_execute() -> None:
    """Each way of listing tools has exactly those that ``execute`` runs, for each user."""
    for user, mine in (("bob", ["order_books"]), ("", ["order_books"]), ("alice", ["audit_books", "order_books"])):
        async with ToolRegistry(audit_books, order_books, user=user) as registry:
            assert [each["name"] for each in registry.function_definitions()] == mine
            assert [each.name for each in registry.list_tools()] == mine
            assert list(registry.tools) == mine
            assert [name for name in ("audit_books", "order_books") if registry.get(name)] == mine
            assert [name for name in ("audit_books", "order_books") if (await registry.execute(name)).success] == mine


async def test_a_registry_keeps_the_names_of_hidden_tools() -> None:
    """A tool that the registry's user does not see still has its name."""
    registry = ToolRegistry(audit_books, user="bob")
    registry.register(audit_books, replace=True)
    with pytest.raises(Exception, match="audit_books is here already"):
        registry.register(audit_books)


def test_the_fate_of_a_hidden_name_is_not_told() -> None:
    """A second tool of a hidden one's name was left out, which names both services, and is not told to who sees neither."""
    catalogue = Catalogue()
    for service, tenants in (("a", ("alice",)), ("b", ())):
        tools = (ToolDescriptor("audit", "Audit.", service, tenants=tenants),)
        catalogue.on_service(service, ServiceRecord(Publication(ServiceDescriptor(service), tools), live=True))
    assert catalogue.refused() == [RefusedTool("audit", "b", "the service 'a' has a tool of this name; give one of them another")]
    error = unknown_tool("audit", catalogue, "bob")
    assert (error.type, error.code, error.message) == ("not_found", "unknown_tool", "there is no tool 'audit'")


def test_a_worker_lists_the_callers_own_tools() -> None:
    """The tools that a worker names when it has not the wanted one are those of the caller."""

    class Both(ToolService):
        """Has both."""

        id = "hiding-both"
        audit = staticmethod(tool("audit", tenants=["alice"])(lambda: "well"))
        order = staticmethod(tool("order")(lambda: "ordered"))

    (served,) = collect([Both], Settings())
    for user, names in (("bob", "order"), ("alice", "audit, order")):
        with pytest.raises(ToolError) as refused:
            served.handler(Request("c", "a", "hiding-both", "sell", user=user))
        assert refused.value.error.message.endswith(f"(it has: {names})")
