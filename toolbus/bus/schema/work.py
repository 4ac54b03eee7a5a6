"""Look into schemas and arguments within bounds, and estimate the work of checking arguments.

With references, a short schema can apply a thousand schemas to a single value.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec

from toolbus.bus.support.safe_text import in_utf8

# Most steps (of about 20 ns) for checking one value, with everything nested in it along one path.
MOST_STEPS = 2_000_000
# Schemas and the arguments within them nest on the native stack: 500 levels overflow a thread's stack of 256 KB.
_MOST_HEIGHT = 400
_MOST_LEVELS = 64
# A schema smaller than this, with every reference replaced by its target, needs no closer look.
_FEW = 2_000
_MOST_NODES = 50_000
_MOST_MEANT = 16
_MOST_MERGED = 50_000
_MOST_VISITS = 200_000
# A pattern with look-around or a back-reference may backtrack for 3 ms.
_BACKTRACKING = re.compile(r"\(\?<?[=!]|\\[1-9k]")
_MOST_BACKTRACKING = 50

JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS = ("$defs", "definitions")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
# To find out what was evaluated, everything that applies to the value is checked again.
_AGAIN = 3
# Keywords that cost more than their size suggests.
_CLOSELY = frozenset({"$id", "patternProperties", *_UNEVALUATED})
_UNKNOWN = ""
# Keywords whose schemas apply to the value itself (the first two) or to anything within it.
_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_WITHIN = ("additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "unevaluatedItems", "additionalItems")


class EndlessError(ValueError):
    """A schema that can't be checked within bounds; the message gives the reason."""


class Work(msgspec.Struct, frozen=True):
    """The steps that a schema needs, by the depth of the arguments.

    Attributes:
        levels: most containers within each other in the arguments; None when there is no limit.
    """

    _steps: list[int]
    levels: int | None

    def steps(self, levels: int) -> int:
        """Return about how many steps arguments with ``levels`` nested containers take at most."""
        return self._steps[min(levels, len(self._steps) - 1)]


def work_of(schema: Mapping[str, Any]) -> Work:
    """Return the work that a schema causes.

    Raises:
        EndlessError: it needs too many steps for any arguments, or applies itself to the same value without end.
    """
    size = unfolded(schema)
    if size is not None and size <= _FEW:
        return Work([size], None)
    return _Graph(schema).work()


def unfolded(schema: Mapping[str, Any]) -> int | None:
    """Return the size of a schema with every reference replaced, or None when it is recursive or refers to more than its definitions."""
    own: dict[str, tuple[int, list[str]]] = {}
    for key in _DEFINITIONS:
        parts = schema.get(key)
        for name, part in parts.items() if isinstance(parts, Mapping) else ():
            own[f"#/{key}/{name}"] = _size(part)
    total, references = _size({key: value for key, value in schema.items() if key not in _DEFINITIONS})
    sizes: dict[str, int] = {}
    try:
        return total + sum(_replaced(reference, own, sizes) for reference in references)
    except (KeyError, RecursionError):
        return None


def _replaced(reference: str, own: Mapping[str, tuple[int, list[str]]], sizes: dict[str, int]) -> int:
    known = sizes.get(reference)
    if known is None:
        total, references = own[reference]
        # Recursion without end when a definition refers to itself; the caller catches the RecursionError.
        sizes[reference] = known = total + sum(_replaced(each, own, sizes) for each in references)
    return known


def _size(schema: object) -> tuple[int, list[str]]:
    """Return how many steps a schema's own text causes at most, and its references."""
    total = 0
    references: list[str] = []
    left: list[object] = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            total += 1 + len(part)
            for key, value in part.items():
                if isinstance(value, (Mapping, list, tuple)):
                    left.append(value)
                elif key in REFERENCES and isinstance(value, str):
                    references.append(value)
                elif key == "pattern" and isinstance(value, str) and _BACKTRACKING.search(value):
                    references.append(_UNKNOWN)
                if key in _CLOSELY:
                    references.append(_UNKNOWN)
        elif isinstance(part, (list, tuple)):
            total += len(part)
            left += part
    return total, references


class _Node:
    """One schema: its own steps, and the schemas that apply to the same value, to its members by name, and to any member.

    ``here`` holds alternatives: a reference may mean one of several schemas.
    """

    __slots__ = ("again", "backtracking", "here", "named", "own", "within")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.own = 1 + len(schema) + len(listed(schema.get("enum")))
        patterns = [*mapped(schema.get("patternProperties")), schema.get("pattern")]
        self.backtracking = sum(1 for each in patterns if isinstance(each, str) and _BACKTRACKING.search(each))
        self.again = 1 if all(key not in schema for key in _UNEVALUATED) else _AGAIN
        self.here: list[list[int]] = []
        self.named: list[tuple[str, int]] = []
        self.within: list[int] = []


class _Graph:
    """All schemas that a schema applies, and to which values."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._places = _Places(root)
        self._numbers: dict[int, int] = {}
        self._nodes: list[_Node] = []
        self._waiting: list[tuple[int, Mapping[str, Any]]] = []
        self._number(root)
        while self._waiting:
            self._fill(*self._waiting.pop())
        self._order = self._postorder()

    def _number(self, schema: object) -> int | None:
        """Return the number of a schema; None for one that applies nothing."""
        if not isinstance(schema, Mapping):
            return None
        known = self._numbers.get(id(schema))
        if known is not None:
            return known
        if len(self._nodes) >= _MOST_NODES:
            raise EndlessError(f"it consists of more than {_MOST_NODES} schemas")
        number = self._numbers[id(schema)] = len(self._nodes)
        self._nodes.append(_Node(schema))
        self._waiting.append((number, schema))
        return number

    def _fill(self, number: int, schema: Mapping[str, Any]) -> None:
        node = self._nodes[number]
        for key in REFERENCES:
            reference = schema.get(key)
            if isinstance(reference, str):
                self._alternatives(node, self._places.meant(schema, reference))
        for key in _LISTS:
            for part in listed(schema.get(key)):
                self._alternatives(node, [part])
        for key in _HERE:
            self._alternatives(node, [schema.get(key)])
        for key in ("dependentSchemas", "dependencies"):
            for part in mapped(schema.get(key)).values():
                self._alternatives(node, [part])
        for name, part in mapped(schema.get("properties")).items():
            below = self._number(part)
            if below is not None:
                node.named.append((str(name) or "$", below))
        items = schema.get("items")
        further = [
            *(schema.get(key) for key in _WITHIN), *mapped(schema.get("patternProperties")).values(),
            *listed(schema.get("prefixItems")), *(items if isinstance(items, list) else [items]),
        ]  # fmt: skip
        node.within += [below for below in map(self._number, further) if below is not None]

    def _alternatives(self, node: _Node, schemas: list[Any]) -> None:
        numbers = [number for number in map(self._number, schemas) if number is not None]
        if numbers:
            node.here.append(numbers)

    def _postorder(self) -> list[int]:
        """Return the schemas in an order where each follows those that it applies to the same value.

        Raises:
            EndlessError: a schema applies itself to the same value, perhaps through others.
        """
        order: list[int] = []
        state = bytearray(len(self._nodes))
        for start in range(len(self._nodes)):
            path: list[tuple[int, Iterator[tuple[list[int], int]]]] = []
            if not state[start]:
                state[start] = 1
                path.append((start, self._below(start)))
            while path:
                number, below = path[-1]
                step = next(below, None)
                if step is None:
                    path.pop()
                    state[number] = 2
                    order.append(number)
                    continue
                alternatives, each = step
                if state[each] == 1:
                    if len(alternatives) == 1:
                        raise EndlessError("a schema refers to itself for the same value, without end")
                    # Another of the alternatives must be the one that is meant.
                    alternatives.remove(each)
                elif not state[each]:
                    state[each] = 1
                    path.append((each, self._below(each)))
        return order

    def _below(self, number: int) -> Iterator[tuple[list[int], int]]:
        for alternatives in self._nodes[number].here:
            for each in tuple(alternatives):
                yield alternatives, each

    def work(self) -> Work:
        """Add up the steps for each depth of arguments, until they are too many or stop growing."""
        steps, levels = self._grown([node.own for node in self._nodes], MOST_STEPS)
        patterns = [node.backtracking for node in self._nodes]
        if any(patterns):
            _, at_most = self._grown(patterns, _MOST_BACKTRACKING)
            levels = at_most if levels is None else levels if at_most is None else min(levels, at_most)
        return Work(steps, levels)

    def _grown(self, own: list[int], most: int) -> tuple[list[int], int | None]:
        """Return the sums of ``own`` for each depth of arguments, and the greatest allowed depth; None when any is."""
        here, heights_here = [0] * len(own), [0] * len(own)
        for number in self._order:
            node = self._nodes[number]
            here[number] = min(own[number] + node.again * sum(max(here[each] for each in group) for group in node.here), most + 1)
            heights_here[number] = 1 + max((heights_here[each] for group in node.here for each in group), default=0)
        costs, heights = here, heights_here
        steps: list[int] = []
        while len(steps) <= _MOST_LEVELS and (len(steps) < 2 or len(steps) * len(own) <= _MOST_VISITS):
            further, higher = self._deeper(here, costs, heights, most)
            if further[0] > most or higher[0] > _MOST_HEIGHT:
                if not steps:
                    raise EndlessError("its parts refer to each other so often that one value would be checked without end")
                break
            steps.append(further[0])
            if further == costs and higher == heights:
                return steps, None
            costs, heights = further, higher
        return steps, len(steps) - 1

    def _deeper(self, here: list[int], costs: list[int], heights: list[int], most: int) -> tuple[list[int], list[int]]:
        """Return sums and heights for arguments one level deeper than those of ``costs`` and ``heights``."""
        count = len(self._nodes)
        within, named = [0] * count, [_NOTHING] * count
        further, higher = [0] * count, [0] * count
        merged = 0
        for number in self._order:
            node = self._nodes[number]
            any_member = sum(costs[each] for each in node.within)
            by_name = {name: costs[each] for name, each in node.named}
            for group in node.here:
                any_member += node.again * max(within[each] for each in group)
                of_group = named[group[0]] if len(group) == 1 else _most([named[each] for each in group])
                merged += len(of_group)
                for name, cost in (of_group if merged < _MOST_MERGED else {_EACH: _highest(of_group)}).items():
                    by_name[name] = by_name.get(name, 0) + node.again * cost
            within[number], named[number] = any_member, by_name
            further[number] = min(here[number] + any_member + _highest(by_name), most + 1)
            below = max((heights[each] for each in (*node.within, *(each for _, each in node.named))), default=0)
            higher[number] = 1 + max(below, max((higher[each] for group in node.here for each in group), default=0))
        return further, higher


_NOTHING: dict[str, int] = {}
# Stands for many names that are not told apart.
_EACH = ""


def _highest(by_name: dict[str, int]) -> int:
    """Return the steps for the name that takes the most."""
    return max((cost for name, cost in by_name.items() if name != _EACH), default=0) + by_name.get(_EACH, 0)


class _Places:
    """Finds what references may mean: parts of the document by their path, by an anchor, or by an identifier."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._named: dict[str, list[Mapping[str, Any]]] = {}
        self._anchors: dict[str, list[Mapping[str, Any]]] = {}
        # The enclosing schema with its own identifier for each part; parts without an entry belong to the root.
        self._bases: dict[int, Mapping[str, Any]] = {}
        left: list[tuple[object, Mapping[str, Any]]] = [(root, root)]
        while left:
            part, base = left.pop()
            if isinstance(part, Mapping):
                base = self._add(part, base)
            left += [(each, base) for each in _parts(part) if isinstance(each, (Mapping, list, tuple))]

    def _add(self, part: Mapping[str, Any], base: Mapping[str, Any]) -> Mapping[str, Any]:
        identifier = part.get("$id", part.get("id"))
        if isinstance(identifier, str):
            document, _, anchor = identifier.partition("#")
            if document:
                self._named.setdefault(_last(document), []).append(part)
                base = part
            else:
                self._anchors.setdefault(anchor, []).append(part)
        for key in ("$anchor", "$dynamicAnchor"):
            name = part.get(key)
            if isinstance(name, str):
                self._anchors.setdefault(name, []).append(part)
        if base is not self._root:
            self._bases[id(part)] = base
        return base

    def meant(self, schema: Mapping[str, Any], reference: str) -> list[Any]:
        """Return the schemas that a reference in a schema may mean.

        Raises:
            EndlessError: there are too many of them.
        """
        document, _, fragment = reference.partition("#")
        if fragment and not fragment.startswith("/"):
            found: list[Any] = self._anchors.get(unquote(fragment), [])
        else:
            named = self._named.get(_last(document)) if document else None
            bases = named or [self._bases.get(id(schema), self._root), self._root]
            found = [part for part in (at_pointer(base, fragment) for base in bases[: _MOST_MEANT + 1]) if part is not None]
        if len(found) > _MOST_MEANT:
            raise EndlessError(f"{reference[:100]!r} may mean more than {_MOST_MEANT} schemas")
        return [each for index, each in enumerate(found) if all(each is not other for other in found[:index])]


def _last(document: str) -> str:
    return document.rstrip("/").rpartition("/")[2]


def at_pointer(base: object, pointer: str) -> Any:
    """Return the part of a document at a JSON pointer, or None when there is none."""
    for step in unquote(pointer).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(base, Mapping):
            base = base.get(name)
        elif isinstance(base, (list, tuple)) and name.isdecimal() and int(name) < len(base):
            base = base[int(name)]
        else:
            return None
    return base


def _most(parts: list[dict[str, int]]) -> dict[str, int]:
    made: dict[str, int] = {}
    for part in parts:
        for name, cost in part.items():
            made[name] = max(made.get(name, 0), cost)
    return made


def mapped(value: object) -> Mapping[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else _NOTHING


def listed(value: object) -> list[Any]:
    """Return a list, or an empty one for anything else."""
    return list(value) if isinstance(value, (list, tuple)) else []


def objects_in(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield every object within a JSON value, itself included, without a stack that it could overflow."""
    left: list[object] = [value]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            yield part
        left += _parts(part)


def _parts(value: object) -> Collection[Any]:
    """Return what an object or a list holds."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


_CONTAINERS = (dict, list, tuple)
_MOST_LOOKED_AT = 10_000


def deeper_than(value: Any, levels: int) -> bool:
    """Return whether containers are nested more than ``levels`` levels below the value."""
    # Plain loops, because this is on the hot path of schemas with references.
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, _CONTAINERS) and (levels <= 0 or deeper_than(child, levels - 1)):
            return True
    return False


def levels_of(value: Any, most: int) -> int:
    """Return how many levels of containers are below the value, counting no further than ``most``."""
    return next((levels for levels in range(most) if not deeper_than(value, levels)), most)


def heavier_than(value: object, limit: int) -> bool:
    """Return whether a value holds more parts than ``limit``, where long strings count more; stop walking at the limit."""
    weight = 0
    left: list[object] = [value]
    while left and weight <= limit:
        value = left.pop()
        parts = _parts(value)
        weight += 1 + len(parts)
        left += islice(parts, limit)
        if isinstance(value, str):
            weight += len(value) // 64
    return weight > limit


def integers_in(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the properties within which a schema may ask for integers; None when it may do so elsewhere, too."""
    if _asks_for_integers([part for key, part in schema.items() if key not in {"properties", "$defs", "definitions"}]):
        return None
    return frozenset(name for name, part in mapped(schema.get("properties")).items() if _asks_for_integers(part))


def _asks_for_integers(part: object) -> bool:
    for each in objects_in(part):
        kinds = each.get("type")
        if kinds == "integer" or (isinstance(kinds, (list, tuple)) and "integer" in kinds) or any(key in each for key in REFERENCES):
            return True
    return False


def holds_float(value: Any) -> bool:
    """Return whether a float is within an object or list that a validator has walked, so that its depth is bounded."""
    for child in value.values() if isinstance(value, dict) else value:
        if isinstance(child, float) or (isinstance(child, _CONTAINERS) and holds_float(child)):
            return True
    return False


def foreign_part(value: object) -> tuple[str | int, ...]:
    """Return the path of a part that JSON can't express, among the first ten thousand; empty when there is none."""
    left: deque[tuple[tuple[str | int, ...], object]] = deque([((), value)])
    for _ in range(_MOST_LOOKED_AT):
        if not left:
            break
        path, part = left.popleft()
        if isinstance(part, dict):
            if not all(isinstance(key, str) and in_utf8(key) for key in part):
                return path
            left += (((*path, key), each) for key, each in islice(part.items(), _MOST_LOOKED_AT))
        elif isinstance(part, (list, tuple)):
            left += (((*path, index), each) for index, each in enumerate(islice(part, _MOST_LOOKED_AT)))
        elif not (in_utf8(part) if isinstance(part, str) else part is None or isinstance(part, (bool, int, float))):
            return path
    return ()


def references(schema: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every reference in a schema, with its path."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key in REFERENCES and isinstance(value, str):
                yield (*path, key), value
            else:
                yield from references(value, (*path, key))
    elif isinstance(schema, (list, tuple)):
        for index, value in enumerate(schema):
            yield from references(value, (*path, index))
