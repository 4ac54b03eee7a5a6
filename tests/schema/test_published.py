"""No right argument for a published schema is refused, and no wrong one is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.schema.published import PUBLISHED, Published
from toolbus import ToolError
from toolbus.bus.client.executor.toolcalls import said
from toolbus.bus.schema.arguments import Preparer, Validator, preparer_for
from toolbus.bus.schema.dialects import strict
from toolbus.bus.schema.mend import mended
from toolbus.bus.values.descriptors import ToolDescriptor


def preparer(schema: dict[str, Any]) -> Preparer:
    """Return what an executor prepares a model's arguments with."""
    return preparer_for(ToolDescriptor("tool", "Does it.", "svc", parameters=schema))


EACH = pytest.mark.parametrize("published", PUBLISHED, ids=[each.name for each in PUBLISHED])


@EACH
def test_right_arguments_are_accepted(published: Published) -> None:
    """Right arguments reach the tool, whole numbers for floats and texts of numbers included, and fits the schema."""
    schema, _ = mended(published.schema)
    prepare = preparer(schema).prepare
    for arguments in published.right:
        made = prepare(said(json.dumps(arguments))[0], [])
        Validator(schema).check(made)


@EACH
def test_wrong_arguments_are_refused(published: Published) -> None:
    """Wrong arguments are refused before the call is published."""
    prepare = preparer(mended(published.schema)[0]).prepare
    for arguments in published.wrong:
        with pytest.raises(ToolError) as refused:
            prepare(said(json.dumps(arguments))[0], [])
        assert refused.value.error.type == "invalid_arguments"


@EACH
def test_a_corrected_schema_is_left_alone(published: Published) -> None:
    """The correction of a corrected schema changes nothing, and the given schema stays as it was."""
    before = json.dumps(published.schema)
    schema, changes = mended(published.schema)
    assert changes
    assert mended(schema) == (schema, [])
    assert json.dumps(published.schema) == before


EXPRESSIBLE = [each for each in PUBLISHED if strict(mended(each.schema)[0]) is not None]


@pytest.mark.parametrize("published", EXPRESSIBLE, ids=[each.name for each in EXPRESSIBLE])
def test_what_strict_mode_allows_is_accepted(published: Published) -> None:
    """Arguments with a null for each property that was left out are accepted, with the same values."""
    schema, _ = mended(published.schema)
    prepare = preparer(schema).prepare
    for arguments in published.right:
        alone = prepare(dict(arguments), [])
        filled = prepare({**dict.fromkeys(schema["properties"]), **arguments}, [])
        assert {name: value for name, value in filled.items() if value is not None} == {k: v for k, v in alone.items() if v is not None}


def test_most_of_them_are_expressible_in_strict_mode() -> None:
    """Corrections leave no keyword behind that strict mode does not know."""
    assert len(EXPRESSIBLE) >= len(PUBLISHED) - 5
