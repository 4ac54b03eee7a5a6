"""Functions for ``@tool``, through the door that agents use: kinds of callables, annotations, defaults and descriptions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolbusError, ToolService, Worker, tool
from toolbus.bus.worker import function
from toolbus.compat.trustgraph import DynamicToolService
from toolbus.compat.trustgraph.service import _Served

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test decorates stays in the process."""
    monkeypatch.setattr(function, "_by_function", dict(function._by_function))
    monkeypatch.setattr(function, "_by_service", dict(function._by_service))


@pytest.fixture
def here(namespace: str) -> Place:
    """In process: where the broker makes no difference."""
    return Place("memory://", namespace)


def area(width: int, height: int = 2) -> int:
    """Multiply."""
    return width * height


class Doubler:
    """Double a number."""

    def __call__(self, n: int) -> int:
        return 2 * n


class AsyncDoubler:
    """Double a number later."""

    async def __call__(self, n: int) -> int:
        return 2 * n


class Counter:
    """Count to a number."""

    async def __call__(self, n: int) -> Any:
        for each in range(n):
            yield f"{each}"


def passing(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(wrapped)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    return inner


@passing
async def wrapped(n: int) -> int:
    """Be wrapped.

    Args:
        n: a number
    """
    return n


@pytest.mark.parametrize(
    ("target", "description", "arguments", "expected"),
    [
        (functools.partial(area, 3), "Multiply.", {"height": 4}, 12),
        (functools.partial(area, height=5), "Multiply.", {"width": 2}, 10),
        (Doubler(), "Double a number.", {"n": 4}, 8),
        (AsyncDoubler(), "Double a number later.", {"n": 4}, 8),
        (Counter(), "Count to a number.", {"n": 3}, "012"),
        (wrapped, "Be wrapped.", {"n": 3}, 3),
        (lambda n=1: n, "named", {"n": 3}, 3),
    ],
)
async def test_whatever_can_be_called_is_a_tool(
    here: Place, target: Callable[..., Any], description: str, arguments: dict[str, Any], expected: Any
) -> None:
    """Partials, callable objects, wrapped functions and lambdas with a name are tools with the description and schema of what they call."""
    assert tool("named", service="kinds-of-functions", effect="read", replace=True)(target) is target
    async with here.serving(target) as bus:
        shown = bus.tools["named"]
        assert shown.description == description
        assert set(arguments) <= set((shown.parameters or {})["properties"])
        result = await bus.call("named", arguments)
        refused = await bus.call("named", {"other": 1})
    assert (result.error, result.output if result.data is None else result.data) == (None, expected)
    assert refused.error is not None
    assert refused.error.type == "invalid_arguments"


class Methods(ToolService):
    """Methods of every kind."""

    id = "kinds-of-methods"
    effect = "read"

    @tool
    def plain(self, n: int) -> str:
        """Plain."""
        return f"{type(self).__name__} {n}"

    @tool
    @staticmethod
    def static_below(n: int) -> str:
        """Static."""
        return f"static {n}"

    @staticmethod
    @tool
    def static_above(n: int) -> str:
        """Static."""
        return f"static {n}"

    @tool
    @classmethod
    def class_below(cls, n: int) -> str:
        """Of the class."""
        return f"{cls.__name__} {n}"

    @classmethod
    @tool
    def class_above(cls, n: int) -> str:
        """Of the class."""
        return f"{cls.__name__} {n}"


async def test_methods_of_every_kind_are_tools(here: Place) -> None:
    """Plain, static and class methods are served, on whichever side of the other decorator @tool stands."""
    async with here.serving(Methods) as bus:
        assert {name: (await bus.call(name, {"n": 1})).output for name in bus.tools} == {
            "class_above": "Methods 1",
            "class_below": "Methods 1",
            "plain": "Methods 1",
            "static_above": "static 1",
            "static_below": "static 1",
        }


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corner: Point
    colour: Colour = Colour.RED


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    depth: int


async def test_annotations_of_every_kind_reach_the_handler(here: Place) -> None:
    """Structs, dataclasses, named tuples, typed dicts, enums and literals are described, made and given to the handler as such."""

    @tool(service="annotations", effect="read")
    async def take(
        box: Box,
        pair: Pair,
        options: Options,
        mode: Literal["a", "b"],
        size: Annotated[int, msgspec.Meta(ge=1)],
        maybe: Optional[int],  # noqa: UP045
    ) -> list[Any]:
        """Take all of it."""
        return [box.corner.y, box.colour is Colour.RED, pair.right, options["depth"], mode, size, maybe]

    good = {"box": {"corner": {"x": 1, "y": 2}}, "pair": [1, "r"], "options": {"depth": 3}, "mode": "b", "size": 4, "maybe": None}
    async with here.serving(take) as bus:
        assert (await bus.call("take", good)).data == [2, True, "r", 3, "b", 4, None]
        for name, wrong in (("box", {"corner": {"x": "one"}}), ("mode", "c"), ("size", 0), ("pair", [1]), ("options", {"depth": "x"})):
            error = (await bus.call("take", {**good, name: wrong})).error
            assert error is not None
            assert (error.type, name in error.message) == ("invalid_arguments", True)


async def test_a_pydantic_model_reaches_the_handler(here: Place) -> None:
    """A parameter annotated with a Pydantic model shows the model's schema, and the handler gets a model."""
    pydantic = pytest.importorskip("pydantic")
    query = pydantic.create_model("Query", text=(str, ...), limit=(int, pydantic.Field(5, ge=1)))

    async def ask(query: Any) -> list[Any]:
        """Ask."""
        return [type(query).__name__, query.text, query.limit]

    ask.__annotations__["query"] = query
    tool(service="pydantic-tools", effect="read")(ask)
    async with here.serving(ask) as bus:
        assert (await bus.call("ask", {"query": {"text": "t"}})).data == ["Query", "t", 5]
        error = (await bus.call("ask", {"query": {"text": "t", "limit": 0}})).error
        assert error is not None
        assert (error.type, "limit" in error.message) == ("invalid_arguments", True)


async def test_further_arguments_and_odd_defaults(here: Place) -> None:
    """``**kwargs`` takes any argument; a default that JSON can't say stays the function's own and is not shown."""

    @tool(service="odd", effect="read")
    async def odd(pattern: Any = re.compile("x"), **rest: int) -> list[Any]:
        """Be odd."""
        return [pattern.pattern, rest]

    async with here.serving(odd) as bus:
        assert (bus.tools["odd"].parameters or {})["properties"] == {"pattern": {}}
        assert (await bus.call("odd", {"a": 1, "b": 2})).data == ["x", {"a": 1, "b": 2}]
        assert (await bus.call("odd", {"a": "one"})).error is not None


async def test_a_whole_dict_for_one_positional_parameter(here: Place) -> None:
    """With explicit parameters and one parameter that is no property, the handler receives all arguments in one dict."""

    @tool("whole", "Take all.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "data", effect="read")
    async def whole(params: dict[str, Any]) -> dict[str, Any]:
        return params

    async with here.serving(whole) as bus:
        assert (bus.tools["whole"].description, bus.tools["whole"].category) == ("Take all.", "data")
        assert (await bus.call("whole", {"a": 1, "b": 2})).data == {"a": 1, "b": 2}
        assert (await bus.call("whole", {})).error is not None


def star(*args: int) -> None: ...


def by_position(n: int, /) -> None: ...


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tool(service="wrong-tools")(lambda n: n), "has no name of its own"),
        (lambda: tool(service="wrong-tools")(functools.partial(area, 1)), "area has no name of its own"),
        (lambda: tool(service="wrong-tools")(star), r"takes '\*args'"),
        (lambda: tool(service="wrong-tools")(by_position), "by position only"),
        (lambda: tool(service="wrong-tools", description="d" * 20_000)(area), "20,000 characters, more than 16,384"),
        (lambda: passing(tool(service="wrong-tools")(area)), "put @tool above the other decorators"),
        (lambda: area, "is not a tool: decorate it"),
    ],
)
def test_what_can_not_be_a_tool_is_told(make: Callable[[], Any], words: str) -> None:
    """A callable without a name, with parameters that can't be named, with a book for a description, or undecorated is refused."""
    with pytest.raises(ConfigurationError, match=words):
        Worker(make(), url="memory://")


async def test_an_unknown_effect_is_refused_where_it_is_said(namespace: str) -> None:
    """A decorator, a class, a tool's document and a facade's class are told which effects there are, and the nearest one."""
    with pytest.raises(ConfigurationError, match=r"'onec'.*'read', 'idempotent', 'once'.*did you mean 'once'"):
        tool(effect="onec")(lambda: "")  # type: ignore[call-overload]

    class Whole(ToolService):
        id = "whole"
        effect = "reads"  # type: ignore[assignment]

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return ""

    class One(ToolService):
        id = "one"
        tools: ClassVar[list[dict[str, Any]]] = [{"name": "a", "description": "d", "effect": "IDEMPOTENT"}]

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return ""

    class Facade(DynamicToolService):
        effect = "once "  # type: ignore[assignment]

        async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
            return ""

    for service, word in ((Whole(), "read"), (One(), "idempotent"), (_Served(Facade(topic="t")), "once")):
        with pytest.raises(ToolbusError, match=f"did you mean '{word}'"):
            Worker([service], url="memory://", namespace=namespace)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": "5"},
        {"timeout": float("nan")},
        {"timeout": -1},
        {"output_limit": 1.5},
        {"confirm": "yes"},
        {"category": 5},
        {"groups": [1]},
        {"tenants": [1]},
        {"description": 7},
        {"name": "a b"},
        {"effect": ["read"]},
        {"effect": 1},
    ],
)
async def test_what_readers_would_refuse_is_never_published(namespace: str, options: dict[str, Any]) -> None:
    """A field of the wrong type or of an impossible value is refused where the worker is made."""

    def plain() -> str:
        return ""

    with pytest.raises((ToolbusError, TypeError)):
        Worker([tool(**options)(plain)], url="memory://", namespace=namespace)
