"""Containers by the command line of docker or podman."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import socket
import stat
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolbus.bus.support.display import one_line
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import harmless
from toolbus.platform.backends import marks, program
from toolbus.platform.backends.marks import LOOPBACK
from toolbus.platform.backends.runner import CannotStart, Line, fitting, impossible, variables_of
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.records import ToolSource

PROGRAMS = ("docker", "podman")

# Of our variables those that say which daemon the command line speaks with.
_DAEMON = ("DOCKER_", "CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINERS_", "XDG_RUNTIME_DIR", "BUILDX_", "BUILDKIT_")
_AWAY = ("cannot connect to", "is the docker daemon running", "error during connect", "connection refused", "unable to connect to podman")
_FORBIDDEN = ("permission denied while trying to connect", "dial unix")
_NOISE = ("Run '", "See '", "DEPRECATED", "WARNING", "Using default tag")
_MOST_ANSWER = 8 << 20
_MOST_ERROR = 400
_KEPT_LINES = 5


class CliFailed(CannotStart):
    """A command failed.

    Attributes:
        said: what it wrote.
        away: whether the daemon was not reached.
    """

    def __init__(self, message: str, said: str = "", *, away: bool = False) -> None:
        self.said = said
        self.away = away
        super().__init__(message)


class ContainerCli:
    """The command line that this machine has.

    Args:
        path: of its program.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = Path(path).name

    @classmethod
    def found(cls) -> ContainerCli:
        """Return docker's, or podman's where there is no docker.

        Raises:
            CannotStart: neither is installed.
        """
        for name in PROGRAMS:
            if path := shutil.which(name):
                return cls(path)
        raise impossible("neither docker nor podman is installed on this host: install one, or give the source the label of another host")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of its process: those that say where the daemon is, and ``more``."""
        own = {name: value for name, value in os.environ.items() if name.startswith(_DAEMON)}
        # BuildKit is a plug-in that is not installed everywhere.
        places = (Path.home() / ".docker", Path("/usr/local/lib/docker"), Path("/usr/lib/docker"), Path("/usr/libexec/docker"))
        has_buildx = any((place / "cli-plugins" / "docker-buildx").exists() for place in places)
        plain = {} if has_buildx else {"DOCKER_BUILDKIT": "0"}
        return {**(more or {}), **harmless(), **plain, **own}

    async def run(self, *words: str, within: float = 30.0, more: Mapping[str, str] | None = None) -> str:
        """Run a command, and return what it writes.

        Args:
            words: its command line.
            within: seconds that it may take.
            more: environment variables that the command line takes over into a container.

        Raises:
            CliFailed: it failed, or took too long.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *(self.path, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment(more),
                start_new_session=True,
            )
        except OSError as error:
            raise CliFailed(f"{self.path} can't be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(within):
                out, said = await process.communicate()
        except TimeoutError:
            message = f"{self.name} {words[0]} did not answer within {within:g} s: see whether its daemon is well"
            raise CliFailed(message, away=True) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(asyncio.ensure_future(process.wait()))
        if process.returncode:
            raise self.failure(words[0], said.decode("utf-8", "replace").strip())
        return out[:_MOST_ANSWER].decode("utf-8", "replace").strip()

    async def follow(self, *words: str, within: float, line: Line) -> None:
        """Run a command that takes long, and pass on its lines.

        Raises:
            CliFailed: it failed, or took too long.
        """
        last: deque[str] = deque(maxlen=_KEPT_LINES)

        def take(text: str) -> None:
            if text.strip():
                last.append(text.strip())
            line(text)

        running = await program.start([self.path, *words], Path("/"), self.environment(), take)
        try:
            async with asyncio.timeout(within):
                await running.ended()
        except TimeoutError:
            raise CliFailed(f"{self.name} {words[0]} took longer than {within:g} s") from None
        finally:
            if running.code is None:
                await asyncio.shield(asyncio.ensure_future(running.kill()))
        if running.code:
            raise self.failure(words[0], "\n".join(last))

    async def inspect(self, *names: str) -> list[dict[str, Any]]:
        """Return what is known of containers; those that are gone are left out.

        Raises:
            CliFailed: the daemon does not answer.
        """
        if not names:
            return []
        try:
            text = await self.run("container", "inspect", *names)
        except CliFailed as error:
            if "no such container" not in error.said.lower():
                raise
            if len(names) == 1:
                return []
            return [found for name in names for found in await self.inspect(name)]
        found: list[dict[str, Any]] = msgspec.json.decode(text)
        return found

    def failure(self, command: str, text: str) -> CliFailed:
        """Return the failure of a command that wrote this text."""
        low = text.lower()
        elsewhere = "or give the source the label of another host"
        if "permission denied" in low and any(each in low for each in _FORBIDDEN):
            return CliFailed(f"this host's user may not use {self.name}: add it to the group docker, {elsewhere}", text, away=True)
        if any(each in low for each in _AWAY):
            message = f"{self.name}'s daemon does not answer: start it (systemctl start docker), {elsewhere}"
            return CliFailed(message, text, away=True)
        lines = [each for each in text.splitlines() if each.strip() and not each.startswith(_NOISE)]
        said = " / ".join(lines) or "it said nothing"
        return CliFailed(f"{self.name} {command} failed: {one_line(said, _MOST_ERROR)}", text)


_PORT = re.compile(r"([0-9]{0,5}):([0-9]{1,5})(/tcp|/udp)?")
_MOST_PROCESSES = 4096

RIGHTS = (
    *("--cap-drop", "ALL", "--cap-add", "CHOWN", "--cap-add", "DAC_OVERRIDE", "--cap-add", "FOWNER"),
    *("--cap-add", "SETUID", "--cap-add", "SETGID", "--security-opt", "no-new-privileges"),
)
"""The words of a command line that leave a container no rights but those over its own files and users."""

# Entries of a mounted folder that are looked at.
_MOST_ENTRIES = 20_000

# Whoever can write there, or speak with a daemon there, is the machine's master.
_MASTERFUL = tuple(map(Path, ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/root/.ssh", "/var/lib/docker", "/var/lib/containers")))

# Everybody's files.
_TOO_WIDE = frozenset({Path("/"), Path("/home"), Path("/root")})

# Whoever can write there decides what the machine's programs do.
_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")))


class Ports(msgspec.Struct, frozen=True):
    """The ports of a container.

    Attributes:
        inside: at which its program answers.
        outside: at which the host reaches it; the same with the host's own network.
        published: what the command line says of them.
    """

    inside: int
    outside: int
    published: tuple[str, ...] = ()


def ports_of(source: ToolSource, free: int) -> Ports:
    """Return the ports of a container.

    Args:
        source: names its program's port in ``internal_port`` or as the first of its ports.
        free: a port of this host that nobody uses.

    Raises:
        CannotStart: the source's ports can't be had.
    """
    if source.network == "none":
        raise impossible('its network is "none", so that nobody can call it: leave network empty, or use "host"')
    pairs = [_pair(each, free) for each in source.ports]
    inside = source.internal_port or next((container for _, container, kind in pairs if kind != "/udp"), free)
    if source.network == "host":
        return Ports(inside, inside)
    outside = next((host for host, container, kind in pairs if container == inside and kind != "/udp"), 0)
    if not outside:
        pairs.append((free, inside, ""))
        outside = free
    return Ports(inside, outside, tuple(f"{LOOPBACK}:{host}:{container}{kind}" for host, container, kind in pairs))


def create_words(
    source: ToolSource, image: str, name: str, ports: Ports, labels: Mapping[str, str], cli: ContainerCli
) -> tuple[list[str], dict[str, str]]:
    """Return the command line that makes a container, with the variables that the command line takes over from its own.

    Args:
        source: says what it may have.
        image: that it is made from.
        name: of the container.
        ports: of the container.
        labels: by which it is found again.
        cli: what will read the command line.

    Raises:
        CannotStart: a field of the source is nothing that a container can have.
    """
    words = ["create", "--name", name, "--log-driver", "none", "--restart", "no", "--pids-limit", str(_MOST_PROCESSES)]
    words += RIGHTS
    if cli.name == "docker":
        # A program that is the first process would ignore SIGTERM, and not look after orphans. Podman's init is a package of its own.
        words.append("--init")
    for label, value in labels.items():
        words += ["--label", f"{label}={value}"]
    for pair in ports.published:
        words += ["--publish", pair]
    for each in source.mounts:
        words += ["--mount", _mount(each, source.host_dir)]
    for field in ("network", "gpus", "memory"):
        if value := getattr(source, field):
            words += [f"--{field}", fitting(field, value)]
    if source.memory:
        words += ["--memory-swap", source.memory]
    if source.cpus < 0:
        raise impossible(f"cpus is {source.cpus:g}: give a number above 0, like 1.5")
    if source.cpus:
        words += ["--cpus", f"{source.cpus:g}"]
    taken = cli.environment()
    variables = {"PORT": str(ports.inside), **variables_of(source)}
    for variable, value in variables.items():
        # Without a value, the command line takes the value of its own variable, which no list of processes shows.
        words += ["--env", f"{variable}={value}" if variable in taken else variable]
    return [*words, image, *(word.replace("{port}", str(ports.inside)) for word in source.command)], variables


def image_of(source: ToolSource, tool_id: str) -> str:
    """Return the name of a source's image.

    Raises:
        CannotStart: it is none.
    """
    if not source.image and source.host_dir:
        return f"toolbus/{re.sub(r'[^a-z0-9]+', '-', tool_id.lower()).strip('-') or 'tool'}:latest"
    return fitting("image", source.image)


def _pair(text: str, free: int) -> tuple[int, int, str]:
    found = _PORT.fullmatch(text)
    host, container = (int(found[1] or 0), int(found[2])) if found else (0, 0)
    if found is None or not 0 < container < 65_536 or host > 65_535:
        raise impossible(f"the port {text[:50]!r} is none: give host:container, like 8080:80, or 0:80 for a port that is chosen")
    return host or free, container, found[3] or ""


def _mount(text: str, folder: str) -> str:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    shown = text[:200]
    if not source or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise impossible(f"the mount {shown!r} is none: give host:container with an absolute path in the container, and :ro to only read")
    if any(each in text for each in ",\"'\n\r\0"):
        raise impossible(f"the mount {shown!r} has a character that docker's mounts can't hold: use another path")
    path = Path(source).expanduser()
    if not path.is_absolute():
        if not folder:
            raise impossible(f"the mount {shown!r} begins with no absolute path, and the source has no host_dir that it could be in")
        path = Path(folder).expanduser() / path
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise impossible(f"the mount {shown!r} is not on this host: make {str(path)!r}, or change the source") from None
    if path in _TOO_WIDE or any(path == each or path in each.parents or each in path.parents for each in _MASTERFUL):
        raise impossible(f"the mount {shown!r} would give the container the machine itself: mount a folder of its own")
    if mode != "ro" and any(path == each.resolve() for each in _SYSTEM):
        raise impossible(f"the mount {shown!r} would let the container change the machine: add :ro, or mount a folder of its own")
    if (found := _socket_in(path)) is not None:
        raise impossible(
            f"the mount {shown!r} has the socket {str(found)!r}, and whoever speaks with a container engine is the machine's "
            "master: mount a folder without sockets"
        )
    return f"type=bind,source={path},target={target}" + (",readonly" if mode == "ro" else "")


def _socket_in(path: Path) -> Path | None:
    """Return a socket that is this path or lies below it; a name does not tell whether an engine listens there."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            return path
        left, folders = _MOST_ENTRIES, [path]
        while folders and left > 0:
            with contextlib.suppress(NotADirectoryError, PermissionError, FileNotFoundError), os.scandir(folders.pop()) as entries:
                for each in itertools.islice(entries, left):
                    left -= 1
                    if each.is_dir(follow_symlinks=False):
                        folders.append(Path(each.path))
                    elif not each.is_file() and stat.S_ISSOCK(each.stat(follow_symlinks=False).st_mode):
                        return Path(each.path)
    except OSError as error:
        raise impossible(f"the mount {str(path)[:200]!r} can't be read: {error.strerror}") from None
    return None


BUILD_LABEL = "toolbus.build"
"""Label of an image with the digest of the folder that it was built from."""

_WITHIN = 1_800.0
_MISSING = ("no such image", "not found", "unable to find", "image not known")


class Images:
    """Makes each image once, however many containers are waiting for it."""

    def __init__(self, cli: ContainerCli) -> None:
        self._cli = cli
        self._making: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def have(self, image: str, folder: str, line: Line) -> None:
        """Have an image.

        Args:
            image: its name.
            folder: that it is built from; empty for one that is fetched when it is not here.
            line: hears what is built or fetched.

        Raises:
            CannotStart: it can't be built or fetched.
        """
        async with self._making[image]:
            if folder:
                await self._build(image, folder, line)
            elif await self._label(image) is None:
                line(f"fetching the image {image}")
                try:
                    await self._cli.follow("pull", image, within=_WITHIN, line=line)
                except CliFailed as error:
                    message = "is not on this host, and can't be fetched: build or import it, or change its name"
                    raise CannotStart(f"its image {image} {message} ({error})") from None

    async def _build(self, image: str, folder: str, line: Line) -> None:
        file, digest = await asyncio.to_thread(_inspected, folder)
        if await self._label(image) == digest:
            return
        line(f"building the image {image} from {folder}")
        words = ("build", "--tag", image, "--label", f"{BUILD_LABEL}={digest}", "--file", str(file), str(file.parent))
        try:
            await self._cli.follow(*words, within=_WITHIN, line=line)
        except CliFailed as error:
            raise CannotStart(f"its image {image} can't be built: {error}") from None

    async def _label(self, image: str) -> str | None:
        """Return the digest that an image was built from, empty for another image, and None when there is no such image."""
        try:
            return await self._cli.run("image", "inspect", "--format", f'{{{{index .Config.Labels "{BUILD_LABEL}"}}}}', image)
        except CliFailed as error:
            if any(each in error.said.lower() for each in _MISSING):
                return None
            raise


def _inspected(folder: str) -> tuple[Path, str]:
    """Return the file by which a folder's image is built, and the folder's digest.

    Raises:
        CannotStart: there is no such file, or the folder can't be read.
    """
    here = Path(folder).expanduser().absolute()
    for name in ("Dockerfile", "Containerfile"):
        if (here / name).is_file():
            try:
                return here / name, digest_of_folder(here)
            except ConfigurationError as error:
                raise impossible(f"its image can't be built: {error}") from None
    raise impossible(f"its folder {folder!r} has no Dockerfile on this host: write one, or change host_dir")


_IN_USE = ("port is already allocated", "address already in use")
# Times that a container is followed again when the daemon has let go of it.
_MOST_FOLLOWS = 20


class Container:
    """One container; ``start`` makes it run.

    Args:
        cli: by which it is controlled.
        name: of the container.
        line: takes in each line of its output.
    """

    def __init__(self, cli: ContainerCli, name: str, line: Line) -> None:
        self.cli = cli
        self.name = name
        self.pid = 0
        self._ending = ""
        self._is_removed = False
        self._line = line
        self._output: program.Program | None = None
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and follow its output.

        Raises:
            CannotStart: the system can't start any program.
        """
        # Attached from the start on, so that no line is lost.
        words = [self.cli.path, "start", "--attach", self.name]
        self._output = await program.start(words, Path("/"), self.cli.environment(), self._line)
        self._life = asyncio.create_task(self._follow(self._output), name="toolbus-container")

    async def ended(self) -> None:
        """Wait until it has ended."""
        if self._life is not None:
            await asyncio.wait((self._life,))

    @property
    def last_words(self) -> str:
        """The last lines that it has written, in one."""
        return self._output.last_words if self._output else ""

    @property
    def is_ended(self) -> bool:
        """True once it has ended."""
        return self._life is None or self._life.done()

    async def state(self) -> dict[str, Any]:
        """Return its state as the daemon tells it; empty when it is gone.

        Raises:
            CliFailed: the daemon does not answer.
        """
        found = await self.cli.inspect(self.name)
        state: dict[str, Any] = found[0].get("State") or {} if found else {}
        self.pid = int(state.get("Pid") or 0) if state.get("Running") else self.pid
        return state

    async def is_cut_off(self) -> bool:
        """Return whether it runs in no network, so that nobody can reach its ports."""
        try:
            found = await self.cli.inspect(self.name)
        except CliFailed:
            return False
        networks: dict[str, Any] = (found[0].get("NetworkSettings") or {}).get("Networks") or {} if found else {}
        return bool(networks) and not any((each or {}).get("NetworkID") for each in networks.values())

    @property
    def ending(self) -> str:
        """Say why it does not run, in one line."""
        return self._ending or "it has ended"

    async def stop(self, within: float) -> None:
        """End it: ask first, kill it after ``within`` seconds; then remove it, if the daemon answers, and stop following it."""
        if self._is_removed:
            return
        if within > 0 and not self.is_ended:
            with contextlib.suppress(CliFailed):
                await self.cli.run("kill", "--signal", "TERM", self.name)
            if self._life is not None:
                await asyncio.wait((self._life,), timeout=within)
        self._is_removed = True
        try:
            with contextlib.suppress(CliFailed):
                await self.cli.run("rm", "--force", "--volumes", self.name)
        finally:
            if self._output is not None:
                await self._output.kill()
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait((self._life,))

    async def _follow(self, output: program.Program) -> None:
        for _ in range(_MOST_FOLLOWS):
            await output.ended()
            try:
                state = await self.state()
            except CliFailed as error:
                self._ending = str(error)
                return
            if not state.get("Running"):
                self._ending = _ending(state, output)
                return
            # The daemon was restarted, and the container has survived that.
            words = [self.cli.path, "attach", "--no-stdin", "--sig-proxy=false", self.name]
            self._output = output = await program.start(words, Path("/"), self.cli.environment(), self._line)
        self._ending = "its output can't be followed any more"


def _ending(state: Mapping[str, Any], output: program.Program) -> str:
    """Return why a container has ended, in one line."""
    said = output.last_words
    if state.get("OOMKilled"):
        how = "it was killed because it used more memory than it may"
    elif not state:
        how = "it was removed"
    elif error := str(state.get("Error") or ""):
        taken = any(each in (error + said).lower() for each in _IN_USE)
        how = "its port is in use: end what uses it, or change the source's ports" if taken else f"it can't be started: {error[:300]}"
    else:
        how = f"it ended with exit code {state.get('ExitCode', 0)}"
    return f"{how}: {said}" if said and not state.get("Error") else how


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
