"""Every kind of value that a handler may give back, and what its caller gets; a module of its own because other processes import it."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import types
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy
import pandas
import pydantic

from tests.pictures import png
from toolbus import Blob, ErrorInfo, ToolError, ToolResult, invocation, tool
from toolbus.bus.values.encoding import MOST_LEVELS
from toolbus.bus.values.media import UNKNOWN


class Text(str):
    """A text of a library's own, such as BeautifulSoup's."""

    __slots__ = ()


class Lying(str):
    """A text that says nothing sensible of itself."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def encode(self, *_: Any) -> bytes:
        """Refuse."""
        raise RuntimeError("no bytes")


class Whole(int):
    """An integer of a library's own."""


class Real(float):
    """A float of a library's own."""


class Bytes(bytes):
    """Bytes of a library's own."""


class When(datetime.datetime):
    """A time of a library's own, such as pandas' Timestamp."""


class Floating:
    """A number of a library's own, such as mpmath's."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __float__(self) -> float:
        return self.number


class Indexed:
    """A whole number of a library's own, such as sympy's."""

    def __index__(self) -> int:
        return 7


class Imaginary:
    """A complex number of a library's own."""

    def __float__(self) -> float:
        raise TypeError("it has an imaginary part")

    def __complex__(self) -> complex:
        return 1j


class Symbol(Imaginary):
    """A number whose value nobody knows."""

    def __complex__(self) -> complex:
        raise TypeError("it has no value")


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum of numbers."""

    HIGH = 3


class Word(enum.StrEnum):
    """An enum of texts."""

    YES = "yes"


@dataclasses.dataclass
class Data:
    """A dataclass."""

    a: Any


class Model(pydantic.BaseModel):
    """A pydantic model."""

    a: Any = None
    path: pathlib.Path = pathlib.Path("/p")


class Raising(pydantic.BaseModel):
    """A model that can't be written."""

    @pydantic.model_serializer
    def refuse(self) -> Any:
        """Raise what nobody expects."""
        raise LookupError("no such model")


class Struct(msgspec.Struct):
    """A Struct."""

    a: Any


class Pair(NamedTuple):
    """A named tuple."""

    a: Any
    b: Any


class Opaque:
    """An object that JSON knows nothing of."""


class Posing:
    """An object that poses as a dictionary."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return dict


class Refused(NamedTuple):
    """The call fails as ``unencodable_result``, with these words."""

    words: str


def nested(levels: int) -> Any:
    """Lists within each other."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def endless() -> Any:
    """A list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


NOT_FINITE = Refused("not a finite number")
TOO_DEEP = Refused(f"more than {MOST_LEVELS} levels")
OPAQUE = Refused("kinds.Opaque can't be sent; use texts, numbers, lists, objects, dataclasses - at `$['a b'][0]`")
HALF = Refused("surrogate pair")

MIDNIGHT = "T00:00:00.000000000"

# What is returned, and what the caller's `data` is.
KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "true": (lambda: True, True),
    "zero": (lambda: 0, 0),
    "float": (lambda: -0.5, -0.5),
    "wide": (lambda: 2**70, 2**70),
    "int": (lambda: Whole(3), 3),
    "real": (lambda: Real(1.5), 1.5),
    "nan": (lambda: float("nan"), NOT_FINITE),
    "infinity": (lambda: float("-inf"), NOT_FINITE),
    "real nan": (lambda: Real("nan"), NOT_FINITE),
    "list of nan": (lambda: {"a": [1, {"b": float("nan")}]}, Refused("nan is not a finite number - at `$.a[1].b`")),
    "dataclass of nan": (lambda: Data([float("inf")]), Refused("inf is not a finite number - at `$.a[0]`")),
    "null": (lambda: {"a": None, "b": "null"}, {"a": None, "b": "null"}),
    "text enum": (lambda: [Word.YES], ["yes"]),
    "number enum": (lambda: Level.HIGH, 3),
    "enum": (lambda: Colour.RED, "red"),
    "texts": (lambda: [Text("x"), Lying("y")], ["x", "y"]),
    "tuple": (lambda: (1, "a"), [1, "a"]),
    "named tuple": (lambda: Pair(1, 2), [1, 2]),
    "set": (lambda: {1}, [1]),
    "frozenset": (lambda: frozenset({1}), [1]),
    "deque": (lambda: collections.deque([1, 2]), [1, 2]),
    "range": (lambda: range(2), [0, 1]),
    "keys": ({"a": 1}.keys, ["a"]),
    "mapping": (lambda: types.MappingProxyType({"a": 1}), {"a": 1}),
    "counter": (lambda: collections.Counter("aa"), {"a": 2}),
    "dataclass": (lambda: Data(Text("x")), {"a": "x"}),
    "struct": (lambda: Struct(Real(2.5)), {"a": 2.5}),
    "model": (lambda: Model(a=[1]), {"a": [1], "path": "/p"}),
    "models": (lambda: {"all": [Model(a=1)]}, {"all": [{"a": 1, "path": "/p"}]}),
    # As pydantic writes it, unless the model says otherwise.
    "model of nan": (lambda: Model(a=float("nan")), {"a": None, "path": "/p"}),
    "model that raises": (Raising, Refused("no such model")),
    "path": (lambda: [pathlib.Path("/a/b")], ["/a/b"]),
    "decimal": (lambda: decimal.Decimal("1.50"), "1.50"),
    "date": (lambda: datetime.date(2020, 1, 2), "2020-01-02"),
    "datetime": (lambda: datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2020-01-02T03:04:05Z"),
    "datetime of its own": (lambda: When(2020, 1, 2, tzinfo=datetime.UTC), "2020-01-02T00:00:00Z"),
    "timedelta": (lambda: datetime.timedelta(seconds=90), "PT90S"),
    "uuid": (lambda: uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "numpy float": (lambda: numpy.float64(1.5), 1.5),
    "numpy short float": (lambda: numpy.float32(1.5), 1.5),
    "numpy long float": (lambda: numpy.longdouble(1.5), 1.5),
    "numpy int": (lambda: {"n": numpy.int64(3)}, {"n": 3}),
    "numpy bool": (lambda: numpy.bool_(True), True),
    "numpy text": (lambda: [numpy.str_("x")], ["x"]),
    "numpy time": (lambda: numpy.datetime64("2020-01-02"), "2020-01-02"),
    "numpy no time": (lambda: numpy.datetime64("NaT"), Refused("not a time")),
    "numpy nan": (lambda: numpy.float32("nan"), NOT_FINITE),
    "numpy array": (lambda: numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "numpy array of nan": (lambda: numpy.array([1.0, float("nan")]), Refused("at `$[1]`")),
    "numpy complex": (lambda: numpy.complex128(1j), Refused("complex")),
    "complex": (lambda: 1j, Refused("complex")),
    "decimal nan": (lambda: {"a": [decimal.Decimal("NaN")]}, Refused("NaN is not a finite number - at `$.a[0]`")),
    "decimal infinity": (lambda: decimal.Decimal("-Infinity"), NOT_FINITE),
    "texts of no numbers": (lambda: ["NaN", "Infinity", "null"], ["NaN", "Infinity", "null"]),
    "fraction": (lambda: fractions.Fraction(1, 2), 0.5),
    "whole fraction": (lambda: {"n": fractions.Fraction(2**70)}, {"n": 2**70}),
    "too large a fraction": (lambda: fractions.Fraction(2**2000, 3), Refused("too large")),
    "float of its own": (lambda: [Floating(1.5), Floating(2.0)], [1.5, 2.0]),
    "float of its own, not finite": (lambda: {"a": Floating(float("nan"))}, Refused("nan is not a finite number - at `$.a`")),
    "index of its own": (Indexed, 7),
    "number of unknown value": (Symbol, Refused("can't be sent")),
    "complex of its own": (lambda: [Imaginary()], Refused("is a complex number")),
    "complex number": (
        lambda: {"z": 1 + 2j},
        Refused("(1+2j) is a complex number, which JSON does not know; send its parts or its text - at `$.z`"),
    ),
    "address": (lambda: ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
    "namespace": (lambda: types.SimpleNamespace(a=[1]), {"a": [1]}),
    "numpy times": (
        lambda: numpy.array(["2020-01-02", "2020-01-03"], dtype="datetime64[ns]"),
        [f"2020-01-0{day}{MIDNIGHT}" for day in "23"],
    ),
    "numpy span": (lambda: numpy.timedelta64(90, "s"), "PT90S"),
    "numpy long span": (lambda: numpy.timedelta64(2, "Y"), "2 years"),
    "numpy short span": (lambda: numpy.timedelta64(2, "ns"), "2 nanoseconds"),
    "numpy masked": (lambda: {"a": numpy.ma.masked}, {"a": None}),
    "numpy masked array": (lambda: numpy.ma.array([1, 2], mask=[0, 1]), [1, None]),
    "numpy records": (lambda: numpy.array([(1, "a")], dtype=[("n", int), ("t", "U1")]), [{"n": 1, "t": "a"}]),
    "numpy record": (lambda: numpy.array([(1, 2.5)], dtype=[("n", int), ("x", float)])[0], {"n": 1, "x": 2.5}),
    "numpy array of no dimensions": (lambda: numpy.array(5), 5),
    "numpy objects": (lambda: numpy.array([Data(1)], dtype=object), [{"a": 1}]),
    "pandas time": (lambda: pandas.Timestamp("2020-01-02", tz="UTC"), "2020-01-02T00:00:00+00:00"),
    "pandas exact time": (lambda: pandas.Timestamp("2020-01-02 00:00:00.123456789"), "2020-01-02T00:00:00.123456789"),
    "pandas span": (lambda: pandas.Timedelta("90s"), "PT90S"),
    "pandas exact span": (lambda: pandas.Timedelta(2, "ns"), "P0DT0H0M0.000000002S"),
    "pandas missing": (lambda: {"a": pandas.NA}, {"a": None}),
    "pandas no time": (lambda: pandas.NaT, Refused("NaT is not a time")),
    "pandas series": (lambda: pandas.Series([1, 2]), [1, 2]),
    "pandas labelled series": (lambda: pandas.Series([1, 2], index=["a", "b"]), {"a": 1, "b": 2}),
    "pandas ambiguous series": (lambda: pandas.Series([1, 2], index=["a", "a"]), Refused("the same label")),
    "pandas frame": (lambda: pandas.DataFrame({"a": [1, 2], "b": ["x", None]}), [{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
    "pandas labelled frame": (lambda: pandas.DataFrame({"n": [1]}, index=pandas.Index(["a"], name="k")), [{"k": "a", "n": 1}]),
    "pandas ambiguous frame": (lambda: pandas.DataFrame([[1, 2]], columns=["a", "a"]), Refused("same name")),
    "pandas frame of nan": (lambda: pandas.DataFrame({"a": [1.5, float("nan")]}), Refused("with None for what is missing - at `$[1].a`")),
    "pandas period": (lambda: pandas.Period("2020-01"), "2020-01"),
    "pandas interval": (lambda: pandas.Interval(0, 1), "(0, 1]"),
    "pandas category": (lambda: pandas.Categorical(["a"]), ["a"]),
    "pandas index": (lambda: pandas.Index([1, 2]), [1, 2]),
    "pandas groups": (lambda: pandas.DataFrame({"a": [1]}).groupby("a"), Refused("return a list or a dictionary")),
    "object that poses": (Posing, Refused("at `$`")),
    "exception": (lambda: ValueError("x"), Refused("ValueError")),
    "function": (lambda: len, Refused("builtin_function")),
    "class": (lambda: int, Refused("type")),
    "unset": (lambda: [msgspec.UNSET], Refused("UnsetType")),
    "object": (lambda: {"a b": [Opaque()]}, OPAQUE),
    "half a character": (lambda: {"rows": [{"t": "\ud800"}]}, Refused("surrogate pair, which UTF-8 can't express - at `$.rows[0].t`")),
    "raw": (lambda: msgspec.Raw(b'{"a":1}'), {"a": 1}),
    "broken raw": (lambda: {"a": msgspec.Raw(b"]}{bad")}, Refused("Raw that is not JSON")),
    "itself": (endless, TOO_DEEP),
    "deep": (lambda: nested(MOST_LEVELS), nested(MOST_LEVELS)),
    "too deep": (lambda: nested(MOST_LEVELS + 1), TOO_DEEP),
    "far too deep": (lambda: nested(100_000), TOO_DEEP),
    "brackets": (lambda: ['[{\\"' * 500], ['[{\\"' * 500]),
    "huge": (lambda: ["ä\0" * 200_000], ["ä\0" * 200_000]),
    "wide number": (lambda: 10**5_000, Refused("")),
}

# What is the key of an object, and what its caller sees.
KEYS: dict[str, tuple[Callable[[], Any], Any]] = {
    "none": (lambda: None, "null"),
    "true": (lambda: True, "true"),
    "int": (lambda: 1, "1"),
    "int of its own": (lambda: Whole(3), "3"),
    "float": (lambda: 1.5, "1.5"),
    "float of its own": (lambda: Real(2.5), "2.5"),
    "text of its own": (lambda: Text("x"), "x"),
    "lying text": (lambda: Lying("x"), "x"),
    "number enum": (lambda: Level.HIGH, "3"),
    "enum": (lambda: Colour.RED, "red"),
    "path": (lambda: pathlib.Path("/a"), "/a"),
    "date": (lambda: datetime.date(2020, 1, 2), "2020-01-02"),
    "uuid": (lambda: uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "decimal": (lambda: decimal.Decimal("1.5"), "1.5"),
    "numpy int": (lambda: numpy.int64(1), "1"),
    "numpy bool": (lambda: numpy.bool_(False), "false"),
    "bytes": (lambda: b"a", "YQ=="),
    "tuple": (lambda: (1, 2), Refused("a key is a text or a number, not a tuple - at `$.keys`")),
    "object": (Opaque, Refused("Opaque")),
    "half a character": (lambda: "\ud800", HALF),
}


def keyed(make: Callable[[], Any]) -> Callable[[], Any]:
    """Make an object with one key."""
    return lambda: {"keys": {make(): 1}}


KINDS |= {f"key: {name}": (keyed(make), key if isinstance(key, Refused) else {"keys": {key: 1}}) for name, (make, key) in KEYS.items()}

# What is returned, and what the caller's `output` is.
TEXTS: dict[str, tuple[Callable[[], Any], str]] = {
    "none": (lambda: None, ""),
    "text": (lambda: "tëxt", "tëxt"),
    "text of its own": (lambda: Text("x"), "x"),
    "lying text": (lambda: Lying("x"), "x"),
    "numpy text": (lambda: numpy.str_("x"), "x"),
    "text enum": (lambda: Word.YES, "yes"),
    "half a character": (lambda: "a\ud800b", "a\ufffdb"),
    "half a character of its own": (lambda: Text("a\ud800b"), "a\ufffdb"),
    "whole pair": (lambda: "\ud83d\ude00", "😀"),
    "controls": (lambda: "\0" * 65_536, "\0" * 65_536),
    "huge": (lambda: "ä\0" * 200_000, "ä\0" * 200_000),
}


class Secret(pydantic.BaseModel):
    """A model with bytes, of which some are text, and a secret."""

    picture: bytes = b"\xff"
    note: bytes = b"text"
    password: pydantic.SecretStr = pydantic.SecretStr("hush")


def attached(place: int, data: bytes, media_type: str = UNKNOWN) -> dict[str, Any]:
    """Return what stands in data for bytes."""
    return {"attachment": place, "media_type": media_type, "bytes": len(data)}


AB, PICTURE = Blob(UNKNOWN, b"ab"), Blob("image/png", png())
AB_DATA = attached(0, b"ab")
# What is returned, the caller's `data`, and its `content`; bytes alone are no data.
BYTES: dict[str, tuple[Callable[[], Any], Any, tuple[Blob, ...]]] = {
    "bytes": (lambda: b"ab", None, (AB,)),
    "bytes of its own": (lambda: Bytes(b"ab"), None, (AB,)),
    "bytearray": (lambda: bytearray(b"ab"), None, (AB,)),
    "view": (lambda: memoryview(b"ab"), None, (AB,)),
    "numpy bytes": (lambda: numpy.bytes_(b"ab"), None, (AB,)),
    "picture": (png, None, (PICTURE,)),
    "blob": (lambda: PICTURE, None, (PICTURE,)),
    "in an object": (lambda: {"a": b"ab", "n": 1}, {"a": AB_DATA, "n": 1}, (AB,)),
    "in a dataclass": (lambda: [Data(bytearray(b"ab"))], [{"a": AB_DATA}], (AB,)),
    "in a model": (Secret, {"picture": attached(0, b"x"), "note": "text", "password": "*" * 10}, (Blob(UNKNOWN, b"\xff"),)),
    "several": (lambda: (b"ab", {"b": PICTURE}), [AB_DATA, {"b": attached(1, png(), "image/png")}], (AB, PICTURE)),
    "deep": (lambda: {"a": [[{"b": [1, b"ab"]}]]}, {"a": [[{"b": [1, AB_DATA]}]]}, (AB,)),
}


def fails(**fields: Any) -> Any:
    """Raise a ToolError."""
    raise ToolError(**{"message": "no", **fields})


def tells(*args: Any) -> str:
    """Tell how far it is."""
    invocation().progress(*args)
    return "told"


BAD_RESULT = ("tool_error", "bad_result")
# What is done, and the error's type, code, and some words of the message; None for a success.
FIELDS: dict[str, tuple[Callable[[], Any], tuple[str, str, str] | None]] = {
    "output is a number": (lambda: ToolResult(output=5), (*BAD_RESULT, "output is a text")),
    "output is a text of its own": (lambda: ToolResult(output=Lying("x")), None),
    "output is half a character": (lambda: ToolResult(output="\ud800", data=[1]), None),
    "error is a text": (lambda: ToolResult(success=False, error="broken"), (*BAD_RESULT, "error is an ErrorInfo")),
    "failure without a reason": (lambda: ToolResult(success=False), ("tool_error", "", "without a reason")),
    "content is a list": (lambda: ToolResult(output="", content=[Blob("a/b", b"")]), None),
    "content is a text": (lambda: ToolResult(output="", content="blob"), (*BAD_RESULT, "content is a tuple of Blobs")),
    "content is a number": (lambda: ToolResult(output="", content=5), (*BAD_RESULT, "content is a tuple of Blobs")),
    "blob of text": (lambda: Blob("a/b", "text"), ("tool_error", "TypeError", "a blob's data is bytes, not str")),
    "blob of no type": (lambda: Blob(None, b""), ("tool_error", "TypeError", "media type is a text")),
    "blob of half a character": (lambda: Blob("\ud800", b""), ("tool_error", "TypeError", "UTF-8")),
    "blob of a long type": (lambda: Blob("a" * 1_000_000, b""), (*BAD_RESULT, "media type")),
    "blob of numbers": (lambda: Blob(Text("a/b"), memoryview(array.array("d", [1.0]))), None),
    "data of nan": (lambda: ToolResult(output="fine", data=float("nan")), ("tool_error", "unencodable_result", "finite")),
    "unknown type": (lambda: fails(type="timeout"), ("tool_error", "", "no")),
    "message is a number": (lambda: fails(message=5), ("tool_error", "", "is no text")),
    "message is half a character": (lambda: fails(message="a\ud800", code="mine"), ("tool_error", "mine", "a\ufffd")),
    "message is huge": (lambda: fails(message="\0" * 2_000_000), ("tool_error", "", "2,000,000 characters, shortened")),
    "code is huge": (lambda: fails(code="c" * 2_000_000), ("tool_error", "c" * 200 + "… (2,000,000 characters, shortened)", "no")),
    "code is a number": (lambda: fails(code=5), ("tool_error", "unencodable_error", "no")),
    "retryable is a number": (lambda: fails(retryable=1), ("tool_error", "", "no")),
    "retry after nan": (lambda: fails(retry_after=float("nan")), ("tool_error", "", "no")),
    "retry after a text": (lambda: fails(retry_after="soon"), ("tool_error", "", "no")),
    "retry after numpy": (lambda: fails(retry_after=numpy.float64(1.5)), ("tool_error", "", "no")),
    "details are an object": (lambda: fails(details=Opaque(), type="forbidden"), ("forbidden", "unencodable_error", "no (its details are")),
    "details are huge": (lambda: fails(details="x" * 2_000_000), ("tool_error", "unencodable_error", "over the limit")),
    "details are nan": (lambda: fails(details=[float("nan")]), ("tool_error", "unencodable_error", "no (its details are")),
    "failed result of an object": (
        lambda: ToolResult.fail(ErrorInfo("forbidden", message="no", details=Opaque())),
        ("forbidden", "unencodable_error", "no (its"),
    ),
    "exception of half a character": (lambda: raises("\ud800"), ("tool_error", "OSError", "\ufffd")),
    "huge exception": (lambda: raises("x" * 2_000_000), ("tool_error", "OSError", "shortened")),
    "progress of a bool": (lambda: tells(True), ("tool_error", "TypeError", "progress: done")),
    "progress of numpy": (lambda: tells(numpy.float64(1.5), Whole(3), Lying("x")), None),
    "progress of a huge text": (lambda: tells(1, 2, "\0" * 2_000_000), None),
}


def raises(text: str) -> Any:
    """Raise what is no ToolError."""
    raise OSError(text)


def made(table: str, kind: str) -> Any:
    """Make a value of a table."""
    return {"kinds": KINDS, "texts": TEXTS, "bytes": BYTES, "fields": FIELDS}[table][kind][0]()


@tool(effect="read")
async def returned(table: str, kind: str) -> Any:
    """Return it from the event loop."""
    return made(table, kind)


@tool(effect="read")
def returned_in_thread(table: str, kind: str) -> Any:
    """Return it from a thread."""
    return made(table, kind)


@tool(effect="read")
async def held(table: str, kind: str) -> Any:
    """Return it as data."""
    value = made(table, kind)
    return value if isinstance(value, ToolResult) else ToolResult(data=value)


@tool(effect="read")
async def yielded(table: str, kind: str) -> AsyncIterator[Any]:
    """Yield it."""
    yield made(table, kind)


@tool(effect="read")
def yielded_in_thread(table: str, kind: str) -> Iterator[Any]:
    """Yield it from a thread."""
    yield made(table, kind)


@tool(effect="read", isolation="process")
def returned_in_child(table: str, kind: str) -> Any:
    """Return it from another process."""
    return made(table, kind)


@tool(effect="read", isolation="process")
async def yielded_in_child(table: str, kind: str) -> AsyncIterator[Any]:
    """Yield it in another process."""
    yield made(table, kind)
