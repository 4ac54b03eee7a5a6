"""The toolkit: a weighted graph of actions and tools that tells an agent which tools make sense now (``toolbus[toolkit]``)."""

from toolbus.results import ToolkitError
from toolbus.toolkit.chain import Link, ToolkitWrapper, add_chain
from toolbus.toolkit.graph import Edge, Toolkit
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup
from toolbus.toolkit.recommend import recommend_subgraph, recommend_tools_actions
from toolbus.toolkit.service import Scored, ToolkitService
from toolbus.toolkit.sets import group_of_definitions, group_of_module, group_of_registry, group_of_service, group_of_worker, tool_of_bus

__all__ = [
    "Action",
    "Edge",
    "Item",
    "Link",
    "Scored",
    "Tool",
    "ToolGroup",
    "Toolkit",
    "ToolkitError",
    "ToolkitService",
    "ToolkitWrapper",
    "add_chain",
    "group_of_definitions",
    "group_of_module",
    "group_of_registry",
    "group_of_service",
    "group_of_worker",
    "recommend_subgraph",
    "recommend_tools_actions",
    "tool_of_bus",
]
