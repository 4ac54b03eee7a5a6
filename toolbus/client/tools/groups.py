"""``ToolGroup``: tools that are used together, as stored in the registry."""

from __future__ import annotations

import msgspec

from toolbus.results import DescriptorError


class ToolGroup(msgspec.Struct, frozen=True):
    """Tools that are used together.

    Attributes:
        group_id: its id.
        name: for people.
        description: its purpose.
        category: a label.
        tool_ids: its tools.
        usage_order: the tools in the order in which they are used.
        usage_example: for models.
    """

    group_id: str = ""
    name: str = ""
    description: str = ""
    category: str = ""
    tool_ids: tuple[str, ...] = ()
    usage_order: tuple[str, ...] = ()
    usage_example: str = ""


def read_group(id: str, document: bytes) -> ToolGroup:
    """Return the group that a stored document is.

    Raises:
        DescriptorError: it is none.
    """
    try:
        return msgspec.structs.replace(msgspec.json.decode(document, type=ToolGroup), group_id=id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DescriptorError(f"it is no group of tools: {error}") from None
