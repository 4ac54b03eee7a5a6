"""Signatures as authors write them: what the schema says of each, a value that is taken, and one that is refused."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union

import annotated_types as at
import attrs
import msgspec
import pydantic
import pydantic.dataclasses
from pydantic import Field

NOTHING: Any = object()


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"
    HUGE = "huge"


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 1


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


@dataclasses.dataclass
class Train:
    line: str
    seats: int = 1


@dataclasses.dataclass
class Bus:
    stop: str


@dataclasses.dataclass
class Bounded:
    n: Annotated[int, Field(ge=3)]


@dataclasses.dataclass
class Trip:
    legs: list[Train | Bus]


@pydantic.dataclasses.dataclass
class Checked:
    n: Annotated[int, Field(ge=3)]


class Cash(pydantic.BaseModel):
    amount: float


class Card(pydantic.BaseModel):
    card_id: str
    limit: int = Field(default=10, ge=1)


class Passenger(pydantic.BaseModel):
    first_name: str
    last_name: str
    dob: datetime.date


class Flight(pydantic.BaseModel):
    flight_number: str
    date: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    age: int = 1


class Tree(pydantic.BaseModel):
    children: list[Tree] = []


class Struct(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=3)]


class Tagged(msgspec.Struct, tag=True):
    a: int


class Other(msgspec.Struct, tag=True):
    b: int


@attrs.define
class Attrs:
    n: int = attrs.field(validator=attrs.validators.ge(3))


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int
    name: NotRequired[str]


class Signature(msgspec.Struct, frozen=True):
    """One parameter.

    Attributes:
        type: its annotation.
        says: what its schema contains.
        given: a value that is taken.
        made: what the handler gets; the value itself when left out.
        refused: a value that is not taken.
        default: of the parameter.
    """

    type: Any
    says: dict[str, Any]
    given: Any
    made: Any = NOTHING
    refused: Any = NOTHING
    default: Any = NOTHING


def _plain() -> list[Signature]:
    date, when = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    key = uuid.UUID(int=1)
    string, integer, number, boolean = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
    made: list[tuple[Any, dict[str, Any], Any, Any, Any]] = [
        (str, string, "a", "a", 3),
        (int, integer, 5.0, 5, 5.5),
        (int, integer, "3", 3, "x"),
        (float, number, 3, 3.0, "x"),
        (float, number, "2.5", 2.5, True),
        (bool, boolean, True, True, 1),
        (bool, boolean, "true", True, "yes"),
        (bytes, string, "aGk=", b"hi", 3),
        (datetime.date, {"format": "date"}, "2024-02-29", date, "2024-02-30"),
        (datetime.datetime, {"type": "string"}, "2024-02-29T12:00:00Z", when, "x"),
        (datetime.time, {"type": "string"}, "12:00:00", datetime.time(12), "x"),
        (datetime.timedelta, {"format": "duration"}, "PT3S", datetime.timedelta(seconds=3), "x"),
        (uuid.UUID, {"format": "uuid"}, str(key), key, "x"),
        (decimal.Decimal, {"type": "string"}, "1.5", decimal.Decimal("1.5"), "x"),
        (pathlib.Path, {"format": "path"}, "a/b", pathlib.Path("a/b"), 3),
        (Size, {"enum": ["small", "large", "huge"], "type": "string"}, "large", Size.LARGE, "x"),
        (Level, {"enum": [2, 1], "type": "integer"}, 1, Level.HIGH, 3),
        (Word, {"enum": ["yes", "no"]}, "no", Word.NO, "x"),
        (Literal["b", "a"], {"enum": ["b", "a"], "type": "string"}, "a", "a", "c"),
        (Literal[3, 1], {"enum": [3, 1], "type": "integer"}, 1, 1, 2),
        (Literal["x", 1], {"enum": ["x", 1], "type": ["string", "integer"]}, 1, 1, "y"),
        (Literal[True, "auto"], {"enum": [True, "auto"]}, True, True, "y"),
        (Train, {"type": "object"}, {"line": "S1"}, Train("S1"), {"seats": 1}),
        (Struct, {"type": "object"}, {"n": 3}, Struct(3), {"n": 2}),
        (Attrs, {"type": "object"}, {"n": 3}, Attrs(3), {"n": 1}),
        (Pair, {"type": "array"}, [1, "r"], Pair(1, "r"), [1]),
        (Options, {"type": "object"}, {"depth": 1}, {"depth": 1}, {"name": "x"}),
        (Cash, {"type": "object"}, {"amount": 1}, Cash(amount=1), {"amount": "x"}),
        (Card, {"type": "object"}, {"card_id": "a"}, Card(card_id="a"), {"card_id": "a", "limit": 0}),
        (Tree, {}, {"children": [{}]}, Tree(children=[Tree()]), {"children": 3}),
        (
            Passenger,
            {"type": "object"},
            {"first_name": "a", "last_name": "b", "dob": "2024-02-29"},
            Passenger(first_name="a", last_name="b", dob=date),
            {"dob": 1},
        ),
        (Tagged | Other, {"anyOf": 2}, {"type": "Other", "b": 1}, Other(1), {"type": "Other"}),
        (Bounded, {"type": "object"}, {"n": 3}, Bounded(3), {"n": 2}),
        (Checked, {"type": "object"}, {"n": 3}, Checked(3), {"n": 2}),
        (Trip, {"type": "object"}, {"legs": [{"stop": "x"}]}, Trip([Bus("x")]), {"legs": [3]}),
        (ipaddress.IPv4Address, {"type": "string"}, "10.0.0.1", ipaddress.IPv4Address("10.0.0.1"), "x"),
        (pydantic.AnyUrl, {"format": "uri"}, "http://x/", pydantic.AnyUrl("http://x/"), "x"),
        (pydantic.SecretStr, {"type": "string"}, "s", pydantic.SecretStr("s"), 3),
        (pydantic.PositiveInt, {"exclusiveMinimum": 0}, 1, 1, 0),
        (pydantic.StrictBool, {"type": "boolean"}, True, True, "x"),
    ]
    return [Signature(*each) for each in made]


def _contained() -> list[Signature]:
    """Every plain type within each kind of container."""
    made: list[Signature] = []
    for each in _plain():
        type_, given, one, wrong = each.type, each.given, each.made, each.refused
        made += [
            Signature(list[type_], {"type": "array"}, [given, given], [one, one], [wrong]),  # type: ignore[valid-type]
            Signature(Optional[type_], {"null": True}, given, one, wrong, default=None),  # type: ignore[valid-type]  # noqa: UP045 - as authors write it
            Signature(Mapping[str, type_], {"type": "object"}, {"k": given}, {"k": one}, {"k": wrong}),  # type: ignore[valid-type]
            Signature(tuple[type_, ...], {"type": "array"}, [given], (one,), [wrong]),  # type: ignore[valid-type]
        ]
    return made


def _unions() -> list[Signature]:
    date = datetime.date(2024, 2, 29)
    made: list[tuple[Any, dict[str, Any], Any, Any, Any]] = [
        (Cash | Card, {"anyOf": 2}, {"card_id": "a"}, Card(card_id="a"), {"x": 1}),
        (Card | str, {"anyOf": 2}, "a", "a", 3),
        (Cash | dict, {"anyOf": 2}, {"amount": 3}, Cash(amount=3), 3),
        (Cash | dict[str, Any] | None, {"anyOf": 3}, None, None, 3),
        (Train | Bus, {"anyOf": 2}, {"stop": "x"}, Bus("x"), {"y": 1}),
        (Size | str, {"anyOf": 2}, "other", "other", 3),
        (datetime.date | str, {"anyOf": 2}, "2024-02-29", date, 3),
        (datetime.date | str, {"anyOf": 2}, "soon", "soon", 3),
        (list[Cash | str], {"type": "array"}, ["a", {"amount": 1}], ["a", Cash(amount=1)], [3]),
        (list[Cash] | str, {"anyOf": 2}, [{"amount": 1}], [Cash(amount=1)], 3),
        (list[Flight | dict], {"type": "array"}, [{"flight_number": "1", "date": "d"}], [Flight(flight_number="1", date="d")], [3]),
        (list[int] | set[int], {"anyOf": 2}, [1, 2], [1, 2], "x"),
        (list[int] | list[str], {"anyOf": 2}, ["a"], ["a"], [None]),
        (pathlib.Path | int, {"anyOf": 2}, "a", pathlib.Path("a"), []),
        (int | Literal["auto"], {"anyOf": 2}, "auto", "auto", "x"),
        (int | str, {"anyOf": 2}, "3", "3", []),
        (int | float, {"anyOf": 2}, 5, 5, "x"),
        (str | list[str], {"anyOf": 2}, ["a"], ["a"], 3),
        (str | list[str] | None, {"anyOf": 3}, None, None, 3),
        (float | str | bool, {"anyOf": 3}, 1.5, 1.5, []),
        (dict[str, Cash | Card], {"type": "object"}, {"k": {"amount": 1}}, {"k": Cash(amount=1)}, {"k": 3}),
        (Sequence[Cash | Card], {"type": "array"}, [{"amount": 1}], [Cash(amount=1)], [3]),
        (tuple[Cash | Card, int], {"type": "array"}, [{"amount": 1}, 2], (Cash(amount=1), 2), [1]),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"oneOf": 2}, {"kind": "dog"}, Dog(kind="dog"), {"kind": "cow"}),
        (list[Annotated[Cat | Dog, Field(discriminator="kind")]], {"type": "array"}, [{"kind": "cat"}], [Cat(kind="cat")], [{}]),
        (Annotated[Cash | Card, Field(description="how")], {"anyOf": 2, "description": "how"}, {"amount": 1}, Cash(amount=1), 3),
        (Annotated[int, msgspec.Meta(ge=1)] | Cash | Card, {"anyOf": 3}, 1, 1, 0),
        (Union[Annotated[str, Field(pattern="^a")], Cash], {"anyOf": 2}, "ab", "ab", "b"),  # noqa: UP007 - as authors write it
    ]
    return [Signature(*each) for each in made]


def _bounds() -> list[Signature]:
    made: list[tuple[Any, dict[str, Any], Any, Any]] = [
        (Annotated[int, Field(ge=1, le=5)], {"minimum": 1, "maximum": 5}, 5, 6),
        (Annotated[int, Field(gt=1, lt=5)], {"exclusiveMinimum": 1, "exclusiveMaximum": 5}, 4, 5),
        (Annotated[float, Field(ge=0.5)], {"minimum": 0.5}, 0.5, 0.25),
        (Annotated[int, Field(multiple_of=3)], {"multipleOf": 3}, 9, 10),
        (Annotated[str, Field(min_length=2, max_length=3)], {"minLength": 2, "maxLength": 3}, "ab", "a"),
        (Annotated[str, Field(pattern="^[A-Z]{3}$")], {"pattern": "^[A-Z]{3}$"}, "SFO", "sfo"),
        (Annotated[list[int], Field(min_length=1)], {"minItems": 1}, [1], []),
        (Annotated[list[int], Field(max_length=1)], {"maxItems": 1}, [1], [1, 2]),
        (list[Annotated[int, Field(ge=1)]], {"type": "array"}, [1], [0]),
        (dict[str, Annotated[int, Field(ge=1)]], {"type": "object"}, {"k": 1}, {"k": 0}),
        (Annotated[int, at.Ge(1)], {"minimum": 1}, 1, 0),
        (Annotated[int, at.Interval(ge=1, lt=4)], {"minimum": 1, "exclusiveMaximum": 4}, 3, 4),
        (Annotated[list[str], at.Len(1, 2)], {"minItems": 1, "maxItems": 2}, ["a"], []),
        (Annotated[str, at.MinLen(2)], {"minLength": 2}, "ab", "a"),
        (Annotated[int, at.MultipleOf(5)], {"multipleOf": 5}, 10, 11),
        (Annotated[int, msgspec.Meta(ge=1, le=2)], {"minimum": 1, "maximum": 2}, 2, 3),
        (Annotated[str, msgspec.Meta(pattern="^a")], {"pattern": "^a"}, "ab", "b"),
        (Annotated[int, "how many", Field(ge=1)], {"description": "how many", "minimum": 1}, 1, 0),
        (Annotated[int, Field(description="how many", ge=1)], {"description": "how many", "minimum": 1}, 1, 0),
        (Annotated[int, Field(ge=1)] | None, {"null": True}, 1, 0),
        (Annotated[str | None, Field(max_length=2)], {"null": True}, "ab", "abc"),
        (Annotated[int, at.Gt(0), at.Lt(9)], {"exclusiveMinimum": 0, "exclusiveMaximum": 9}, 8, 9),
        (Annotated[datetime.date, Field(gt=datetime.date(2024, 1, 1))], {"format": "date"}, NOTHING, "2023-01-01"),
        (Annotated[int, pydantic.AfterValidator(_even)], {"type": "integer"}, 4, 5),
    ]
    return [Signature(type_, says, given, given, wrong) for type_, says, given, wrong in made]


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("odd")
    return number


def _defaults() -> list[Signature]:
    return [
        Signature(int, {"default": 3, "minimum": 1}, NOTHING, 3, 0, default=Field(3, ge=1)),
        Signature(int, {"default": 7}, NOTHING, 7, "x", default=Field(default_factory=lambda: 7)),
        Signature(Annotated[int, Field(default=4)], {"default": 4}, NOTHING, 4, "x"),
        Signature(list[Cash | Card], {"type": "array"}, NOTHING, [], 3, default=Field(default_factory=list)),
        Signature(str, {"description": "a city"}, "Rome", "Rome", 3, default=Field(description="a city")),
        Signature(str | None, {"null": True, "default": None}, NOTHING, None, 3, default=Field(None, max_length=5)),
    ]


SIGNATURES = [*_plain(), *_contained(), *_unions(), *_bounds(), *_defaults()]
