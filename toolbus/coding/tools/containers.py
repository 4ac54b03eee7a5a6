"""The tools for containers of a task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Literal

from toolbus.backends.containers.cli import CliFailed
from toolbus.backends.runner import CannotStart
from toolbus.coding.tools.environments import Environment, Environments
from toolbus.coding.tools.programs import Background, Seconds, streamed
from toolbus.coding.workspace.workspace import Workspace
from toolbus.results import ToolError, ToolResult

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}", re.IGNORECASE)
_PORT = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")
_MOST_PORTS = 20


class ContainerTools:
    """The tools ``create_docker_env``, ``run_in_docker``, ``rebuild_docker_ports`` and ``destroy_docker_env``."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._options = workspace.options
        self._environments = Environments(workspace)
        self._background = Background(workspace.options)

    async def create_docker_env(self, name: str, image: str = "", folder: str = "", ports: tuple[str, ...] = ()) -> ToolResult:
        """Start a container that stays until it is destroyed. The workspace is its folder /workspace, where commands begin.

        Args:
            name: of the environment; small letters, digits, - and _
            image: that it is made from, like python:3.12-slim
            folder: of the workspace, with a Dockerfile that the image is built from; instead of an image
            ports: of the container to map, like 8000, or 8080:8000 for a certain port of the host
        """
        if not _NAME.fullmatch(name):
            raise _wrong(f"{name[:80]!r} is no environment's name: use small letters, digits, - and _, at most 40", "bad_name")
        if bool(image) == bool(folder):
            raise _wrong("give an image, or a folder with a Dockerfile, and not both", "no_image")
        if image and not _IMAGE.fullmatch(image):
            raise _wrong(f"{image[:80]!r} is no image's name: give one like python:3.12-slim", "bad_image")
        pairs = self._pairs(ports)
        path = ""
        if folder:
            path = await asyncio.to_thread(self._workspace.files.folder, folder)
            if not await asyncio.to_thread(self._workspace.files.has, f"{folder}/Dockerfile"):
                raise ToolError(f"there is no {folder}/Dockerfile in the workspace: write it first", type="not_found", code="no_file")
        try:
            made = await self._environments.create(name, image, path, pairs)
        except CannotStart as error:
            raise _failed(error) from None
        return ToolResult.ok(made.told(), output=f"the environment {name} runs{_mapped(made)}")

    async def run_in_docker(
        self,
        name: str,
        command: str = "",
        mode: Literal["foreground", "background", "read", "stop"] = "foreground",
        handle: str = "",
        seconds: Seconds = 120.0,
    ) -> AsyncIterator[str | ToolResult]:
        """Run a shell command in a container made by create_docker_env.

        Args:
            name: of the environment
            command: the command line
            mode: foreground waits for the end; background returns a handle; read returns what is new of its output; stop ends it
            handle: of a program in the background, for read and stop
            seconds: that it may run in the foreground
        """
        if mode in {"read", "stop"}:
            yield await (self._background.read(handle) if mode == "read" else self._background.stop(handle))
            return
        if not command.strip() or "\0" in command:
            raise _wrong("give the command that is to run, like: python main.py", "no_command")
        if mode == "background":
            self._background.check()
        try:
            running = await self._environments.run(name, command)
        except CannotStart as error:
            raise _failed(error) from None
        if mode == "background":
            new = self._background.add(running)
            yield ToolResult.ok({"handle": new, "running": True}, output=f"it runs in the background; its handle is {new}")
            return
        running.limit(min(seconds, self._options.seconds))
        try:
            async for each in streamed(running, self._options):
                yield each
        finally:
            await running.end()

    async def rebuild_docker_ports(self, name: str, ports: tuple[str, ...]) -> ToolResult:
        """Make a container anew with other ports; its files stay, its programs end.

        Args:
            name: of the environment
            ports: of the container to map, like 8000, or 8080:8000 for a certain port of the host
        """
        pairs = self._pairs(ports)
        try:
            made = await self._environments.rebuild(name, pairs)
        except CannotStart as error:
            raise _failed(error) from None
        return ToolResult.ok(made.told(), output=f"the environment {name} was made anew{_mapped(made)}; its programs have ended")

    async def destroy_docker_env(self, name: str) -> ToolResult:
        """End and remove a container with its programs and files; those in /workspace stay.

        Args:
            name: of the environment
        """
        try:
            await self._environments.destroy(name)
        except CannotStart as error:
            raise _failed(error) from None
        return ToolResult.ok({"name": name}, output=f"the environment {name} is removed")

    async def aclose(self) -> None:
        """Remove all containers of the task."""
        await self._environments.aclose()

    def _pairs(self, ports: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        if ports and self._options.network != "all":
            message = (
                "no port can be mapped: this deployment gives containers no network. Programs in one environment reach each other; run "
                "the client there, too, with run_in_docker"
            )
            raise ToolError(message, type="forbidden", code="no_network")
        if len(ports) > _MOST_PORTS:
            raise _wrong(f"these are {len(ports)} ports; map at most {_MOST_PORTS}", "too_many_ports")
        pairs = []
        for each in ports:
            found = _PORT.fullmatch(each)
            outside, inside = (int(found[1] or 0), int(found[2])) if found else (0, 0)
            if not 0 < inside < 65_536 or not (outside == 0 or 1024 <= outside < 65_536):
                raise _wrong(f"{each[:40]!r} is no port: give one like 8000, or 8080:8000 with a port of the host from 1024 on", "bad_port")
            pairs.append((outside, inside))
        return tuple(pairs)


def _mapped(made: Environment) -> str:
    return "".join(f"; its port {inside} is 127.0.0.1:{outside}" for outside, inside in made.ports)


def _failed(error: CannotStart) -> ToolError:
    if isinstance(error, CliFailed) and not error.away:
        return ToolError(str(error), code="docker_failed")
    return ToolError(str(error), type="unavailable", code="no_docker")


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
