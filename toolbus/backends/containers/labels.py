"""Labels of containers, by which those of dead hosts are found and removed."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

from toolbus.backends import marks
from toolbus.backends.containers.cli import CliFailed, ContainerCli

HOST, TOOL, PROCESS, MACHINE = "toolbus.host", "toolbus.tool", "toolbus.process", "toolbus.machine"
TASK = "toolbus.task"

_MACHINE_ID = Path("/etc/machine-id")


def labels_of(host: str, tool_id: str) -> dict[str, str]:
    """Return the labels of a tool's container at this host."""
    return {HOST: host, TOOL: tool_id, PROCESS: marks.host(), MACHINE: _machine()}


def labels_of_task(task: str) -> dict[str, str]:
    """Return the labels of a container that a coding agent's task uses."""
    return {TASK: task, PROCESS: marks.host(), MACHINE: _machine()}


async def remove_left(cli: ContainerCli, host: str, kept: Collection[str]) -> list[str]:
    """Remove the containers of this machine's dead processes, and those of a host that are not ``kept``; return a line for each.

    Args:
        cli: by which it is done.
        host: id of a host in this process.
        kept: names of this host's containers.

    Raises:
        CliFailed: the daemon does not answer.
    """
    names = (await cli.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={MACHINE}={_machine()}")).split()
    removed = []
    for found in await cli.inspect(*names):
        name = str(found.get("Name", "")).removeprefix("/")
        labels: dict[str, Any] = (found.get("Config") or {}).get("Labels") or {}
        process = labels.get(PROCESS, "")
        own = process == marks.host()
        if (labels.get(HOST) == host and name not in kept) if own else marks.is_dead(process):
            try:
                await cli.run("rm", "--force", "--volumes", str(found["Id"]))
            except CliFailed:
                # Another host of the machine may be removing it, too.
                continue
            owner = "this host" if own else "a process that is dead"
            removed.append(f"container {name} of {labels.get(TOOL) or labels.get(TASK, '?')} was left by {owner}, and is removed")
    return removed


def _machine() -> str:
    """Return the id of this machine: several can share a daemon."""
    try:
        found = _MACHINE_ID.read_text("ascii").strip()
    except (OSError, UnicodeError):
        found = ""
    return found or socket.gethostname()
