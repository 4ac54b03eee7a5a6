"""Workspaces for tests."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from toolbus.platform.coding.files import WorkspaceOptions
from toolbus.platform.coding.workspace import Finished, Workspace


def workspace(folder: Path, task: str = "create_00000001", **options: object) -> Workspace:
    """Return a workspace below a folder."""
    return Workspace(folder / "tasks", task, WorkspaceOptions(**options))


def needs_namespaces() -> None:
    """Skip the test where the kernel lets no command be confined."""
    if not _can_confine():
        pytest.skip("this machine's kernel lets no user make namespaces, so no command is confined here")


@cache
def _can_confine() -> bool:
    words = ["unshare", "--user", "--map-current-user", "--pid", "--mount", "--net", "--fork", "true"]
    return sys.platform == "linux" and subprocess.run(words, capture_output=True, check=False).returncode == 0


async def run(place: Workspace, words: list[str], folder: str = "", seconds: float = 0.0) -> Finished:
    """Run a program in a workspace to its end; cancelling it ends the program."""
    program = await place.start(words, folder=folder, seconds=seconds)
    try:
        return await program.finished()
    finally:
        await program.end()
