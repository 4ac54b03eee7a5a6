"""Preparation of a model's arguments: repaired, cast where the schema leaves no doubt, and validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolbus.client.tools.tool import Tool
from toolbus.results import DescriptorError, ToolError
from toolbus.schema import Checker, refusal

_MOST_PREPARERS = 20_000


def said(arguments: object) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a model as an object, and the list of repairs.

    Raises:
        ToolError: ``invalid_arguments``: they can't be read without guessing.
    """
    if isinstance(arguments, (str, bytes)):
        from toolbus.schema.repair import parse  # noqa: PLC0415 - only models send text

        return parse(arguments)
    if arguments is None:
        return {}, []
    if isinstance(arguments, Mapping):
        return (arguments if type(arguments) is dict else dict(arguments)), []
    raise refusal.not_an_object(arguments)


class Preparer:
    """Validates the arguments of one tool, and casts those that are almost right."""

    __slots__ = ("_schema", "_shape", "tool")

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self._schema = tool.descriptor.schema
        self._shape: Checker | None = None
        if tool.descriptor.arguments is not None and self._schema is not None:
            from toolbus.schema import Validator  # noqa: PLC0415 - it loads the compiler of schemas, which few need

            # The types of the two-tier form are for the model and not enforced, but they tell what a text stands for.
            self._shape = Validator(self._schema)

    def prepare(self, arguments: dict[str, Any], changes: list[str]) -> dict[str, Any]:
        """Return arguments that the tool takes; add to ``changes`` what was changed in them, also when they are refused all the same.

        Raises:
            ToolError: ``invalid_arguments``, naming the place.
        """
        shape = self._shape
        try:
            if shape is None:
                self.tool.check(arguments)
            else:
                shape.check(arguments)
        except ToolError:
            if self._schema is None:
                raise
        else:
            return arguments
        from toolbus.schema.casting import cast  # noqa: PLC0415 - most arguments fit as they are

        arguments, casts = cast(arguments, self._schema)
        changes += casts
        self.tool.check(arguments)
        return arguments


class Preparers:
    """One for each tool that was called, until the tool changes."""

    def __init__(self) -> None:
        self._of: dict[str, Preparer] = {}

    def prepare(self, tool: Tool, arguments: dict[str, Any], changes: list[str]) -> dict[str, Any]:
        """Return arguments that the tool takes; add to ``changes`` what was changed in them, also when they are refused all the same.

        Raises:
            ToolError: they do not fit, or the tool's schema is impossible.
        """
        found = self._of.get(tool.descriptor.name)
        try:
            if found is None or found.tool is not tool:
                if len(self._of) >= _MOST_PREPARERS:
                    self._of.clear()
                found = self._of[tool.descriptor.name] = Preparer(tool)
            return found.prepare(arguments, changes)
        except DescriptorError as error:
            raise ToolError(f"the tool's own schema is wrong: {error}", type="tool_error", code="bad_schema") from None
