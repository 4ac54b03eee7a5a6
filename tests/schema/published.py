"""Schemas as people and programs publish them, with arguments that their tools take and arguments that they don't.

Each was written for this suite, after the habits of public function-calling data: types of other languages, enumerations that
contradict their type, requirements and defaults in the wrong place.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    """One tool's schema, arguments that are right, and arguments that are wrong."""

    name: str
    schema: dict[str, Any]
    right: list[dict[str, Any]]
    wrong: list[dict[str, Any]]


def _of(name: str, properties: dict[str, Any], required: list[str], right: list[dict[str, Any]], wrong: list[dict[str, Any]]) -> Published:
    return Published(name, {"type": "dict", "properties": properties, "required": required}, right, wrong)


PUBLISHED = [
    _of(
        "floats take whole numbers",
        {"base": {"type": "float"}, "height": {"type": "float", "default": 1}, "unit": {"type": "string", "default": "cm"}},
        ["base"],
        [{"base": 10}, {"base": 10.5, "height": 5}, {"base": "10.5"}, {"base": 3, "height": None, "unit": "m"}],
        [{"height": 5}, {"base": "ten"}, {"base": [10]}, {"base": True}, {"base": None}, {"base": 1, "unit": 3}],
    ),
    _of(
        "whole numbers",
        {"n": {"type": "int"}, "big": {"type": "long"}},
        ["n"],
        [{"n": 5}, {"n": 5.0}, {"n": "5"}, {"n": 5, "big": 9007199254740993}],
        [{"n": 5.5}, {"n": "5.5"}, {"n": "five"}, {"n": True}, {"n": []}, {"big": 1}],
    ),
    _of(
        "tuples of floats",
        {"point": {"type": "tuple", "items": {"type": "float"}}, "box": {"type": "tuple", "items": [{"type": "int"}, {"type": "int"}]}},
        ["point"],
        [{"point": [1, 2.5]}, {"point": "[1, 2.5]"}, {"point": [0, 0], "box": [1, 2]}],
        [{"point": ["x", 1]}, {"point": 1}, {"point": {"x": 1}}, {"point": [1], "box": ["a", 2]}],
    ),
    _of(
        "anything",
        {"value": {"type": "any"}, "key": {"type": "String"}},
        ["value", "key"],
        [{"value": each, "key": "k"} for each in (1, "1", None, True, [1], {"a": 1})],
        [{"key": "k"}, {"value": 1}, {"value": 1, "key": 2}],
    ),
    _of(
        "maps",
        {"record": {"type": "dict", "description": "fields"}, "table": {"type": "HashMap<String, Integer>"}, "odd": {"type": "Hashtable"}},
        ["record"],
        [{"record": {}}, {"record": {"a": [1]}}, {"record": '{"a": 1}'}, {"record": {}, "table": {"x": 1}}],
        [{"record": []}, {"record": "a"}, {"record": {}, "table": [1]}, {"record": '{"a": 1, "a": 2}'}],
    ),
    _of(
        "objects within objects",
        {
            "filter": {
                "type": "dict",
                "properties": {"min": {"type": "float", "optional": True}, "tag": {"type": "string", "required": True}},
            }
        },
        ["filter"],
        [{"filter": {"tag": "x"}}, {"filter": {"tag": "x", "min": 3}}, {"filter": '{"tag": "x"}'}],
        [{"filter": {}}, {"filter": {"min": 1}}, {"filter": {"tag": 1}}, {}],
    ),
    _of(
        "an enumeration for the items",
        {"metrics": {"type": "array", "items": {"type": "string"}, "enum": ["cpu", "memory", "disk"]}},
        ["metrics"],
        [{"metrics": ["cpu"]}, {"metrics": ["disk", "memory"]}, {"metrics": []}, {"metrics": '["cpu"]'}],
        [{"metrics": ["gpu"]}, {"metrics": "cpu"}, {"metrics": [1]}, {"metrics": ["CPU"]}, {}],
    ),
    _of(
        "an enumeration for items without a schema",
        {"days": {"type": "list", "enum": [1, 2, 3]}},
        ["days"],
        [{"days": [1, 3]}, {"days": [2.0]}],
        [{"days": [4]}, {"days": 1}, {"days": ["x"]}],
    ),
    _of(
        "an enumeration of whole lists",
        {"pair": {"type": "array", "enum": [[1, 2], [3, 4]]}},
        ["pair"],
        [{"pair": [1, 2]}],
        [{"pair": [1]}, {"pair": 1}, {"pair": [2, 1]}],
    ),
    _of(
        "booleans by Python's words",
        {"force": {"type": "boolean", "enum": ["True", "False"]}, "quiet": {"type": "bool", "enum": ["true"]}},
        ["force"],
        [{"force": True}, {"force": False}, {"force": "True"}, {"force": "false"}, {"force": True, "quiet": True}],
        [{"force": "yes"}, {"force": 1}, {"force": None}, {"force": True, "quiet": False}, {}],
    ),
    _of(
        "booleans by other words",
        {"wait": {"type": "boolean", "enum": ["yes", "no"]}},
        ["wait"],
        [{"wait": True}, {"wait": False}, {"wait": "true"}],
        [{"wait": "yes"}, {"wait": 0}, {"wait": "maybe"}],
    ),
    _of(
        "numbers as texts",
        {"level": {"type": "integer", "enum": ["1", "2", "3"]}, "share": {"type": "float", "enum": ["0.5", "1"]}},
        ["level"],
        [{"level": 1}, {"level": "2"}, {"level": 3, "share": 0.5}, {"level": 3, "share": 1}, {"level": 3.0}],
        [{"level": 4}, {"level": "4"}, {"level": 1, "share": 0.7}, {"level": True}, {"level": 1.5}],
    ),
    _of(
        "texts as numbers",
        {"year": {"type": "string", "enum": [2022, 2023]}, "flag": {"type": "string", "enum": [True, False]}},
        ["year"],
        [{"year": "2022"}, {"year": 2023}, {"year": "2022", "flag": True}, {"year": "2022", "flag": "false"}],
        [{"year": 2024}, {"year": "2024"}, {"year": [2022]}, {"year": "2022", "flag": 1}],
    ),
    _of(
        "words for a number",
        {"speed": {"type": "integer", "enum": ["slow", "fast"]}, "size": {"type": "integer", "enum": [1, 2, "auto"]}},
        ["speed"],
        [{"speed": "slow"}, {"speed": "fast", "size": 1}, {"speed": "fast", "size": "auto"}],
        [{"speed": 1}, {"speed": "quick"}, {"speed": "slow", "size": 3}, {"speed": "slow", "size": "big"}],
    ),
    _of(
        "null among the values",
        {"order": {"type": "string", "enum": ["asc", "desc", None]}},
        ["order"],
        [{"order": "asc"}, {"order": None}],
        [{"order": "up"}, {"order": 1}, {}],
    ),
    _of(
        "texts that a boolean or a number stands for",
        {"raw": {"type": "string", "enum": ["true", "false"]}, "stars": {"type": "string", "enum": ["1", "2", "any"]}},
        ["raw"],
        [{"raw": False}, {"raw": "true"}, {"raw": True, "stars": 2}, {"raw": True, "stars": 2.0}, {"raw": True, "stars": "any"}],
        [{"raw": 1}, {"raw": 0}, {"raw": "yes"}, {"raw": True, "stars": 3}, {"raw": True, "stars": True}],
    ),
    _of(
        "several texts for one number",
        {"version": {"type": "string", "enum": ["1", "1.0", "2"]}},
        ["version"],
        [{"version": "1"}, {"version": "1.0"}, {"version": 2}],
        [{"version": 1}, {"version": 1.0}, {"version": True}],
    ),
    _of(
        "optional inside, required outside",
        {"city": {"type": "string"}, "state": {"type": "string", "optional": True}, "zip": {"type": "string", "optional": "true"}},
        ["city", "state"],
        [{"city": "Rome"}, {"city": "Rome", "state": "RM"}, {"city": "Rome", "state": None, "zip": None}],
        [{"state": "RM"}, {"city": 1}, {"city": "Rome", "state": 5}],
    ),
    Published(
        "required inside",
        {
            "type": "object",
            "properties": {
                "a": {"type": "int", "required": "yes"},
                "b": {"type": "int", "required": False},
                "c": {"type": "int", "optional": False},
            },
        },
        [{"a": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}],
        [{"b": 1}, {"a": 1}, {"c": 1}],
    ),
    _of(
        "defaults outside their enumeration",
        {
            "sort": {"type": "string", "enum": ["price", "name"], "default": ""},
            "kind": {"type": "string", "enum": ["new", "used"], "default": "all"},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "Celsius"},
        },
        [],
        [{}, {"sort": ""}, {"kind": "all"}, {"sort": "price", "kind": "used"}, {"unit": "kelvin"}],
        [{"sort": "size"}, {"kind": "any"}, {"kind": 1}, {"unit": "fahrenheit"}],
    ),
    _of(
        "defaults outside their type",
        {
            "limit": {"type": "integer", "default": "10"},
            "most": {"type": "integer", "default": "unlimited"},
            "tags": {"type": "array", "items": {"type": "string"}, "default": "none"},
            "code": {"type": "string", "default": 0},
            "ratio": {"type": "float", "default": None},
            "age": {"type": "integer", "minimum": 0, "default": -1},
        },
        [],
        [
            {},
            {"limit": 10},
            {"limit": "10"},
            {"most": "unlimited"},
            {"most": 5},
            {"tags": "none"},
            {"code": 0},
            {"ratio": None},
            {"age": -1},
        ],
        [{"limit": "ten"}, {"most": "few"}, {"tags": "some"}, {"code": 1}, {"ratio": "half"}, {"age": -2}, {"limit": -1.5}],
    ),
    _of(
        "a default outside its enumeration that is required",
        {"mode": {"type": "string", "enum": ["fast", "slow"], "default": "auto"}},
        ["mode"],
        [{"mode": "fast"}],
        [{"mode": "quick"}, {}],
    ),
    _of(
        "nullable",
        {"note": {"type": "string", "nullable": True}, "kind": {"type": "string", "enum": ["a", "b"], "nullable": True}},
        ["note", "kind"],
        [{"note": None, "kind": None}, {"note": "x", "kind": "a"}],
        [{"note": 1, "kind": "a"}, {"note": "x", "kind": "c"}, {"note": "x"}],
    ),
    _of(
        "choices between types",
        {"id": {"type": "Union[int, str]"}, "when": {"type": "str | None"}, "ids": {"type": "List[int]"}},
        ["id"],
        [{"id": 1}, {"id": "a"}, {"id": "5", "when": None}, {"id": 1, "ids": ["1", 2]}],
        [{"id": 1.5}, {"id": []}, {"id": 1, "ids": ["x"]}, {"id": 1, "when": 5}],
    ),
    _of(
        "enumerations within arrays of objects",
        {
            "orders": {
                "type": "array",
                "items": {
                    "type": "dict",
                    "properties": {"item": {"type": "string"}, "paid": {"type": "boolean", "enum": ["True", "False"]}},
                    "required": ["item"],
                },
            }
        },
        ["orders"],
        [{"orders": []}, {"orders": [{"item": "tea", "paid": True}]}, {"orders": '[{"item": "tea"}]'}],
        [{"orders": [{"paid": True}]}, {"orders": [{"item": "tea", "paid": "soon"}]}, {"orders": {"item": "tea"}}],
    ),
]
