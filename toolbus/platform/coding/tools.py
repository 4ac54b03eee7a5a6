"""The tools of a coding agent's task: files, uv projects and containers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

import anyio
import msgspec

from toolbus.bus.values.results import ToolError, ToolResult
from toolbus.platform.backends.containers import RIGHTS, CliFailed, ContainerCli, Images, labels_of_task
from toolbus.platform.backends.marks import LOOPBACK, Ports
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.coding.files import WorkspaceOptions, invalid
from toolbus.platform.coding.workspace import MOST_PRINTED, REASONS, Finished, Program, Workspace, process_of

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

    @property
    def shown(self) -> dict[str, Any]:
        """The part of it that a model sees."""
        return {"name": self.name, "image": self.image, "ports": {str(inside): outside for outside, inside in self.ports}}


class ContainerProgram(Program):
    """A command in a container, all of whose processes there have ``mark`` in their environment."""

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
            cli = self._cli
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

    async def run(self, name: str, command: str, seconds: float = 0.0) -> ContainerProgram:
        """Start a command in a container; it is ended after so many seconds, if any are named.

        Raises:
            CannotStart: docker is away.
            ToolError: there is no such container.
        """
        made, cli = self._known(name), self._cli
        mark = secrets.token_hex(8)
        words = [cli.path, "exec", "--workdir", _INSIDE, "--env", f"{_MARK}={mark}", made.container, "/bin/sh", "-c", command]
        program = ContainerProgram(await process_of(words, cli.environment()), self._options.output)
        program.cli, program.container, program.mark = cli, made.container, mark
        if seconds:
            program.limit(min(seconds, self._options.seconds))
        return program

    async def rebuild(self, name: str, ports: tuple[tuple[int, int], ...]) -> Environment:
        """Make a container anew from its own files, with other ports; the old one stays when that fails.

        Raises:
            CannotStart: docker is away, or can't make it.
            ToolError: there is no such container.
        """
        async with self._changing:
            old, cli = self._known(name), self._cli
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
            made, cli = self._known(name), self._cli
            await cli.run("rm", "--force", "--volumes", made.container)
            await self._removed(made)
            del self._made[name]

    async def aclose(self) -> None:
        """Remove all containers."""
        for made in tuple(self._made.values()):
            await self._removed(made)
        self._made.clear()

    async def _start(self, made: Environment, image: str = "") -> None:
        options, cli = self._options, self._cli
        files = self._workspace.files.path
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
            await self._cli.run("rm", "--force", "--volumes", made.container)
        if made.own_image:
            with anyio.CancelScope(shield=True), contextlib.suppress(CliFailed):
                await self._cli.run("rmi", "--force", made.own_image)

    def _container(self, name: str) -> str:
        return f"toolbus-{self._workspace.task}-{name}-{secrets.token_hex(4)}"

    def _known(self, name: str) -> Environment:
        made = self._made.get(name)
        if made is None:
            known = ", ".join(self._made) or "none"
            raise ToolError(f"there is no environment {name[:80]!r}; there are: {known}", type="not_found", code="no_environment")
        return made

    @cached_property
    def _cli(self) -> ContainerCli:
        if not self._options.docker:
            raise ToolError("this deployment gives tasks no containers: use create_uv_project", type="forbidden", code="no_docker")
        return ContainerCli.found()


def _chosen(ports: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the pairs with a free port where none was named."""
    free = Ports()
    return tuple((outside or free.take(), inside) for outside, inside in ports)


# Seconds that a program in the background has to end by itself when it is stopped.
_GRACE = 2.0

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3_600)]
"""Bounds of the time that a command may run."""


class Background:
    """The programs of a task that run in the background, by their handles."""

    def __init__(self, options: WorkspaceOptions) -> None:
        self._options = options
        self._programs: dict[str, Program] = {}

    def check(self) -> None:
        """Make sure that one more may run.

        Raises:
            ToolError: as many as allowed run already.
        """
        running = [handle for handle, program in self._programs.items() if program.running]
        if len(running) >= self._options.background:
            message = f"{len(running)} programs run in the background, which is the most: stop one first ({', '.join(running)})"
            raise ToolError(message, code="too_many_programs")
        # Programs that ended long ago are forgotten.
        for handle in [each for each in self._programs if each not in running][: -self._options.background]:
            del self._programs[handle]

    def add(self, program: Program) -> str:
        """Take in a program; return its handle."""
        handle = f"run_{secrets.token_hex(4)}"
        self._programs[handle] = program
        return handle

    async def read(self, handle: str) -> ToolResult:
        """Return what it has printed since it was last read.

        Raises:
            ToolError: there is no such handle.
        """
        program = self._program(handle)
        if program.running:
            return ToolResult.ok({"handle": handle, "running": True}, output=program.unread.take() + "\n[it runs]")
        finished = await program.finished()
        data = {"handle": handle, "running": False, **_summary(finished)}
        return ToolResult.ok(data, output=f"{program.unread.take()}\n[{ending(finished, self._options)}]")

    async def stop(self, handle: str) -> ToolResult:
        """End it, and return what it has printed since it was last read.

        Raises:
            ToolError: there is no such handle.
        """
        await self._program(handle).end(_GRACE)
        return await self.read(handle)

    def _program(self, handle: str) -> Program:
        program = self._programs.get(handle)
        if program is None:
            known = ", ".join(self._programs) or "none"
            raise ToolError(f"there is no program with the handle {handle[:80]!r}; there are: {known}", type="not_found", code="no_handle")
        return program


def _summary(finished: Finished) -> dict[str, Any]:
    """Return how a program ended, as data."""
    return {"status": finished.status, "ended": finished.reason, "seconds": round(finished.seconds, 3)}


def ending(finished: Finished, options: WorkspaceOptions) -> str:
    """Return how a program ended, as a text."""
    if not finished.reason:
        return f"exit status {finished.status}, {finished.seconds:.1f} s"
    limits = {**msgspec.structs.asdict(options), "seconds": finished.seconds, "printed": MOST_PRINTED}
    return REASONS.get(finished.reason, finished.reason).format(**limits)


_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}", re.IGNORECASE)
_PORT = re.compile(r"(?:([0-9]{1,5}):)?([0-9]{1,5})")
_MOST_PORTS = 20
_PROJECT = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
# A requirement: a name with extras, versions and markers. It is no option, no URL and no path, which would fetch from anywhere.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,\s-]+\])?[^@/\\]{0,200}")
_MOST_REQUIREMENTS = 50
_MOST_READ = 4 << 20
_MOST_LINES = 2_000
_MOST_CHARACTERS = 60_000

Lines = Annotated[int, msgspec.Meta(ge=1, le=_MOST_LINES)]
Mode = Literal["foreground", "background", "read", "stop"]

_TOOLS = (
    *("write_file", "read_file", "create_uv_project", "uv_add_dependency", "run_in_uv"),
    *("create_docker_env", "run_in_docker", "rebuild_docker_ports", "destroy_docker_env"),
)


class TaskTools:
    """The tools of one task.

    Args:
        workspace: the task's; it must be open while they run, and its end removes the task's containers.

    Attributes:
        functions: the tools by name, typed and with docstrings, to be registered as they are. What a function raises is a ``ToolError``.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files = workspace.files
        self._options = workspace.options
        self._environments = Environments(workspace)
        self._in_uv, self._in_docker = Background(workspace.options), Background(workspace.options)
        workspace.at_end.push_async_callback(self._environments.aclose)
        self.functions: dict[str, Callable[..., Any]] = {name: getattr(self, name) for name in _TOOLS}

    # -- files ------------------------------------------------------------------------------------

    async def write_file(self, path: str, content: str, mode: Literal["overwrite", "append"] = "overwrite") -> ToolResult:
        """Write a text file in the workspace; the folders on its way are made.

        Args:
            path: relative to the workspace, like stitcher/main.py
            content: the text
            mode: overwrite writes the whole file anew, append adds to its end
        """
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise invalid("the content holds half of a character (a lone surrogate): leave it out", "bad_text") from None
        size = await asyncio.to_thread(self._files.write, path, data, append=mode == "append")
        return ToolResult.ok({"path": path, "bytes": size}, output=f"{path} has {size:,} bytes now")

    async def read_file(self, path: str, first_line: Annotated[int, msgspec.Meta(ge=1)] = 1, lines: Lines = 500) -> ToolResult:
        """Read lines of a text file in the workspace.

        Args:
            path: relative to the workspace
            first_line: the first line wanted, from 1
            lines: how many are wanted
        """
        data, size = await asyncio.to_thread(self._files.read, path, _MOST_READ)
        if b"\0" in data[:8_000]:
            raise ToolError(f"{path!r} is no text file: it has {size:,} bytes, among them zeros", code="no_text")
        whole = data.decode("utf-8", "replace").splitlines(keepends=True)
        text = "".join(whole[first_line - 1 : first_line - 1 + lines])
        last = min(first_line - 1 + lines, len(whole))
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS]
            last = first_line - 1 + len(text.splitlines())
            text += "\n[… the rest is left out: ask for fewer lines …]"
        elif not text:
            text = f"[it has {len(whole)} lines, so none from {first_line} on]" if whole else "[it is empty]"
        elif last < len(whole):
            text += f"[… lines {last + 1} to {len(whole)} follow …]"
        elif len(data) < size:
            text += f"\n[… the file has {size:,} bytes; only the first {_MOST_READ:,} can be read …]"
        return ToolResult.ok({"path": path, "bytes": size, "first_line": first_line, "last_line": last, "lines": len(whole)}, output=text)

    # -- uv projects ------------------------------------------------------------------------------

    async def create_uv_project(self, name: str, dependencies: tuple[str, ...] = ()) -> ToolResult:
        """Make a uv project in a folder of the workspace, with a virtual environment.

        Args:
            name: of the project and its folder; letters, digits, - and _
            dependencies: packages that it needs, like pillow>=11
        """
        if not _PROJECT.fullmatch(name):
            raise invalid(f"{name[:80]!r} is no project's name: begin with a letter, use letters, digits, - and _, at most 63", "bad_name")
        if await asyncio.to_thread(self._files.has, f"{name}/pyproject.toml"):
            raise invalid(f"there is a project {name!r} already: use it, or choose another name", "exists")
        _check_requirements(dependencies)
        await asyncio.to_thread(self._files.make, name)
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
        await self._check_project(project)
        if not packages:
            raise invalid("name at least one package", "no_packages")
        _check_requirements(packages)
        finished = await self._uv(["add", "--no-install-project", "--", *packages], project)
        return ToolResult.ok({"project": project, "packages": packages}, output=finished.output.strip() or "nothing changed")

    async def run_in_uv(
        self, project: str = "", command: str = "", mode: Mode = "foreground", handle: str = "", seconds: Seconds = 120.0
    ) -> AsyncIterator[str | ToolResult]:
        """Run a shell command in a project's folder with its virtual environment, like: python main.py --port 8123.

        Args:
            project: its folder
            command: the command line
            mode: foreground waits for the end; background returns a handle; read returns what is new of its output; stop ends it
            handle: of a program in the background, for read and stop
            seconds: that it may run in the foreground
        """
        if mode in {"foreground", "background"}:
            await self._check_project(project)

        async def start(seconds: float) -> Program:
            return await self._workspace.start(["/bin/sh", "-c", command], folder=project, seconds=seconds)

        async with contextlib.aclosing(self._run(self._in_uv, start, command, mode, handle, seconds)) as pieces:
            async for each in pieces:
                yield each

    # -- containers -------------------------------------------------------------------------------

    async def create_docker_env(self, name: str, image: str = "", folder: str = "", ports: tuple[str, ...] = ()) -> ToolResult:
        """Start a container that stays until it is destroyed. The workspace is its folder /workspace, where commands begin.

        Args:
            name: of the environment; small letters, digits, - and _
            image: that it is made from, like python:3.12-slim
            folder: of the workspace, with a Dockerfile that the image is built from; instead of an image
            ports: of the container to map, like 8000, or 8080:8000 for a certain port of the host
        """
        if not _NAME.fullmatch(name):
            raise invalid(f"{name[:80]!r} is no environment's name: use small letters, digits, - and _, at most 40", "bad_name")
        if bool(image) == bool(folder):
            raise invalid("give an image, or a folder with a Dockerfile, and not both", "no_image")
        if image and not _IMAGE.fullmatch(image):
            raise invalid(f"{image[:80]!r} is no image's name: give one like python:3.12-slim", "bad_image")
        pairs = self._pairs(ports)
        path = ""
        if folder:
            path = await asyncio.to_thread(self._files.folder, folder)
            if not await asyncio.to_thread(self._files.has, f"{folder}/Dockerfile"):
                raise ToolError(f"there is no {folder}/Dockerfile in the workspace: write it first", type="not_found", code="no_file")
        with _docker_errors():
            made = await self._environments.create(name, image, path, pairs)
        return ToolResult.ok(made.shown, output=f"the environment {name} runs{_mapped(made)}")

    async def run_in_docker(
        self, name: str, command: str = "", mode: Mode = "foreground", handle: str = "", seconds: Seconds = 120.0
    ) -> AsyncIterator[str | ToolResult]:
        """Run a shell command in a container made by create_docker_env.

        Args:
            name: of the environment
            command: the command line
            mode: foreground waits for the end; background returns a handle; read returns what is new of its output; stop ends it
            handle: of a program in the background, for read and stop
            seconds: that it may run in the foreground
        """

        async def start(seconds: float) -> Program:
            with _docker_errors():
                return await self._environments.run(name, command, seconds)

        async with contextlib.aclosing(self._run(self._in_docker, start, command, mode, handle, seconds)) as pieces:
            async for each in pieces:
                yield each

    async def rebuild_docker_ports(self, name: str, ports: tuple[str, ...]) -> ToolResult:
        """Make a container anew with other ports; its files stay, its programs end.

        Args:
            name: of the environment
            ports: of the container to map, like 8000, or 8080:8000 for a certain port of the host
        """
        pairs = self._pairs(ports)
        with _docker_errors():
            made = await self._environments.rebuild(name, pairs)
        return ToolResult.ok(made.shown, output=f"the environment {name} was made anew{_mapped(made)}; its programs have ended")

    async def destroy_docker_env(self, name: str) -> ToolResult:
        """End and remove a container with its programs and files; those in /workspace stay.

        Args:
            name: of the environment
        """
        with _docker_errors():
            await self._environments.destroy(name)
        return ToolResult.ok({"name": name}, output=f"the environment {name} is removed")

    # -- what they share --------------------------------------------------------------------------

    async def _run(
        self,
        background: Background,
        start: Callable[[float], Awaitable[Program]],
        command: str,
        mode: Mode,
        handle: str,
        seconds: float,
    ) -> AsyncGenerator[str | ToolResult, None]:
        """Run a command in one of the modes; ``start`` takes the seconds that it may run, 0 for as long as any."""
        if mode in {"read", "stop"}:
            yield await (background.read(handle) if mode == "read" else background.stop(handle))
            return
        if not command.strip() or "\0" in command:
            raise invalid("give the command that is to run, like: python main.py", "no_command")
        if mode == "background":
            background.check()
            new = background.add(await start(0.0))
            yield ToolResult.ok({"handle": new, "running": True}, output=f"it runs in the background; its handle is {new}")
            return
        program = await start(seconds)
        try:
            async for piece in program.pieces():
                yield piece
            finished = await program.finished()
            yield f"{program.rest}\n[{ending(finished, self._options)}]"
            yield ToolResult.ok(_summary(finished))
        finally:
            await program.end()

    async def _check_project(self, project: str) -> None:
        if not await asyncio.to_thread(self._files.has, f"{project}/pyproject.toml"):
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

    def _pairs(self, ports: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
        if ports and self._options.network != "all":
            message = (
                "no port can be mapped: this deployment gives containers no network. Programs in one environment reach each other; run "
                "the client there, too, with run_in_docker"
            )
            raise ToolError(message, type="forbidden", code="no_network")
        if len(ports) > _MOST_PORTS:
            raise invalid(f"these are {len(ports)} ports; map at most {_MOST_PORTS}", "too_many_ports")
        pairs = []
        for each in ports:
            found = _PORT.fullmatch(each)
            outside, inside = (int(found[1] or 0), int(found[2])) if found else (0, 0)
            if not 0 < inside < 65_536 or not (outside == 0 or 1024 <= outside < 65_536):
                raise invalid(
                    f"{each[:40]!r} is no port: give one like 8000, or 8080:8000 with a port of the host from 1024 on", "bad_port"
                )
            pairs.append((outside, inside))
        return tuple(pairs)


def _mapped(made: Environment) -> str:
    return "".join(f"; its port {inside} is 127.0.0.1:{outside}" for outside, inside in made.ports)


@contextlib.contextmanager
def _docker_errors() -> Iterator[None]:
    """Turn what docker can't do into errors for a model."""
    try:
        yield
    except CannotStart as error:
        if isinstance(error, CliFailed) and not error.away:
            raise ToolError(str(error), code="docker_failed") from None
        raise ToolError(str(error), type="unavailable", code="no_docker") from None


def _check_requirements(packages: tuple[str, ...]) -> None:
    if len(packages) > _MOST_REQUIREMENTS:
        raise invalid(f"these are {len(packages)} packages; add at most {_MOST_REQUIREMENTS} at once", "too_many_packages")
    for each in packages:
        if not _REQUIREMENT.fullmatch(each):
            message = f"{each[:80]!r} is no requirement: give a package's name and versions, like pillow>=11; URLs and paths are not taken"
            raise invalid(message, "bad_package")
