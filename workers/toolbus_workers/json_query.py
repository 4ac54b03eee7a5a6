"""Query, format and compare JSON documents.

A document is given as JSON text or as a value. Both are checked first: size, nesting, and
numbers and characters that JSON can't carry. Queries are JMESPath, run with a meter, since
a short expression can ask for gigabytes (``[@,@]|[@,@]|…`` doubles its input at each step).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, NoReturn

from msgspec import Meta

from toolbus import ToolError, ToolResult, tool
from toolbus.bus.schema.documents import unique

MAX_TEXT = 1_000_000
MAX_DEPTH = 100
MAX_WEIGHT = 4_000_000
MAX_EXPRESSION = 2_000
MAX_WORK = 300_000
MAX_OUTPUT = 1_000_000
MAX_RESULT = 250_000
MAX_DIFFERENCES = 1_000
VALUE_SHOWN = 80
PART = 4_000

Document = str | dict[str, Any] | list[Any]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Difference(NamedTuple):
    """One difference between two documents; ``kind`` is ``+`` (added), ``-`` (removed) or ``~`` (changed)."""

    kind: str
    path: str
    left: Any = None
    right: Any = None

    def __str__(self) -> str:
        if self.kind == "~":
            return f"~ {self.path}: {_brief(self.left)} -> {_brief(self.right)}"
        return f"{self.kind} {self.path}: {_brief(self.right if self.kind == '+' else self.left)}"


def load(document: object, name: str = "document") -> Any:
    """Return the value of a document given as JSON text or as a value.

    Raises:
        ToolError: the document is malformed (with line and column), too large or too deep, or JSON can't carry it.
    """
    value = _parse(document, name) if isinstance(document, str) else document
    Meter(name).weigh(value)
    return value


def query(value: Any, expression: str) -> Any:
    """Return the result of a JMESPath expression on a checked value.

    Raises:
        ToolError: the expression is wrong, fails on this value, or costs too much.
    """
    try:
        import jmespath  # noqa: PLC0415 - from an extra that the module's other tools don't need
        from jmespath import exceptions, functions, visitor  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        message = "json_query needs the package jmespath: pip install 'toolbus[workers]'"
        raise ToolError(message, type="unavailable", code="not_installed") from None
    if len(expression) > MAX_EXPRESSION:
        raise _fail(f"the expression has {len(expression)} characters; at most {MAX_EXPRESSION} are allowed", "too_long")
    meter = Meter("result")
    meter.weigh(value)
    try:
        parsed = jmespath.compile(expression).parsed
        interpreter = visitor.TreeInterpreter(visitor.Options(custom_functions=_Functions(functions.Functions().call_function)))
        # This method visits every node of the expression, also within functions.
        interpreter.visit = _metered(interpreter.visit, meter)
        result = interpreter.visit(parsed, value)
    except exceptions.JMESPathTypeError as error:
        expected = " or ".join(map(str, error.expected_types))
        raise _fail(f"{error.function_name}() takes {expected}, not {error.actual_type}", "bad_expression") from None
    except exceptions.JMESPathError as error:
        # The first line is enough; the others draw an arrow below the expression.
        reason = str(error).partition("\n")[0].removesuffix(", for expression:").rstrip(":")
        raise _fail(f"bad expression: {_cut(reason, 200)}", "bad_expression") from None
    except RecursionError:
        raise _fail("the expression is nested too deeply", "too_deep") from None
    # Errors that jmespath does not catch: comparing text with numbers, a slice with step 0, a sum beyond floats.
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _fail(f"the expression fails on this document: {_cut(str(error), 200)}", "bad_expression") from None
    meter.weigh(result)
    return result


def formatted(value: Any, indent: int, *, sort_keys: bool = False) -> Iterator[str]:
    """Yield a checked value as JSON text, in parts; indent 0 means one line.

    Raises:
        ToolError: the text is too long; earlier parts have been yielded.
    """
    separators = (",", ": ") if indent else (",", ":")
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=indent or None, separators=separators, sort_keys=sort_keys)
    held: list[str] = []
    size = total = 0
    for piece in encoder.iterencode(value):
        held.append(piece)
        size += len(piece)
        if size >= PART:
            total += size
            if total > MAX_OUTPUT:
                raise _fail(f"the formatted document has more than {MAX_OUTPUT:,} characters; use a smaller indent", "output_too_large")
            yield "".join(held)
            held.clear()
            size = 0
    if held:
        yield "".join(held)


def differences(left: Any, right: Any) -> Iterator[Difference]:
    """Yield the differences of two checked values in the order of the left one; lists are compared by position."""
    pending: list[tuple[_Path, Any, Any]] = [(None, left, right)]
    while pending:
        path, old, new = pending.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [*old, *(key for key in new if key not in old)]
            pending.extend(((path, key), old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in reversed(keys))
        elif isinstance(old, list) and isinstance(new, list):
            places = range(max(len(old), len(new)) - 1, -1, -1)
            pending.extend(((path, at), old[at] if at < len(old) else _ABSENT, new[at] if at < len(new) else _ABSENT) for at in places)
        elif new is _ABSENT:
            yield Difference("-", _render(path), left=old)
        elif old is _ABSENT:
            yield Difference("+", _render(path), right=new)
        elif not _same(old, new):
            yield Difference("~", _render(path), old, new)


@tool(category="data", groups=["json"], effect="read", timeout=30.0)
def json_query(document: Document, expression: str) -> ToolResult:
    """Pick, filter and reshape values of a JSON document with a JMESPath expression, e.g. "items[?price > `10`].name".

    Args:
        document: the document, as JSON text or as an object or array
        expression: the JMESPath expression; literals stand in backquotes, strings in single quotes
    """
    result = query(load(document), expression)
    if Meter("result").weigh(result) > MAX_RESULT:
        raise _fail(f"the result is longer than {MAX_RESULT:,} characters; narrow the expression", "output_too_large")
    return ToolResult.ok({"result": result}, output="".join(formatted(result, 2)))


@tool(category="data", groups=["json"], effect="read", timeout=30.0)
def json_format(document: Document, indent: Annotated[int, Meta(ge=0, le=8)] = 2, sort_keys: bool = False) -> Iterator[str]:
    """Check a JSON document and write it out with line breaks and indentation, or on one line.

    Args:
        document: the document, as JSON text or as an object or array
        indent: spaces for each level; 0 writes everything on one line
        sort_keys: write the keys of each object in alphabetical order
    """
    yield from formatted(load(document), indent, sort_keys=sort_keys)


@tool(category="data", groups=["json"], effect="read", timeout=30.0)
def json_diff(
    left: Document, right: Document, max_differences: Annotated[int, Meta(ge=1, le=MAX_DIFFERENCES)] = 200
) -> Iterator[str | ToolResult]:
    """Compare two JSON documents: one line for each difference, with its path (+ added, - removed, ~ changed).

    Args:
        left: the old document, as JSON text or as an object or array
        right: the new document, as JSON text or as an object or array
        max_differences: how many differences to report
    """
    counts = {"+": 0, "-": 0, "~": 0}
    truncated = False
    for number, difference in enumerate(differences(load(left, "left document"), load(right, "right document"))):
        if number == max_differences:
            truncated = True
            yield f"… only the first {max_differences} differences are listed\n"
            break
        counts[difference.kind] += 1
        yield f"{difference}\n"
    equal = not any(counts.values())
    if equal:
        yield "The documents are equal.\n"
    yield ToolResult.ok({"equal": equal, "added": counts["+"], "removed": counts["-"], "changed": counts["~"], "truncated": truncated})


class Meter:
    """Weighs values by their size as JSON, and adds up the work of a query.

    A value that is held in many places is weighed once but counted at each of them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work = 0
        # Keep the value with its weight: after it is freed, a new value could get its id.
        self._known: dict[int, tuple[object, int, int]] = {}

    def weigh(self, value: object) -> int:
        """Return about how many characters the value has as JSON.

        Raises:
            ToolError: the value is too large or too deep, or JSON can't carry it.
        """
        return self._weigh(value, 1)[0]

    def spend(self, value: object) -> None:
        """Charge the query for a step that produced ``value``.

        Raises:
            ToolError: the query has done too much, or the value is too large.
        """
        self._work += 1 + self.weigh(value) // 64
        if self._work > MAX_WORK:
            raise _fail("the expression does too much work on this document; narrow it", "too_expensive")

    def _weigh(self, value: object, level: int) -> tuple[int, int]:
        """Return the weight and the height of a value at a level of nesting, from 1."""
        if isinstance(value, (dict, list)):
            return self._weigh_container(value, level)
        if isinstance(value, str):
            if not value.isascii():
                self._check_characters(value)
            return len(value) + 2, 0
        if value is None or isinstance(value, bool):
            return 5, 0
        if isinstance(value, int):
            return 2 + value.bit_length() // 3, 0
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _fail(f"the {self._name} holds the number {value}, which JSON can't carry", "not_finite")
            return 16, 0
        raise _fail(f"the {self._name} holds something that is not JSON", "not_json")

    def _weigh_container(self, value: dict[Any, Any] | list[Any], level: int) -> tuple[int, int]:
        known = self._known.get(id(value))
        weight, height = (2, 1) if known is None else known[1:]
        if level + height - 1 > MAX_DEPTH:
            raise _fail(f"the {self._name} is nested more than {MAX_DEPTH} levels deep", "too_deep")
        if known is not None:
            return weight, height
        if isinstance(value, dict):
            for key in value:
                weight += self._weigh(key, level)[0] + 1
        for item in value.values() if isinstance(value, dict) else value:
            item_weight, item_height = self._weigh(item, level + 1)
            weight += item_weight + 1
            if item_height >= height:
                height = item_height + 1
            if weight > MAX_WEIGHT:
                raise _fail(f"the {self._name} is larger than {MAX_WEIGHT:,} characters", "too_large")
        self._known[id(value)] = (value, weight, height)
        return weight, height

    def _check_characters(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _fail(
                f"the {self._name} holds a lone surrogate (U+{ord(text[error.start]):04X}), half a character", "bad_character"
            ) from None


class _Functions:
    """JMESPath's functions, with a check before the one that can multiply the size of its arguments."""

    def __init__(self, call: Callable[[str, list[Any]], Any]) -> None:
        self._call = call

    def call_function(self, name: str, arguments: list[Any]) -> Any:
        match name, arguments:
            case "join", [str() as separator, list() as items] if len(separator) * len(items) > MAX_WEIGHT:
                raise _fail(f"the result is larger than {MAX_WEIGHT:,} characters", "too_large")
        return self._call(name, arguments)


def _metered(visit: Callable[..., Any], meter: Meter) -> Callable[..., Any]:
    def metered(node: dict[str, Any], *values: Any) -> Any:
        result = visit(node, *values)
        # `&name` passes an expression to a function, and is not a value.
        if node["type"] != "expref":
            meter.spend(result)
        return result

    return metered


def _fail(message: str, code: str, details: Any = None) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code, details=details)


def _parse(text: str, name: str) -> Any:
    if len(text) > MAX_TEXT:
        raise _fail(f"the {name} has {len(text):,} characters; at most {MAX_TEXT:,} are allowed", "too_large")
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        hint = "; strings and keys take double quotes" if text[error.pos : error.pos + 1] == "'" else ""
        message = f"the {name} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}{hint}"
        raise _fail(message, "bad_json", {"line": error.lineno, "column": error.colno}) from None
    except RecursionError:
        raise _fail(f"the {name} is nested more than {MAX_DEPTH} levels deep", "too_deep") from None
    # Python can't read integers of more than some thousand digits.
    except ValueError as error:
        raise _fail(f"the {name} can't be read: {_cut(str(error), 200)}", "bad_json") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# A path links to its parent's and is rendered only where documents differ, so that long keys are not copied for each value.
_Path = tuple[Any, str | int] | None


class _Absent:
    """Stands for a value that only one of two documents has, since None is a value."""


_ABSENT = _Absent()


def _render(path: _Path) -> str:
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            steps.append(f"[{step}]")
        else:
            steps.append(f".{_cut(step, 60)}" if _IDENTIFIER.match(step) else f"[{json.dumps(_cut(step, 60), ensure_ascii=False)}]")
    return "$" + "".join(reversed(steps))


def _same(old: object, new: object) -> bool:
    # In JSON 1 and 1.0 are the same number, but true is not 1.
    return old == new and isinstance(old, bool) == isinstance(new, bool) and isinstance(old, (dict, list)) == isinstance(new, (dict, list))


def _brief(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False), VALUE_SHOWN)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
