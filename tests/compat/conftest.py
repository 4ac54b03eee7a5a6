"""Chat2Graph's service, and the actions and tools of its own tests."""

from __future__ import annotations

import pytest

from tests.compat.chat2graph_groups import ExampleQuery
from toolbus.compat.chat2graph.core.service.toolkit_service import ToolkitService
from toolbus.compat.chat2graph.core.toolkit.action import Action
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit


@pytest.fixture
def service() -> ToolkitService:
    """Return the service with an empty graph, set up as in Chat2Graph's own tests."""
    made: ToolkitService = ToolkitService.instance or ToolkitService()
    made._toolkit = Toolkit()
    return made


@pytest.fixture
def actions() -> list[Action]:
    """Four actions."""
    return [Action(id=f"action {number}", name=f"Action {number}", description=f"Description {number}") for number in range(1, 5)]


@pytest.fixture
def tools() -> list[ExampleQuery]:
    """Four tools, whose ids are set afterwards."""
    made = [ExampleQuery() for _ in range(4)]
    for number, tool in enumerate(made, 1):
        tool._id = f"tool {number}"
    return made


@pytest.fixture
def populated(service: ToolkitService, actions: list[Action], tools: list[ExampleQuery]) -> ToolkitService:
    """Return the service with five Next edges, and a tool for each action."""
    first, second, third, fourth = actions
    service.add_action(action=first, next_actions=[(second, 0.8), (third, 0.6)], prev_actions=[])
    service.add_action(action=second, next_actions=[(third, 0.7), (fourth, 0.9)], prev_actions=[(first, 0.8)])
    service.add_action(action=third, next_actions=[(fourth, 0.7)], prev_actions=[(first, 0.6), (second, 0.7)])
    service.add_action(action=fourth, next_actions=[], prev_actions=[(second, 0.9), (third, 0.7)])
    for action, tool, score in zip(actions, tools, (0.9, 0.8, 0.9, 0.8), strict=True):
        service.add_tool(tool=tool, connected_actions=[(action, score)])
    return service
