"""A function's signature becomes a JSON Schema and a binder of arguments."""

from __future__ import annotations

import datetime
import functools
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jsonschema_rs
import msgspec
import pytest

from tests.schema.samples import Colour, Opaque, Point, properties, refused, search
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.schema.derivation import derive


class Box(msgspec.Struct):
    corner: Point
    label: str = ""


class Options(TypedDict, total=False):
    depth: int


class Pair(NamedTuple):
    left: int
    right: str


class Node(msgspec.Struct):
    children: list[Node] = []


def test_a_plain_function_becomes_a_closed_object_schema() -> None:
    """Annotations, defaults and the docstring make the whole schema."""
    derived = derive(search)
    assert derived.description == "Search the web.\n\nUses whatever index is at hand."
    assert derived.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what to look for"},
            "count": {"type": "integer", "description": "how many results, at most", "default": 5},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_no_arguments() -> None:
    """An empty schema refuses every argument."""

    def ping() -> str:
        return "pong"

    derived = derive(ping)
    assert derived.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert derived.description == ""
    assert derived.bind({}) == {}
    assert refused(derived.bind, {"x": 1}) == "Unexpected `x` - at `$` (known: none)"


def test_async_functions_and_generators_are_read_alike() -> None:
    """The type that a handler returns or yields does not affect its arguments."""

    async def one(n: int) -> int:
        return n

    async def two(n: int) -> AsyncIterator[int]:
        yield n

    def three(n: int) -> Iterator[int]:
        yield n

    for function in (one, two, three):
        assert properties(function) == {"n": {"type": "integer"}}


def test_methods_partials_and_callable_objects_are_read() -> None:
    """Bound methods lose ``self``, partials keep what is left, callable objects are their ``__call__``."""

    class Service:
        """Serves."""

        def add(self, n: int) -> int:
            """Add one."""
            return n + 1

        def __call__(self, m: int) -> int:
            return m

    assert properties(Service().add) == {"n": {"type": "integer"}}
    assert properties(Service.add, skip_self=True) == {"n": {"type": "integer"}}
    assert derive(Service().add).description == "Add one."
    assert properties(Service()) == {"m": {"type": "integer"}}
    assert derive(Service()).description == "Serves."
    partial = derive(functools.partial(search, "x"))
    assert list(partial.parameters["properties"]) == ["count", "exact"]
    assert partial.description.startswith("Search the web.")


def test_a_wrapped_function_is_read_through_its_decorator() -> None:
    """``functools.wraps`` is followed for parameters, annotations and words."""

    @functools.wraps(search)
    def wrapper(*args: object, **kwargs: object) -> object:
        return search(*args, **kwargs)  # type: ignore[arg-type]

    assert derive(wrapper).parameters == derive(search).parameters


def test_a_sentence_over_two_lines_stays_one() -> None:
    """A blank line stands only where the author left one."""

    def wraps(n: int) -> None:
        """Do something that takes a sentence
        over two lines.

        And more.

        Args:
            n: a number
        """

    assert derive(wraps).description == "Do something that takes a sentence\nover two lines.\n\nAnd more."


@pytest.mark.parametrize(
    "doc",
    [
        "Say it.\n\nArgs:\n    word: the word\n",
        "Say it.\n\nParameters\n----------\nword : str\n    the word\n",
        "Say it.\n\n:param word: the word\n:returns: nothing\n",
    ],
    ids=["google", "numpy", "rest"],
)
def test_docstring_styles(doc: str) -> None:
    """Google, numpy and ReST docstrings describe parameters."""

    def say(word: str) -> None: ...

    say.__doc__ = doc
    assert derive(say).description == "Say it."
    assert properties(say)["word"]["description"] == "the word"


def test_annotated_describes_and_constrains() -> None:
    """Descriptions and constraints in ``Annotated`` win over the docstring."""

    def f(
        a: Annotated[str, "plain"], b: Annotated[int, msgspec.Meta(ge=1, description="meta")], c: Annotated[int, msgspec.Meta(le=3)] = 1
    ) -> None:
        """F.

        Args:
            a: docs
            c: docs
        """

    assert properties(f) == {
        "a": {"type": "string", "description": "plain"},
        "b": {"type": "integer", "minimum": 1, "description": "meta"},
        "c": {"type": "integer", "maximum": 3, "description": "docs", "default": 1},
    }
    assert "$.b" in refused(derive(f).bind, {"a": "", "b": 0})


def test_rich_types_are_described_and_converted() -> None:
    """JSON values become the types the function asks for."""

    def f(
        *,
        colour: Colour,
        mode: Literal["r", "w"],
        point: Point,
        box: Box,
        options: Options,
        pair: Pair,
        when: datetime.datetime,
        key: uuid.UUID,
        data: bytes,
        unique: set[int],
        both: tuple[int, str],
        table: dict[int, list[float]],
        either: int | str | None,
    ) -> None: ...

    derived = derive(f)
    key = uuid.uuid4()
    arguments = {
        "colour": "red",
        "mode": "w",
        "point": {"x": 1},
        "box": {"corner": {"x": 1, "y": 2}, "label": "b"},
        "options": {"depth": 2},
        "pair": [1, "r"],
        "when": "2024-02-29T12:00:00Z",
        "key": str(key),
        "data": "aGk=",
        "unique": [1, 2],
        "both": [1, "b"],
        "table": {"7": [1.5]},
        "either": None,
    }
    jsonschema_rs.validator_for(derived.parameters, offline=True).validate(arguments)
    assert derived.bind(arguments) == {
        "colour": Colour.RED,
        "mode": "w",
        "point": Point(1, 0),
        "box": Box(Point(1, 2), "b"),
        "options": {"depth": 2},
        "pair": Pair(1, "r"),
        "when": datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC),
        "key": key,
        "data": b"hi",
        "unique": {1, 2},
        "both": (1, "b"),
        "table": {7: [1.5]},
        "either": None,
    }
    assert set(derived.parameters["$defs"]) == {"Box", "Colour", "Options", "Pair", "Point"}
    assert derived.parameters["properties"]["point"] == {"$ref": "#/$defs/Point"}


def test_the_options_of_an_enum_are_told() -> None:
    """A refused enum value is answered with the schema behind its reference."""

    def f(colour: Colour) -> None: ...

    assert '"enum":["red","blue"]' in refused(derive(f).bind, {"colour": "green"})


def test_a_recursive_type_is_described() -> None:
    """A type that holds itself is a reference into ``$defs``."""

    def f(root: Node) -> None: ...

    derived = derive(f)
    assert derived.parameters["properties"]["root"] == {"$ref": "#/$defs/Node"}
    assert derived.bind({"root": {"children": [{}]}}) == {"root": Node([Node()])}
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"children": [deep]}
    assert refused(derived.bind, {"root": deep})


def test_a_default_of_none_allows_null() -> None:
    """``x: str = None`` may be given as null, as models do when they see the default."""

    def f(x: str = None, y: Annotated[int, "why"] = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert properties(f)["x"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert properties(f)["y"]["description"] == "why"
    assert derive(f).bind({"x": None, "y": 3}) == {"x": None, "y": 3}


def test_defaults_appear_when_json_can_hold_them() -> None:
    """Enum members and structs appear as their JSON; what JSON can't hold is left out."""
    point, thing, numbers = Point(1), object(), [1]

    def f(
        *, a: Colour = Colour.BLUE, b: Point = point, c: Any = thing, d: float = float("inf"), e: Any = ..., g: list[int] = numbers
    ) -> None: ...

    found = properties(f)
    assert found["a"]["default"] == "blue"
    assert found["b"]["default"] == {"x": 1, "y": 0}
    assert found["g"]["default"] == [1]
    assert not any("default" in found[name] for name in "cde")
    assert derive(f).bind({}) == {}


def test_what_can_not_be_described_is_any() -> None:
    """Unannotated parameters and arbitrary classes take every value as it is, and the classes are told."""

    def f(a, b: Opaque, c: list[Opaque], d: object) -> None: ...  # type: ignore[no-untyped-def]

    assert properties(f) == {name: {} for name in "abcd"}
    value = Opaque()
    assert derive(f).bind({"a": value, "b": value, "c": [3], "d": None}) == {
        "a": value,
        "b": value,
        "c": [3],
        "d": None,
    }
    assert derive(f).unresolved.keys() == {"b", "c"}


def test_a_pydantic_model_is_described_and_made() -> None:
    """A Pydantic model shows its own schema, its definitions at the root; the handler gets a model, and what is wrong is named."""
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", n=(int, ...))
    model = pydantic.create_model("Model", inner=(inner, ...), size=(int, 3))

    def f(m: Any, many: Any = ()) -> None: ...

    f.__annotations__.update(m=model, many=list[model])  # type: ignore[valid-type]
    derived = derive(f)
    assert derived.parameters["properties"]["m"]["properties"]["inner"] == {"$ref": "#/$defs/Model.Inner"}
    assert derived.parameters["$defs"]["Model.Inner"]["required"] == ["n"]
    assert derived.bind({"m": {"inner": {"n": 1}}, "many": [{"inner": {"n": 2}, "size": 4}]}) == {
        "m": model(inner=inner(n=1)),
        "many": [model(inner=inner(n=2), size=4)],
    }
    message = refused(derive(f).bind, {"m": {"inner": {"n": "x"}}})
    assert "inner.n: Input should be a valid integer" in message
    assert "at `$.m`" in message
    Validator(derived.parameters, path="$").check({"m": {"inner": {"n": 1}}})


def test_a_path_is_a_string_to_the_model_and_a_path_to_the_handler() -> None:
    """A parameter annotated with Path takes a string, and nothing else, and the handler gets a Path."""

    def f(path: Path, others: list[PurePosixPath] | None = None) -> None: ...

    derived = derive(f)
    assert derived.parameters["properties"]["path"] == {"type": "string", "format": "path"}
    assert derived.bind({"path": "a/b", "others": ["c"]}) == {"path": Path("a/b"), "others": [PurePosixPath("c")]}
    assert "Expected `str`, got `int` - at `$.path`" in refused(derived.bind, {"path": 3})


def test_an_unresolvable_annotation_is_any_and_spares_the_others() -> None:
    """A name that is gone makes its own parameter any, and no other."""

    def f(a: Missing, b: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert properties(f) == {"a": {}, "b": {"type": "integer"}}


def test_an_annotation_local_to_a_function_resolves_when_the_body_uses_it() -> None:
    """String annotations see what the function closes over."""

    class Local(msgspec.Struct):
        n: int

    def f(x: Local) -> object:
        return Local(x.n)

    assert derive(f).bind({"x": {"n": 1}}) == {"x": Local(1)}


def test_every_derived_schema_is_a_possible_one() -> None:
    """Schemas are the same each time and valid against their meta-schema."""

    def f(a: Box, b: Literal["z", "a"], c: dict[str, Point | None], d: Annotated[list[Node], msgspec.Meta(max_length=3)]) -> None: ...

    jsonschema_rs.meta.validate(derive(f).parameters)
    assert msgspec.json.encode(derive(f).parameters) == msgspec.json.encode(derive(f).parameters)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters_are_any() -> None:
    """A generic function's own type variables accept everything."""
    scope: dict[str, Any] = {}
    exec("def f[T](x: T, y: 'list[T]') -> T: return x", scope)
    assert derive(scope["f"]).bind({"x": 1, "y": ["a"]}) == {"x": 1, "y": ["a"]}
