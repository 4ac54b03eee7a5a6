"""Make the command line of a container from a source, and refuse what would let it out of the container."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from toolbus.backends.containers.cli import ContainerCli
from toolbus.backends.ports import LOOPBACK
from toolbus.backends.runner import CannotStart
from toolbus.platform.records import ToolSource
from toolbus.results import ConfigurationError
from toolbus.secrets import value_of

_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MEMORY = re.compile(r"[1-9][0-9]*[bkmg]?", re.IGNORECASE)
_GPUS = re.compile(r"all|[0-9]+|device=[A-Za-z0-9,_-]+")
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
_MASTERFUL = tuple(
    Path(each) for each in (*("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/root/.ssh", "/var/lib/docker", "/var/lib/containers"),)
)

# Everybody's files.
_TOO_WIDE = frozenset({Path("/"), Path("/home"), Path("/root")})

# Whoever can write there decides what the machine's programs do.
_SYSTEM = tuple(Path(each) for each in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt"))


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
        raise CannotStart('its network is "none", so that nobody can call it: leave network empty, or use "host"', permanent=True)
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
    if source.network:
        words += ["--network", _fitting(_NETWORK, source.network, "network", "bridge, host, or a network's name")]
    for pair in ports.published:
        words += ["--publish", pair]
    for each in source.mounts:
        words += ["--mount", _mount(each, source.host_dir)]
    if source.gpus:
        words += ["--gpus", _fitting(_GPUS, source.gpus, "gpus", "all, a number, or device=0,1")]
    if source.memory:
        memory = _fitting(_MEMORY, source.memory, "memory", "a number with b, k, m or g, like 512m")
        words += ["--memory", memory, "--memory-swap", memory]
    if source.cpus < 0:
        raise CannotStart(f"cpus is {source.cpus:g}: give a number above 0, like 1.5", permanent=True)
    if source.cpus:
        words += ["--cpus", f"{source.cpus:g}"]
    taken = cli.environment()
    variables = {"PORT": str(ports.inside), **_variables(source)}
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
    return _fitting(_IMAGE, source.image, "image", "an image's name, like registry/name:tag")


def _variables(source: ToolSource) -> dict[str, str]:
    for name in source.env:
        _fitting(_VARIABLE, name, "env", "letters, digits and _")
    try:
        return {name: value_of(value) for name, value in source.env.items()}
    except ConfigurationError as error:
        raise CannotStart(str(error), permanent=True) from None


def _pair(text: str, free: int) -> tuple[int, int, str]:
    found = _PORT.fullmatch(text)
    host, container = (int(found[1] or 0), int(found[2])) if found else (0, 0)
    if found is None or not 0 < container < 65_536 or host > 65_535:
        raise CannotStart(
            f"the port {text[:50]!r} is none: give host:container, like 8080:80, or 0:80 for a port that is chosen", permanent=True
        )
    return host or free, container, found[3] or ""


def _mount(text: str, folder: str) -> str:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    shown = text[:200]
    if not source or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise CannotStart(
            f"the mount {shown!r} is none: give host:container with an absolute path in the container, and :ro to only read", permanent=True
        )
    if any(each in text for each in ",\"'\n\r\0"):
        raise CannotStart(f"the mount {shown!r} has a character that docker's mounts can't hold: use another path", permanent=True)
    path = Path(source).expanduser()
    if not path.is_absolute():
        if not folder:
            raise CannotStart(
                f"the mount {shown!r} begins with no absolute path, and the source has no host_dir that it could be in", permanent=True
            )
        path = Path(folder).expanduser() / path
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise CannotStart(f"the mount {shown!r} is not on this host: make {str(path)!r}, or change the source", permanent=True) from None
    if path in _TOO_WIDE or any(path == each or path in each.parents or each in path.parents for each in _MASTERFUL):
        raise CannotStart(f"the mount {shown!r} would give the container the machine itself: mount a folder of its own", permanent=True)
    if mode != "ro" and any(path == each.resolve() for each in _SYSTEM):
        raise CannotStart(
            f"the mount {shown!r} would let the container change the machine: add :ro, or mount a folder of its own", permanent=True
        )
    if (found := _socket_in(path)) is not None:
        raise CannotStart(
            f"the mount {shown!r} has the socket {str(found)!r}, and whoever speaks with a container engine is the machine's master: "
            "mount a folder without sockets",
            permanent=True,
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
        raise CannotStart(f"the mount {str(path)[:200]!r} can't be read: {error.strerror}", permanent=True) from None
    return None


def _fitting(pattern: re.Pattern[str], value: str, field: str, wanted: str) -> str:
    if not pattern.fullmatch(value):
        raise CannotStart(f"{field} is {value[:80]!r}: give {wanted}", permanent=True)
    return value
