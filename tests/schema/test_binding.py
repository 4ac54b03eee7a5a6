"""Arguments on their way from JSON to a function: what is converted, what is left to defaults, and what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schema.samples import Colour, Point, refused, search
from toolbus.bus.schema.derivation import derive
from toolbus.bus.values.results import ToolError


def test_bound_arguments_leave_defaults_to_the_function() -> None:
    """Only what the caller gave is passed on."""
    assert derive(search).bind({"query": "x"}) == {"query": "x"}
    assert derive(search).bind({"query": "x", "exact": True}) == {"query": "x", "exact": True}


def test_a_wrong_value_names_its_place_and_the_schema() -> None:
    """A refusal carries the path, what was expected, and the schema there."""
    assert refused(derive(search).bind, {"query": "x", "count": "many"}) == (
        'Expected `int`, got `str` - at `$.count` (schema: {"type":"integer"})'
    )


def test_unknown_and_missing_names_are_told_together() -> None:
    """A misspelt required argument is answered with both halves of the mistake."""
    assert refused(derive(search).bind, {"qery": "x"}) == (
        "Unexpected `qery` - at `$` (known: `query`, `count`, `exact`); Missing required `query` - at `$.query`"
    )


@pytest.mark.parametrize("arguments", [None, [], "x", 3])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    """Only an object can be bound."""
    assert refused(derive(search).bind, arguments).startswith("Expected `object`, got `")


@pytest.mark.usefixtures("slow")
@given(
    n=st.integers(),
    x=st.floats(allow_nan=False),
    s=st.text(alphabet=st.characters(codec="utf-8")),
    when=st.datetimes(),
    data=st.binary(),
    colour=st.sampled_from(Colour),
    point=st.builds(Point, st.integers(), st.integers()),
    many=st.lists(st.integers() | st.none()),
)
def test_values_survive_json_and_binding(**values: Any) -> None:
    """Values that are encoded as JSON come back as the same values."""

    def f(
        *, n: int, x: float, s: str, when: datetime.datetime, data: bytes, colour: Colour, point: Point, many: list[int | None]
    ) -> None: ...

    assert derive(f).bind(msgspec.to_builtins(values)) == values


@pytest.mark.usefixtures("slow")
@given(
    st.dictionaries(st.text() | st.sampled_from(["query", "count", "exact"]), st.recursive(st.none() | st.integers() | st.text(), st.lists))
)
def test_binding_only_ever_raises_tool_error(arguments: dict[str, Any]) -> None:
    """For any JSON object the answer is keyword arguments or a bounded refusal."""
    try:
        bound = derive(search).bind(arguments)
    except ToolError as error:
        bound, message = arguments, error.error.message
    else:
        message = ""
    assert bound == arguments
    assert len(message) <= 1000
