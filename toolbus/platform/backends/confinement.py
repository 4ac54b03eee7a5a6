"""Confine programs that a model wrote: what they see, may use, and reach, and whether this machine can see to that."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolbus.platform.backends.runner import CannotStart, fitting, impossible
from toolbus.platform.records import RecordedTool, ToolSource
from toolbus.platform.review import CONFINED_MEMORY, CONFINED_PROCESSES

LAUNCHER = str(Path(__file__).with_name("launcher.py"))
"""The program that confines another one."""

READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/" + name for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "host.conf", "services", "protocols")),
    *("/etc/" + name for name in ("ssl", "pki", "ca-certificates", "ld.so.cache", "ld.so.conf", "localtime", "alternatives", "mime.types")),
    *("/etc/fonts", "/etc/magic"),
)
"""Folders and files of the system that a program sees beside Python's own folder: programs, and settings without secrets."""

_FILE_BYTES = 256 << 20
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# Numbers that systems leave for users who exist only while something runs.
_FIRST_USER, _USERS = 61_184, 4_336
_TRIED_WITHIN = 30.0


def readable() -> list[str]:
    """Return what a program sees beside its own files: ``READABLE``, and the folder that the interpreter is installed in."""
    return [*READABLE, str(Path(sys.base_prefix).resolve())]


def base_python() -> str:
    """Return the interpreter outside of any virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


class Confinement:
    """Makes the command lines that start programs confined.

    Args:
        needed: whether programs that a model wrote are refused where they can't be confined; where it is not, they are never confined.
    """

    def __init__(self, *, needed: bool = True) -> None:
        self._needed = needed
        self._root: tempfile.TemporaryDirectory[str] | None = None

    async def applies(self, tool: RecordedTool) -> bool:
        """Return whether a tool's program is to be confined.

        Raises:
            CannotStart: it is, and this machine can't.
        """
        if not tool.by_model or not self._needed:
            return False
        if reason := await asyncio.to_thread(why_not):
            raise CannotStart(f"a model wrote it, and {refusal(reason)}")
        if self._root is None:
            self._root = tempfile.TemporaryDirectory(prefix="toolbus-root-")
        return True

    def words(
        self, tool: RecordedTool, source: ToolSource, words: Sequence[str], *, read: Sequence[str], listen: int, port: int
    ) -> list[str]:
        """Return the command line that runs another one confined.

        Args:
            tool: whose program it is.
            source: says what the program may have.
            words: the other command line.
            read: folders that it sees beside those of the system.
            listen: descriptor of a socket at the host's port, from which connections are passed on.
            port: of the program in its own network.

        Raises:
            CannotStart: the record says nothing that a program can have.
        """
        assert self._root is not None  # noqa: S101 - applies() was asked
        # A link to the folder would lead nowhere from within.
        folder = os.path.realpath(read[0])
        memory = fitting("memory", source.memory or CONFINED_MEMORY).lower()
        most = int(memory.rstrip("bkmg")) * _UNITS.get(memory[-1], 1)
        plan = _plan(words, self._root.name, [folder, *read[1:]], most)
        plan["user"] = 0 if os.geteuid() else _FIRST_USER + zlib.crc32(tool.tool_id.encode()) % _USERS
        if plan["user"] and not os.stat(folder).st_mode & stat.S_IXOTH:  # noqa: PTH116 - it is a text
            raise impossible(f"its program runs as a user of its own, who can't read its folder: `chmod -R a+rX {folder}`")
        plan["folder"] = folder
        if source.network != "host":
            plan["relay"] = (listen, port)
        return launched(plan)

    def close(self) -> None:
        """Remove what it has made."""
        if self._root is not None:
            self._root.cleanup()
            self._root = None


def launched(plan: Mapping[str, Any]) -> list[str]:
    """Return the command line that does what a plan for the launcher says."""
    return [sys.executable, "-I", "-S", LAUNCHER, json.dumps(plan)]


def refusal(reason: str) -> str:
    """Return why programs that models wrote are not served, with what to do."""
    return (
        f"this machine can't confine it ({reason}): allow user namespaces, give its tools to a host that can by a label, or accept with "
        "TOOLBUS_CONFINE=0 that it has all rights of the host"
    )


def bound(port: int) -> socket.socket:
    """Return a socket that has a port of this machine and refuses connections until it listens.

    Raises:
        OSError: another process has the port.
    """
    found = socket.socket()
    try:
        found.bind(("127.0.0.1", port))
    except BaseException:
        found.close()
        raise
    return found


def why_not() -> str:
    """Try to confine a program; return why that can't be done here, or an empty text. Blocking."""
    if sys.platform != "linux":
        return "programs are confined on Linux only"
    with tempfile.TemporaryDirectory(prefix="toolbus-root-") as root, bound(0) as listening:
        plan = _plan(["/bin/sh", "-c", "exit 0"], root, (), _UNITS["g"])
        plan |= {"user": 0 if os.geteuid() else _FIRST_USER, "folder": "/", "relay": (listening.fileno(), 1)}
        try:
            done = subprocess.run(  # noqa: S603 - it is our own program
                launched(plan),
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRIED_WITHIN,
                pass_fds=(listening.fileno(),),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the attempt failed: {error}"
    if not done.returncode:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2].removeprefix("confine:")
    return said or f"the attempt ended with status {done.returncode}"


def _plan(words: Sequence[str], root: str, read: Sequence[str], memory: int) -> dict[str, Any]:
    return {
        "words": list(words),
        "root": root,
        "read": [*readable(), *read],
        "memory": memory,
        "processes": CONFINED_PROCESSES,
        "file_bytes": _FILE_BYTES,
    }
