"""Read the keys by which TrustGraph filters tools: ``group``, ``state`` and ``applicable-states``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from toolbus.results import DescriptorError

_KEYS = ("group", "state", "applicable-states")


class Filters(NamedTuple):
    """The filters of a tool's document.

    Attributes:
        keys: the keys of the document that are filters.
        fields: the tool's ``groups``, when it has a ``group``.
        states: what belongs into the tool's extensions.
    """

    keys: frozenset[str]
    fields: dict[str, Any]
    states: dict[str, Any]

    def extended(self, extensions: Any) -> Any:
        """Return a tool's extensions with its states; what is no object is left for its own check."""
        return {**extensions, **self.states} if self.states and isinstance(extensions, Mapping) else extensions


def filters_of(tool: str, document: Mapping[str, Any], params: Collection[str]) -> Filters:
    """Return the filters in a tool's document.

    Args:
        tool: the tool's name, for messages.
        document: the tool's document.
        params: config params of its service; a param that is named like a filter stays a param.

    Raises:
        DescriptorError: a filter has another type, or both ``group`` and ``groups`` are there.
    """
    found = {key: document[key] for key in _KEYS if key in document and key not in params}
    if "group" in found and "groups" in document:
        raise DescriptorError(f"tool {tool!r} has both 'group' and 'groups'", path="$.group")
    if not isinstance(found.get("state", ""), str):
        raise DescriptorError(f"the key 'state' of tool {tool!r} must be a string", path="$.state")
    for key in ("group", "applicable-states"):
        value = found.get(key, [])
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise DescriptorError(f"the key {key!r} of tool {tool!r} must be a list of strings", path=f"$.{key}")
    fields = {"groups": list(found["group"])} if "group" in found else {}
    return Filters(frozenset(found), fields, {key: value for key, value in found.items() if key != "group"})
