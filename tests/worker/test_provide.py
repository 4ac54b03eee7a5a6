"""Services in handlers' parameters: filled in by the worker, unknown to the model, and what happens without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Optional, Protocol

import pytest

from tests.contract import Place
from tests.worker import provided
from toolbus import ConfigurationError, ToolService, Worker, provide, tool
from toolbus.bus.worker import function
from toolbus.bus.worker import provide as provide_module
from toolbus.testing import InvocationEnvironment

pytestmark = pytest.mark.anyio


class Store:
    """A service."""

    def __init__(self, name: str = "store") -> None:
        self.name = name


class Speaks(Protocol):
    """A service that is a protocol."""

    def speak(self) -> str:
        """Say something."""


class Talker:
    def speak(self) -> str:
        return "hello"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test provides or decorates stays in the process."""
    monkeypatch.setattr(provide_module, "_provided", dict(provide_module._provided))
    monkeypatch.setattr(function, "_by_function", dict(function._by_function))
    monkeypatch.setattr(function, "_by_service", dict(function._by_service))


@pytest.fixture
def here(namespace: str) -> Place:
    """In process: where the broker makes no difference."""
    return Place("memory://", namespace)


def worker(place: Place, *tools: object, provide: dict[type, object]) -> Worker:
    """A worker with services of its own."""
    return Worker(list(tools), settings=place.settings, provide=provide)


@tool(service="provide-tests", effect="read")
async def plain(store: Store, n: int = 1) -> str:
    """Take a store.

    Args:
        store: where things are.
        n: how many.
    """
    return f"{store.name} {n}"


@tool(service="provide-tests", effect="read")
def threaded(store: Optional[Store], other: Annotated[Store, "the other"], n: int) -> str:  # noqa: UP045 - what is tested
    """Take it twice, in a thread."""
    return f"{store.name if store else None} {other.name} {n}"


@tool(service="provide-tests", effect="read")
async def spared(a: Store | None, n: int, b: Store | None = None, c: Store = Store("default")) -> list[Any]:  # noqa: B008
    """Do without."""
    return [a and a.name, n, b and b.name, c.name]


class Methods(ToolService):
    """A service whose method takes another."""

    id = "provide-methods"
    effect = "read"

    @tool
    async def method(self, n: int, store: Store) -> str:
        """Take a store in a method."""
        return f"{type(self).__name__} {store.name} {n}"


async def test_parameters_are_filled_in_and_unknown_to_the_model(place: Place) -> None:
    """Plain, optional and annotated parameters of a provided type, in functions and methods, get the service; no schema shows them."""
    async with worker(place, plain, Methods, provide={Store: Store("mine")}), place.bus() as bus:
        await bus.wait_for_tool("method", timeout=5)
        assert (await bus.call("plain", {"n": 2})).output == "mine 2"
        assert (await bus.call("threaded", {"n": 3})).output == "mine mine 3"
        assert (await bus.call("spared", {"n": 4})).data == ["mine", 4, "mine", "mine"]
        assert (await bus.call("method", {"n": 5})).output == "Methods mine 5"
        for name in bus.tools:
            parameters = bus.tools[name].parameters
            assert parameters is not None
            assert list(parameters["properties"]) == ["n"]


async def test_a_model_can_not_give_the_service(here: Place) -> None:
    """A value under the name of such a parameter is refused, by the caller's check and by the worker's own."""
    async with worker(here, plain, provide={Store: Store("mine")}), here.bus() as bus:
        refused = await bus.call("plain", {"store": {"name": "evil"}, "n": 2}, wait=5.0)
        assert refused.error is not None
        assert (refused.error.type, "store" in refused.error.message) == ("invalid_arguments", True)
    async with InvocationEnvironment(provide={Store: Store("mine")}) as environment:
        told = await environment.call(plain, {"store": "evil"})
        assert told.error is not None
        assert "Unexpected `store`" in told.error.message
        assert (await environment.call(plain)).output == "mine 1"


async def test_a_tool_without_its_service_is_left_out(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A tool that needs a type that nobody provides is not listed, and the log says which; one that can do without is served."""
    async with here.serving(plain) as bus:
        assert list(bus.tools) == ["spared"]
        assert (await bus.call("spared", {"n": 1})).data == [None, 1, None, "default"]
    said = [record.getMessage() for record in caplog.records if "tool.left_out" in record.getMessage()]
    assert len(said) == 2
    assert all(word in said[0] for word in ("plain", "store", "Store"))


async def test_tools_appear_when_their_service_is_provided(here: Place) -> None:
    """The same tools are listed once the type is registered in the process."""
    provide(Store, lambda: Store("late"))
    async with here.serving(plain) as bus:
        assert list(bus.tools) == ["plain", "spared", "threaded"]
        assert (await bus.call("plain")).output == "late 1"


def test_nothing_but_tools_without_services_is_refused() -> None:
    """A worker of which every tool lacks its service does not start, and says what to do."""

    @tool(service="provide-alone", effect="read")
    async def alone(store: Store) -> None: ...

    with pytest.raises(ConfigurationError, match=r"toolbus\.provide\(\)"):
        Worker(alone, url="memory://")


async def test_sources_of_every_kind(here: Place) -> None:
    """An instance, a class, and plain, async and generator functions are sources; one service is made per worker, and cleaned up."""
    life: list[str] = []

    async def coroutine() -> Store:
        life.append("made")
        return Store("coroutine")

    def generator() -> Iterator[Store]:
        life.append("made")
        yield Store("generator")
        life.append("cleaned")

    async def async_generator() -> AsyncIterator[Store]:
        life.append("made")
        yield Store("async generator")
        life.append("cleaned")

    sources: list[tuple[Any, str, list[str]]] = [
        (Store("instance"), "instance", []),
        (Store, "store", []),
        (lambda: Store("function"), "function", []),
        (coroutine, "coroutine", ["made"]),
        (generator, "generator", ["made", "cleaned"]),
        (async_generator, "async generator", ["made", "cleaned"]),
    ]
    for source, name, expected in sources:
        life.clear()
        serving = worker(here, plain, provide={Store: source})
        async with serving, here.bus() as bus:
            assert [(await bus.call("plain", wait=5.0)).output for _ in range(2)] == [f"{name} 1"] * 2
        assert life == expected


async def test_a_protocol_is_a_type_like_any(here: Place) -> None:
    """A service may be annotated by a protocol, and an object that is no function stands for itself."""

    @tool(service="provide-protocol", effect="read")
    async def speak(speaker: Speaks) -> str:
        """Speak."""
        return speaker.speak()

    async with worker(here, speak, provide={Speaks: Talker()}), here.bus() as bus:
        assert (await bus.call("speak", wait=5.0)).output == "hello"


async def test_a_service_that_can_not_be_made_stops_the_start(here: Place) -> None:
    """A source that raises is told with its place before anything is registered."""

    def broken() -> Store:
        raise OSError("no such host")

    with pytest.raises(ConfigurationError, match=r"Store can't be made by .*broken: OSError: no such host"):
        async with worker(here, plain, provide={Store: broken}):
            pass
    async with here.bus() as bus:
        assert list(bus.tools) == []


def test_wrong_registrations_are_refused() -> None:
    """A second source, something that makes nothing, and what is no type are refused; the same source and replace=True are not."""

    def make() -> Store:
        return Store()

    provide(Store, make)
    provide(Store, make)
    with pytest.raises(ConfigurationError, match=r"is provided already, by .*make"):
        provide(Store, Store("other"))
    provide(Store, Store("other"), replace=True)
    for wrong in (3, None):
        with pytest.raises(ConfigurationError, match=f"{wrong} is no Store"):
            provide(Store, wrong, replace=True)  # type: ignore[type-var]
    with pytest.raises(ConfigurationError, match="takes a type"):
        provide("Store", make)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [False, True])
async def test_explicit_parameters_and_services(here: Place, named: bool) -> None:
    """With a schema of one's own a service is filled in too, and what the schema names is an argument whatever its annotation."""
    schema = {"type": "object", "properties": {"store": {"type": "string"}} if named else {"n": {"type": "integer"}}}

    if named:

        @tool(service="provide-explicit", effect="read", parameters=schema)
        async def explicit(store: Store) -> Any:
            """Take what the schema says."""
            return store
    else:

        @tool(service="provide-explicit", effect="read", parameters=schema)
        async def explicit(store: Store, n: int = 0) -> Any:  # type: ignore[misc]
            """Take a service and an argument."""
            return [store.name, n]

    own: dict[type, object] = {} if named else {Store: Store("mine")}
    async with worker(here, explicit, provide=own), here.bus() as bus:
        result = await bus.call("explicit", {"store": "text"} if named else {"n": 2}, wait=5.0)
    assert result.output == "text" if named else result.data == ["mine", 2]


async def test_each_child_has_its_own_service(here: Place) -> None:
    """An isolated handler's service is made in its child, once, whatever tasks it has; the schema does not show it."""
    async with here.serving(provided) as bus:
        first, second = [(await bus.call("iso_engine", {"n": n})).data for n in (1, 2)]
        assert first[0] == 1
        assert first[1] == first[2] == second[1] == second[2]
        assert list((bus.tools["iso_engine"].parameters or {})["properties"]) == ["n"]


def test_a_workers_own_service_does_not_reach_children(here: Place) -> None:
    """An isolated tool whose service only this worker has is refused, saying where to provide it."""
    with pytest.raises(ConfigurationError, match=r"toolbus\.provide\(Engine"):
        worker(here, provided, provide={provided.Engine: provided.Engine(0)})


def test_data_is_never_taken_for_a_service() -> None:
    """Classes of the standard library and of data stay arguments although JSON can't describe them all."""
    import re
    import threading
    from dataclasses import dataclass

    @dataclass
    class Query:
        pattern: re.Pattern[str]

    services = provide_module.Services()
    kinds: list[type] = [Query, re.Pattern, threading.Lock().__class__, dict, int]
    assert [kind for kind in kinds if kind in services] == []
    assert Store in services


def test_of_two_services_with_one_name_the_workers_own_comes_last() -> None:
    """The last one of a name is what the text of an annotation means."""
    process, own = [type("Database", (), {}) for _ in range(2)]
    for _ in range(20):
        provide(type("Other", (), {}), lambda: None)
    provide(process, process())

    async def query(sql: str) -> str:
        return sql

    found = provide_module.injected({"properties": {"sql": {}}}, query, provide_module.Services({own: own()}))
    assert [each for each in found if each.__name__ == "Database"] == [process, own]
