"""``TaskTools``: the tools of one task, as functions that a model's tools are made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolbus.coding.tools.containers import ContainerTools
from toolbus.coding.tools.files import FileTools
from toolbus.coding.tools.projects import ProjectTools
from toolbus.coding.workspace.workspace import Workspace


class TaskTools:
    """The tools of one task.

    Args:
        workspace: the task's; it must be open while they run, and its end removes the task's containers.

    Attributes:
        functions: the tools by name, typed and with docstrings, to be registered as they are. What a function raises is a ``ToolError``.
    """

    def __init__(self, workspace: Workspace) -> None:
        files, projects, containers = FileTools(workspace), ProjectTools(workspace), ContainerTools(workspace)
        workspace.at_end(containers.aclose)
        functions = (
            *(files.write_file, files.read_file),
            *(projects.create_uv_project, projects.uv_add_dependency, projects.run_in_uv),
            *(containers.create_docker_env, containers.run_in_docker, containers.rebuild_docker_ports, containers.destroy_docker_env),
        )
        self.functions: dict[str, Callable[..., Any]] = {each.__name__: each for each in functions}
