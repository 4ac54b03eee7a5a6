"""A tool that can't be called, or arguments that can't be sent, make a failed call: nothing raises into an agent."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus import tool

pytestmark = pytest.mark.anyio

IMPOSSIBLE: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "nonsense"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
    {"type": "object", "properties": {"a": {"$ref": "http://example.com/elsewhere"}}},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "properties": {"a": {"minimum": "x"}}},
    {"type": "object", "properties": {"a": None}},
    {"type": "object", "properties": 5},
    {"type": "object", "required": 5},
    {"type": "object", "patternProperties": {"(": {}}},
    {"$ref": "#"},
    {"allOf": [{"allOf": [{"$ref": "#"}]}]},
]


@tool("sound", "Take anything.", {"type": "object", "properties": {"n": {"type": "number"}}}, service="schemas", effect="read")
def sound(params: dict[str, Any]) -> Any:
    """Return the arguments."""
    return params


async def test_an_impossible_schema_is_the_tools_error(place: Place) -> None:
    """A worker in another language may publish one: its tools fail and say why, called plainly or by a model, and the others work."""
    settings = place.settings
    table = f"tb:{{{settings.namespace}}}:reg:services"
    async with place.worker(sound):
        with redis.Redis.from_url(settings.url) as client:
            whole = json.loads(client.hget(table, "schemas")[1:])
            one = whole["tools"][0]
            names = [f"bad{number}" for number in range(len(IMPOSSIBLE))]
            whole["tools"] += [{**one, "name": name, "parameters": schema} for name, schema in zip(names, IMPOSSIBLE, strict=True)]
            client.hset(table, "schemas", b"+" + json.dumps(whole).encode())
        async with place.bus() as bus:
            called = [(await bus.call(name, {"a": 1})).error for name in names]
            executed = [await bus.executor().execute(name, {"a": 1}) for name in names]
            assert (await bus.call("sound", {"n": 1})).data == {"n": 1}
    assert [(error.type, error.code) for error in called if error is not None] == [("tool_error", "bad_schema")] * len(IMPOSSIBLE)
    assert all(f"'{name}' is wrong: impossible JSON Schema: " in str(error) for name, error in zip(names, called, strict=True))
    assert [(each.error.type, each.error.code) for each in executed if each.error] == [("tool_error", "bad_schema")] * len(IMPOSSIBLE)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_are_none_are_refused(place: Place, number: float) -> None:
    """NaN and infinity would arrive as null: they are refused by name, whether the schema speaks of them or not."""
    async with place.serving(sound) as bus:
        told = (await bus.call("sound", {"n": number})).error
        untold = (await bus.call("sound", {"other": [None, {"deep": number}]})).error
        assert (await bus.call("sound", {"other": [None]})).data == {"other": [None]}
    assert told is not None
    assert (told.type, f"got `{number}` - at `$.n`" in told.message) == ("invalid_arguments", True)
    assert untold is not None
    assert (untold.type, f"{number} is not a finite number - at `$.other[1].deep`" in untold.message) == ("invalid_arguments", True)
