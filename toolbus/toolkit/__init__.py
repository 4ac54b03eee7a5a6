"""The toolkit: a weighted graph of actions and tools that recommends the tools for an agent's next step (``toolbus[toolkit]``)."""

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.graph import Action, Edge, Item, Tool, ToolGroup, Toolkit, recommend_subgraph, recommend_tools_actions
from toolbus.toolkit.live import ActionView, Walk, for_actions
from toolbus.toolkit.presets import LiveGroup, Preset, load_preset, read_preset, toolkit_of
from toolbus.toolkit.service import (
    Link,
    Scored,
    ToolkitService,
    ToolkitWrapper,
    add_chain,
    group_of_definitions,
    group_of_module,
    group_of_registry,
    group_of_service,
    group_of_worker,
    tool_of_bus,
)

__all__ = [
    "Action",
    "ActionView",
    "Edge",
    "Item",
    "Link",
    "LiveGroup",
    "Preset",
    "Scored",
    "Tool",
    "ToolGroup",
    "Toolkit",
    "ToolkitError",
    "ToolkitService",
    "ToolkitWrapper",
    "Walk",
    "add_chain",
    "for_actions",
    "group_of_definitions",
    "group_of_module",
    "group_of_registry",
    "group_of_service",
    "group_of_worker",
    "load_preset",
    "read_preset",
    "recommend_subgraph",
    "recommend_tools_actions",
    "tool_of_bus",
    "toolkit_of",
]
