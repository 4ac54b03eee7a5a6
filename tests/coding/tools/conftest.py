"""A registry with the tools of one task, as a model's calls reach them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.coding.workspace.places import needs_namespaces, workspace
from toolbus.bus.local import ToolRegistry
from toolbus.platform.coding.run import TaskTools
from toolbus.platform.coding.workspace import Workspace


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workspace]:
    """The task's workspace."""
    needs_namespaces()
    async with workspace(tmp_path, memory=1 << 30, output=4_000, background=2) as made:
        yield made


@pytest.fixture
async def tools(place: Workspace) -> AsyncIterator[ToolRegistry]:
    """The tools of the task."""
    async with ToolRegistry(*TaskTools(place).functions.values()) as registry:
        yield registry
