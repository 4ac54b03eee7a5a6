"""Options of a task's workspace: limits of its files and commands, and what a deployment allows."""

from __future__ import annotations

from typing import Literal

import msgspec

Network = Literal["none", "packages", "all"]
"""``none``: no command reaches a network; ``packages``: uv does, while it installs wheels; ``all``: every command does."""


class WorkspaceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a workspace; sizes are in bytes, times in seconds.

    Attributes:
        network: which commands reach the network.
        confined: whether commands run in namespaces of their own, which see the workspace, the system's programs and nothing else.
            A machine whose kernel does not let us refuses commands then. Say False only where the worker is confined itself, such
            as in a container of its own: its commands may then read and write what the worker can.
        cache: folder of a cache of uv that tasks share, and a task can spoil for others; empty for a cache of the task's own.
        file_bytes: of one file.
        total_bytes: of all files of the task.
        entries: files and folders of the task.
        memory: of all processes of a command together.
        processes: of a command at once; its threads count where the worker is not the superuser.
        seconds: most that a command may run; the call says how long it wants.
        output: most of a command's output that is kept.
        background: commands that run in the background at once.
        docker: whether the task may have containers; they see the workspace and nothing else of the machine.
        containers: of the task at once.
    """

    network: Network = "none"
    confined: bool = True
    cache: str = ""
    file_bytes: int = 256 << 20
    total_bytes: int = 4 << 30
    entries: int = 200_000
    memory: int = 2 << 30
    processes: int = 256
    seconds: float = 600.0
    output: int = 64_000
    background: int = 4
    docker: bool = True
    containers: int = 2
