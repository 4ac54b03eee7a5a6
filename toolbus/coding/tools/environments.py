"""Containers that a task keeps: each is made, runs commands, and is removed with the task."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import Any

import anyio
import msgspec

from toolbus.backends.containers.cli import CliFailed, ContainerCli
from toolbus.backends.containers.command import RIGHTS
from toolbus.backends.containers.images import Images
from toolbus.backends.containers.labels import labels_of_task
from toolbus.backends.ports import LOOPBACK
from toolbus.coding.workspace.programs import Program, start_plain
from toolbus.coding.workspace.workspace import Workspace
from toolbus.results import ToolError

_INSIDE = "/workspace"
_MARK = "TOOLBUS_RUN"
# The first process of a container; it does nothing, so that commands can be run beside it.
_WAIT = "while :; do sleep 3600; done"
# Ends the processes that have a command's mark, also those that have left it.
_END = """command -v grep >/dev/null || exit 9
for each in 1 2 3; do
  for p in /proc/[0-9]*; do
    if grep -qs "$1" "$p/environ"; then kill -9 "${p#/proc/}" 2>/dev/null; fi
  done
done
exit 0"""
_BUILD_WITHIN = 1_800.0


class Environment(msgspec.Struct, frozen=True):
    """A container of a task.

    Attributes:
        name: that the model gave it.
        container: its name at the daemon.
        image: that it was made from.
        ports: pairs of the host's port and its own.
        own_image: made by ``rebuild``, to be removed with it; empty when there is none.
    """

    name: str
    container: str
    image: str
    ports: tuple[tuple[int, int], ...] = ()
    own_image: str = ""

    def told(self) -> dict[str, Any]:
        """Return what a model is told of it."""
        return {"name": self.name, "image": self.image, "ports": {str(inside): outside for outside, inside in self.ports}}


class ContainerProgram(Program):
    """A command in a container.

    Attributes:
        ending: ends its processes in the container.
    """

    cli: ContainerCli
    container: str
    mark: str

    async def end(self, grace: float = 0.0, reason: str = "") -> None:
        """End it with everything that it started in the container; see ``Program.end``."""
        self.reason = self.reason or reason
        with anyio.CancelScope(shield=True):
            if self.running:
                # The end of the command line alone would not end it.
                try:
                    await self.cli.run("exec", self.container, "/bin/sh", "-c", _END, "sh", f"{_MARK}={self.mark}")
                except CliFailed:
                    # Its image lacks what that needs. All of its programs end then, and its files stay.
                    with contextlib.suppress(CliFailed):
                        await self.cli.run("restart", "--time", "0", self.container)
            await super().end(grace, reason)


class Environments:
    """The containers of a task, by name.

    Args:
        workspace: the task's, which they see.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._options = workspace.options
        self._cli: ContainerCli | None = None
        self._made: dict[str, Environment] = {}
        self._changing = asyncio.Lock()

    async def create(self, name: str, image: str, folder: str, ports: tuple[tuple[int, int], ...]) -> Environment:
        """Make a container, and start it.

        Args:
            name: that the model gives it.
            image: that it is made from.
            folder: full path of the folder that its image is built from, instead.
            ports: pairs of the host's port, 0 for a free one, and its own.

        Raises:
            CannotStart: docker is away, or can't make it.
            ToolError: there is one of the name, or there are enough.
        """
        async with self._changing:
            if name in self._made:
                raise ToolError(f"there is an environment {name!r} already: use it, or destroy it first", code="exists")
            if len(self._made) >= self._options.containers:
                known = ", ".join(self._made)
                raise ToolError(f"the task has {len(self._made)} environments, which is the most: destroy one of {known}", code="too_many")
            cli = self._found()
            if folder:
                image = f"toolbus-task/{self._workspace.task.lower()}-{name}:built"
                network = ("--network", "none") if self._options.network == "none" else ()
                await cli.follow("build", "--tag", image, *network, folder, within=_BUILD_WITHIN, line=lambda _: None)
            elif self._options.network != "none":
                await Images(cli).have(image, "", lambda _: None)
            made = Environment(name, self._container(name), image, _chosen(ports), image if folder else "")
            try:
                await self._start(made)
            except BaseException:
                await self._removed(made)
                raise
            self._made[name] = made
            return made

    async def run(self, name: str, command: str) -> ContainerProgram:
        """Start a command in a container.

        Raises:
            CannotStart: docker is away.
            ToolError: there is no such container.
        """
        made, cli = self._known(name), self._found()
        mark = secrets.token_hex(8)
        words = [cli.path, "exec", "--workdir", _INSIDE, "--env", f"{_MARK}={mark}", made.container, "/bin/sh", "-c", command]
        program = await start_plain(words, cli.environment(), self._options.output, ContainerProgram)
        program.cli, program.container, program.mark = cli, made.container, mark
        return program

    async def rebuild(self, name: str, ports: tuple[tuple[int, int], ...]) -> Environment:
        """Make a container anew from its own files, with other ports; the old one stays when that fails.

        Raises:
            CannotStart: docker is away, or can't make it.
            ToolError: there is no such container.
        """
        async with self._changing:
            old, cli = self._known(name), self._found()
            image = f"toolbus-task/{self._workspace.task.lower()}-{name}:{secrets.token_hex(4)}"
            await cli.run("commit", old.container, image, within=_BUILD_WITHIN)
            new = Environment(name, self._container(name), old.image, _chosen(ports), image)
            try:
                # Its ports may be among the new ones.
                await cli.run("stop", "--time", "0", old.container)
                await self._start(new, image)
            except BaseException:
                await self._removed(new)
                with anyio.CancelScope(shield=True), contextlib.suppress(CliFailed):
                    await cli.run("start", old.container)
                raise
            self._made[name] = new
            await self._removed(old)
            return new

    async def destroy(self, name: str) -> None:
        """Remove a container.

        Raises:
            CannotStart: docker is away.
            ToolError: there is no such container.
        """
        async with self._changing:
            made, cli = self._known(name), self._found()
            await cli.run("rm", "--force", "--volumes", made.container)
            await self._removed(made)
            del self._made[name]

    async def aclose(self) -> None:
        """Remove all containers."""
        for made in tuple(self._made.values()):
            await self._removed(made)
        self._made.clear()

    async def _start(self, made: Environment, image: str = "") -> None:
        options, cli = self._options, self._found()
        files = self._workspace.path
        if any(each in files for each in ',"\n'):
            raise ToolError("the workspace's path has a character that docker's mounts can't hold", type="unavailable", code="bad_root")
        words = ["run", "--detach", "--name", made.container, "--pull", "never", "--init", "--log-driver", "none", "--restart", "no"]
        for label, value in labels_of_task(self._workspace.task).items():
            words += ["--label", f"{label}={value}"]
        words += ["--memory", str(options.memory), "--memory-swap", str(options.memory), "--pids-limit", str(options.processes)]
        words += RIGHTS
        words += ["--ulimit", f"fsize={options.file_bytes}"]
        words += ["--mount", f"type=bind,source={files},target={_INSIDE}", "--workdir", _INSIDE]
        if options.network != "all":
            words += ["--network", "none"]
        for outside, inside in made.ports:
            words += ["--publish", f"{LOOPBACK}:{outside}:{inside}"]
        await cli.run(*words, "--entrypoint", "/bin/sh", image or made.own_image or made.image, "-c", _WAIT, within=120.0)

    async def _removed(self, made: Environment) -> None:
        with anyio.CancelScope(shield=True), contextlib.suppress(CliFailed):
            await self._found().run("rm", "--force", "--volumes", made.container)
        if made.own_image:
            with anyio.CancelScope(shield=True), contextlib.suppress(CliFailed):
                await self._found().run("rmi", "--force", made.own_image)

    def _container(self, name: str) -> str:
        return f"toolbus-{self._workspace.task}-{name}-{secrets.token_hex(4)}"

    def _known(self, name: str) -> Environment:
        made = self._made.get(name)
        if made is None:
            known = ", ".join(self._made) or "none"
            raise ToolError(f"there is no environment {name[:80]!r}; there are: {known}", type="not_found", code="no_environment")
        return made

    def _found(self) -> ContainerCli:
        if not self._options.docker:
            raise ToolError("this deployment gives tasks no containers: use create_uv_project", type="forbidden", code="no_docker")
        self._cli = self._cli or ContainerCli.found()
        return self._cli


def _chosen(ports: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the pairs with a free port where none was named."""
    return tuple((outside or _free(), inside) for outside, inside in ports)


def _free() -> int:
    with socket.socket() as tried:
        tried.bind((LOOPBACK, 0))
        port: int = tried.getsockname()[1]
    return port
