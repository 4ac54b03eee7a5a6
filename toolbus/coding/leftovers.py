"""``Leftovers``: the folders of a deployment, and what tasks that have ended left in them."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from toolbus.client.bus import ToolBus
from toolbus.coding.copies import STAGING
from toolbus.coding.forms import Forms
from toolbus.coding.options import Deployment
from toolbus.platform.store import Records
from toolbus.results import ConfigurationError

# Folders of tasks that the server does not know, such as those of another namespace, are kept for so many seconds.
_UNKNOWN = 14 * 86_400.0
_STAGED = 86_400.0
_TASKS = "create_*"


class Leftovers:
    """Makes the folders, and removes the workspaces of tasks that have ended and the code that no record names any more.

    Args:
        bus: open; it knows the tasks and the records.
        deployment: where the folders are.
    """

    def __init__(self, bus: ToolBus, deployment: Deployment) -> None:
        self._creations = bus.creations
        self._records = Records(bus)
        self._forms = Forms(deployment.tools, bus.settings)
        self._deployment = deployment

    async def prepare(self) -> None:
        """Make the folders, and remove what ended tasks and killed processes left in them.

        Raises:
            ConfigurationError: a folder can't be written.
            BrokerError: the server could not be asked.
        """
        for name, folder in (("TOOLBUS_TOOLS_DIR", self._deployment.tools), ("TOOLBUS_CODING_WORKSPACES", self._deployment.workspaces)):
            try:
                await asyncio.to_thread(folder.mkdir, mode=0o755, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(f"the folder {str(folder)!r} can't be made ({error.strerror}); set {name}") from None
        for path in await asyncio.to_thread(_listed, self._deployment.workspaces, _TASKS):
            task = await self._creations.get(path.name)
            if (task is None and _age(path) > _UNKNOWN) or (task is not None and not task.open):
                await self.forget(path.name)
        for path in await asyncio.to_thread(_listed, self._deployment.tools / STAGING, "*"):
            if _age(path) > _STAGED:
                await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

        await asyncio.to_thread(self._forms.clean, await self._records.all())

    async def forget(self, task: str) -> None:
        """Remove the workspace of a task."""
        await asyncio.to_thread(shutil.rmtree, self._deployment.workspaces / task, ignore_errors=True)


def _listed(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_dir() and not path.is_symlink()]


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
