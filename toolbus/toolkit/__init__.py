"""The toolkit: a weighted graph of actions and tools that recommends the tools for an agent's next step (``toolbus[toolkit]``)."""

from toolbus.bus.values.results import ToolkitError
from toolbus.toolkit.chain import Link, ToolkitWrapper, add_chain
from toolbus.toolkit.graph import Edge, Toolkit
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup
from toolbus.toolkit.live import ActionView, for_actions
from toolbus.toolkit.presets import LiveGroup, load_preset, read_preset, toolkit_of
from toolbus.toolkit.recommend import recommend_subgraph, recommend_tools_actions
from toolbus.toolkit.service import Scored, ToolkitService
from toolbus.toolkit.source import group_of_definitions, group_of_module, group_of_registry, group_of_service, group_of_worker, tool_of_bus
from toolbus.toolkit.starting import Preset
from toolbus.toolkit.walk import Walk

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
