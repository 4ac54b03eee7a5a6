"""The tools for uv projects in a task's workspace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Literal

from toolbus.coding.tools.programs import Background, Seconds, streamed
from toolbus.coding.workspace.programs import Finished
from toolbus.coding.workspace.workspace import Workspace
from toolbus.results import ToolError, ToolResult

_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
# A requirement: a name with extras, versions and markers. It is no option, no URL and no path, which would fetch from anywhere.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,\s-]+\])?[^@/\\]{0,200}")
_MOST_REQUIREMENTS = 50


class ProjectTools:
    """The tools ``create_uv_project``, ``uv_add_dependency`` and ``run_in_uv``."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._options = workspace.options
        self._background = Background(workspace.options)

    async def create_uv_project(self, name: str, dependencies: tuple[str, ...] = ()) -> ToolResult:
        """Make a uv project in a folder of the workspace, with a virtual environment.

        Args:
            name: of the project and its folder; letters, digits, - and _
            dependencies: packages that it needs, like pillow>=11
        """
        if not _NAME.fullmatch(name):
            raise _wrong(f"{name[:80]!r} is no project's name: begin with a letter, use letters, digits, - and _, at most 63", "bad_name")
        files = self._workspace.files
        if await asyncio.to_thread(files.has, f"{name}/pyproject.toml"):
            raise _wrong(f"there is a project {name!r} already: use it, or choose another name", "exists")
        _check_requirements(dependencies)
        await asyncio.to_thread(files.make, name)
        await self._uv(["init", "--bare", "--no-workspace", "--no-readme", "--vcs", "none", "--name", name.lower()], name)
        await self._uv(["venv", "--allow-existing", "--no-project"], name)
        if dependencies:
            await self._uv(["add", "--no-install-project", "--", *dependencies], name)
        needs = f" with {', '.join(dependencies)}" if dependencies else ""
        return ToolResult.ok({"project": name}, output=f"made the project {name}{needs}; its files are in the folder {name}")

    async def uv_add_dependency(self, project: str, packages: tuple[str, ...]) -> ToolResult:
        """Add packages to a project, and install them.

        Args:
            project: its folder
            packages: like pillow>=11; from the package index, as wheels
        """
        await self._check(project)
        if not packages:
            raise _wrong("name at least one package", "no_packages")
        _check_requirements(packages)
        finished = await self._uv(["add", "--no-install-project", "--", *packages], project)
        return ToolResult.ok({"project": project, "packages": packages}, output=finished.output.strip() or "nothing changed")

    async def run_in_uv(
        self,
        project: str = "",
        command: str = "",
        mode: Literal["foreground", "background", "read", "stop"] = "foreground",
        handle: str = "",
        seconds: Seconds = 120.0,
    ) -> AsyncIterator[str | ToolResult]:
        """Run a shell command in a project's folder with its virtual environment, like: python main.py --port 8123.

        Args:
            project: its folder
            command: the command line
            mode: foreground waits for the end; background returns a handle; read returns what is new of its output; stop ends it
            handle: of a program in the background, for read and stop
            seconds: that it may run in the foreground
        """
        if mode in {"read", "stop"}:
            yield await (self._background.read(handle) if mode == "read" else self._background.stop(handle))
            return
        await self._check(project)
        if not command.strip() or "\0" in command:
            raise _wrong("give the command that is to run, like: python main.py", "no_command")
        words = ["/bin/sh", "-c", command]
        if mode == "background":
            self._background.check()
            running = await self._workspace.start(words, folder=project)
            new = self._background.add(running)
            text = f"it runs in the background; its handle is {new}"
            yield ToolResult.ok({"handle": new, "running": True}, output=text)
            return
        async with self._workspace.program(words, folder=project, seconds=seconds) as program:
            async for each in streamed(program, self._options):
                yield each

    async def _check(self, project: str) -> None:
        if not await asyncio.to_thread(self._workspace.files.has, f"{project}/pyproject.toml"):
            raise ToolError(f"there is no project {project[:80]!r}: make it with create_uv_project", type="not_found", code="no_project")

    async def _uv(self, words: list[str], project: str) -> Finished:
        finished = await self._workspace.run_uv(words, folder=project)
        if finished.status or finished.reason:
            offline = ""
            if self._options.network == "none":
                offline = (
                    " (this deployment gives no network, so only packages that are in uv's cache can be added: use Python's own library)"
                )
            text = finished.output.strip()[-2_000:] or finished.reason
            raise ToolError(f"uv {words[0]} failed{offline}: {text}", code="uv_failed")
        return finished


def _check_requirements(packages: tuple[str, ...]) -> None:
    if len(packages) > _MOST_REQUIREMENTS:
        raise _wrong(f"these are {len(packages)} packages; add at most {_MOST_REQUIREMENTS} at once", "too_many_packages")
    for each in packages:
        if not _REQUIREMENT.fullmatch(each):
            message = f"{each[:80]!r} is no requirement: give a package's name and versions, like pillow>=11; URLs and paths are not taken"
            raise _wrong(message, "bad_package")


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
