"""``ContainerCli``: run commands of docker, or of podman where only that is there, and tell their failures in one line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolbus.backends import program
from toolbus.backends.runner import CannotStart, Line
from toolbus.environment import harmless

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
            path = shutil.which(name)
            if path:
                return cls(path)
        raise CannotStart(
            "neither docker nor podman is installed on this host: install one, or give the source the label of another host", permanent=True
        )

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of its process: those that say where the daemon is, and ``more``."""
        own = {name: value for name, value in os.environ.items() if name.startswith(_DAEMON)}
        # BuildKit is a plug-in that is not installed everywhere.
        plain = {} if self._has_buildx() else {"DOCKER_BUILDKIT": "0"}
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
        process = await self._process(words, asyncio.subprocess.PIPE, more)
        try:
            async with asyncio.timeout(within):
                out, said = await process.communicate()
        except TimeoutError:
            message = f"{self.name} {words[0]} did not answer within {within:g} s: see whether its daemon is well"
            raise CliFailed(message, away=True) from None
        finally:
            await _end(process)
        if process.returncode:
            text = said.decode("utf-8", "replace").strip()
            raise self.failure(words[0], text)
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
            text = "\n".join(last)
            raise self.failure(words[0], text)

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
        return CliFailed(f"{self.name} {command} failed: {said if len(said) <= _MOST_ERROR else said[: _MOST_ERROR - 1] + '…'}", text)

    async def _process(self, words: Sequence[str], out: int, more: Mapping[str, str] | None) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *(self.path, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment(more),
                start_new_session=True,
            )
        except OSError as error:
            raise CliFailed(f"{self.path} can't be run: {error.strerror}") from None

    def _has_buildx(self) -> bool:
        places = (Path.home() / ".docker", Path("/usr/local/lib/docker"), Path("/usr/lib/docker"), Path("/usr/libexec/docker"))
        return any((place / "cli-plugins" / "docker-buildx").exists() for place in places)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(asyncio.ensure_future(process.wait()))
