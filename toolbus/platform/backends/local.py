"""Run local programs: a uv project, started with a free port, that answers over HTTP on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from toolbus.bus import telemetry
from toolbus.bus.support.files import locked
from toolbus.bus.values.secrets import harmless
from toolbus.platform.backends import marks, program
from toolbus.platform.backends.confinement import Confinement, base_python, bound
from toolbus.platform.backends.http import HttpCalls
from toolbus.platform.backends.instances import ProgramInstance, Readiness, Running, calls_of, held, until_ready
from toolbus.platform.backends.keeper import descendants
from toolbus.platform.backends.marks import LOOPBACK, Ports, listening
from toolbus.platform.backends.program import Program
from toolbus.platform.backends.runner import CannotStart, Line, Runner, impossible, variables_of
from toolbus.platform.records import RecordedTool, ToolSource

MOST_UNUSED = 64
"""Most folders that no program uses; those that were used last stay."""
UNUSED_FOR = 30 * 86_400.0
"""Seconds for which a folder stays that no program uses."""

_DIGEST = re.compile(r"[0-9a-f]{16,128}")
_USED, _LOCK, _REMOVED = "used", "lock", ".removed-"
# Others hold the lock for a few system calls.
_LOCKED_WITHIN = 10.0


class MadeFolder:
    """The folder of what was made of one digest's code; nobody removes it until ``release``, or until this process ends.

    Args:
        own: the folder.
        used: descriptor of the file in it by whose lock others see that it is used.

    Attributes:
        variables: lead the environment and the byte code of the code there.
    """

    def __init__(self, own: Path, used: int) -> None:
        self._used = used
        self.variables = {"UV_PROJECT_ENVIRONMENT": str(own / "venv"), "PYTHONPYCACHEPREFIX": str(own / "pycache")}

    def release(self) -> None:
        """Let it be removed when it has not been used for long."""
        used, self._used = self._used, -1
        if used >= 0:
            with contextlib.suppress(OSError):
                os.utime(used)
            os.close(used)


def made_elsewhere(folder: Path, digest: str) -> MadeFolder:
    """Return a folder for the environment and the byte code of a folder's code, which only this user may enter.

    A digest leaves ``.venv``, ``__pycache__`` and ``*.pyc`` out, so they may hold what nobody approved.

    Raises:
        CannotStart: the host can't write its cache, or the folder has byte code that Python would read as a module.
    """
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {".venv", "__pycache__"}]
        for name in files:
            if name.endswith(".pyc"):
                raise CannotStart(f"{Path(path, name)} is byte code that no approval covers, and Python could run it; remove it")
    cache = _cache()
    own = cache / digest
    try:
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o700)
        if not own.exists():
            # Each new revision has a folder of its own, also at a host that runs for years.
            remove_unused()
        with locked(cache / _LOCK, within=_LOCKED_WITHIN):
            own.mkdir(exist_ok=True)
            own.chmod(0o700)
            return MadeFolder(own, _begin_use(own))
    except OSError as error:
        raise CannotStart(
            f"the host can't write its cache {str(own)!r} ({error.strerror}); set XDG_CACHE_HOME to a folder of its own"
        ) from None


def _begin_use(own: Path) -> int:
    used = os.open(own / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Only a removal locks it otherwise, and none is under way.
        fcntl.flock(used, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.utime(used)
    except OSError:
        os.close(used)
        raise
    return used


def remove_unused(*, most: int = MOST_UNUSED, seconds: float = UNUSED_FOR) -> list[str]:
    """Remove folders that no program of any host uses, if they were not used for long, or too many others were used since.

    Returns:
        A line for each.
    """
    cache = _cache()
    try:
        with locked(cache / _LOCK, within=_LOCKED_WITHIN):
            names = _put_aside(cache, most, time.time() - seconds)
        # Those of a process that was killed while it removed them, too.
        for each in cache.glob(f"{_REMOVED}*"):
            shutil.rmtree(each, ignore_errors=True)
    except OSError:
        # There is none, or it is not this user's to look after.
        return []
    return [f"what was made of the code {name[:12]}… was used no more, and is removed" for name in names]


def _put_aside(cache: Path, most: int, before: float) -> list[str]:
    """Rename folders that are to be removed, which takes as long as one system call each; return their names."""
    found = sorted(((_used_at(each), each) for each in cache.iterdir() if _DIGEST.fullmatch(each.name) and each.is_dir()), reverse=True)
    removed = []
    for position, (used_at, each) in enumerate(found):
        if (position >= most or used_at < before) and not _is_used(each):
            each.rename(cache / f"{_REMOVED}{secrets.token_hex(8)}")
            removed.append(each.name)
    return removed


def _used_at(own: Path) -> float:
    with contextlib.suppress(OSError):
        return (own / _USED).stat().st_mtime
    return own.stat().st_mtime


def _is_used(own: Path) -> bool:
    try:
        used = os.open(own / _USED, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Of a toolbus that took no lock.
        return False
    try:
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(used)
    return False


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus" / "programs"


class _AtItsPort(Readiness):
    """Says when a program is ready that has the port itself, and sees who listens there.

    Attributes:
        taken: another process does.
        everywhere: it does on all addresses of the machine; known when it is ready.
    """

    taken = everywhere = False

    async def is_own(self, running: Running) -> bool:
        """Return whether it is the program that listens; true where the system does not say."""
        found = await asyncio.to_thread(lambda: listening(self.port, [running.pid, *descendants(running.pid)]))
        self.taken = found.known and found.anyone and not found.ours
        self.everywhere = found.everywhere
        return not self.taken


# Another process may take a port between its choice and the program's start.
_MOST_TRIES = 3
_IN_USE = ("address already in use", "errno 98", "errno 48", "eaddrinuse", "only one usage of each socket address")
# Of uv's own settings those that say where it keeps things.
_OF_UV = ("UV_CACHE_DIR", "UV_OFFLINE", "UV_PYTHON", "UV_PYTHON_INSTALL_DIR", "UV_LINK_MODE", "XDG_CACHE_HOME", "XDG_DATA_HOME")


class LocalRunner(Runner):
    """Starts local programs.

    Args:
        confine: whether programs that models wrote are confined, and refused where they can't be.
    """

    def __init__(self, *, confine: bool = True) -> None:
        self._confinement = Confinement(needed=confine)
        self._ports = Ports()
        # Tools of which the log says that others can reach their programs.
        self._exposed: set[str] = set()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> ProgramInstance:
        """Start a program, and return when it is ready."""
        folder = _folder(source)
        kept = {name: os.environ[name] for name in _OF_UV if name in os.environ}
        # Output in a pipe would come in blocks, long after it was written.
        environment = {**harmless(), **kept, "PYTHONUNBUFFERED": "1", "HOST": LOOPBACK, **variables_of(source)}
        async with held() as release:
            if tool.code:
                made = await _made(folder, tool.code)
                release.callback(made.release)
                environment |= made.variables
            for remaining in reversed(range(_MOST_TRIES)):
                try:
                    return await self._start(tool, source, folder, environment, line, release)
                except _PortTaken as error:
                    if not remaining:
                        raise CannotStart(f"{error}; after {_MOST_TRIES} tries") from None
        raise AssertionError

    async def clean(self) -> list[str]:
        """End the programs of hosts that are dead, and remove what was made of code that nobody uses any more."""
        return await asyncio.to_thread(marks.end_orphans) + await asyncio.to_thread(remove_unused)

    async def aclose(self) -> None:
        """Remove what confined programs shared."""
        self._confinement.close()

    async def _start(
        self, tool: RecordedTool, source: ToolSource, folder: Path, environment: Mapping[str, str], line: Line, release: AsyncExitStack
    ) -> ProgramInstance:
        """Start it at a port, which is given back with the rest of what it has."""
        async with held() as own:
            port = self._ports.take()
            own.callback(self._ports.give_back, port)
            environment = {**environment, "PORT": str(port)}
            confined = await self._confinement.applies(tool)
            relayed = confined and source.network != "host"
            readiness = Readiness(source, port, relayed=True) if relayed else _AtItsPort(source, port)
            line = readiness.seeing(line)
            if confined:
                running = await self._start_confined(tool, source, folder, environment, port, line)
            else:
                running = await program.start(_words(source, folder, port, is_approved=bool(tool.code)), folder, environment, line)
            calls = calls_of(tool, source, port, running)
            own.push_async_callback(calls.aclose)
            try:
                await _ready(running, readiness, calls, source)
            except BaseException:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(asyncio.ensure_future(running.kill()))
                raise
            release.push_async_callback(own.aclose)
        if isinstance(readiness, _AtItsPort) and readiness.everywhere:
            where = f"on all addresses of the machine, where others can call it: let it listen on {LOOPBACK}, as HOST says"
            line(f"toolbus: it listens {where}")
            if tool.tool_id not in self._exposed:
                self._exposed.add(tool.tool_id)
                telemetry.log.warning("instance.listens_everywhere", tool=tool.tool_id, port=port)
        return ProgramInstance(running, calls, readiness, release)

    async def _start_confined(
        self, tool: RecordedTool, source: ToolSource, folder: Path, environment: Mapping[str, str], port: int, line: Line
    ) -> Program:
        """Start a program that a model wrote; what it needs is installed before, since it may not reach the network itself."""
        venv = Path(environment.get("UV_PROJECT_ENVIRONMENT") or folder / ".venv")
        words = _words(source, folder, port, is_approved=bool(tool.code))
        if not source.command:
            await _install(words[0], folder, environment, line)
            words = [str(venv / "bin" / "python"), "main.py", "--port", str(port)]
        path = f"{venv}/bin:{base_python().rpartition('/')[0]}:/usr/local/bin:/usr/bin:/bin"
        own = {name: environment[name] for name in source.env}
        # Its own folder can't be written, and nothing of the home folder is there.
        environment = {**environment, "HOME": "/tmp", "TMPDIR": "/tmp", "PATH": path, "VIRTUAL_ENV": str(venv), **own}  # noqa: S108
        try:
            listening = bound(port)
        except OSError as error:
            raise _PortTaken(f"its port was taken by another process: {error.strerror}") from None
        read = (str(folder), str(venv))
        with listening:
            confined = self._confinement.words(tool, source, words, read=read, listen=listening.fileno(), port=port)
            if source.network == "host":
                listening.close()
                return await program.start(confined, folder, environment, line)
            return await program.start(confined, folder, environment, line, (listening.fileno(),))


async def _made(folder: Path, digest: str) -> MadeFolder:
    """Return the folder of what is made of approved code; one that comes when nobody waits any more is released."""
    making = asyncio.ensure_future(asyncio.to_thread(made_elsewhere, folder, digest))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().release())
        raise


async def _install(uv: str, folder: Path, environment: Mapping[str, str], line: Line) -> None:
    """Install what a project's lock file names; nothing is built, since that would run code outside of what confines the program.

    Raises:
        CannotStart: it can't be installed.
    """
    of_uv = {"UV_NO_BUILD": "1", "UV_PYTHON": base_python(), "UV_PYTHON_DOWNLOADS": "never"}
    # The program may run as another user than the host.
    words = ["/bin/sh", "-c", 'umask 022; exec "$@"', "sh", uv, "sync", "--frozen", "--quiet"]
    installing = await program.start(words, folder, {**environment, **of_uv}, line)
    try:
        await installing.ended()
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(installing.kill()))
        raise
    if installing.code:
        raise CannotStart(f"what it needs can't be installed: {installing.ending}")


class _PortTaken(CannotStart):
    """The port was taken meanwhile."""


async def _ready(running: Program, readiness: Readiness, calls: HttpCalls, source: ToolSource) -> None:
    """Wait until a program is ready.

    Raises:
        CannotStart: it ended before, or is not ready in time.
    """
    if await until_ready("it", running, readiness, calls, source.ready_within):
        return
    taken = isinstance(readiness, _AtItsPort) and readiness.taken
    if taken or any(each in running.last_words.lower() for each in _IN_USE):
        raise _PortTaken(f"its port was taken by another process: {running.last_words}")
    raise CannotStart(running.ending)


def _folder(source: ToolSource) -> Path:
    folder = Path(source.host_dir).expanduser()
    if not source.host_dir or not folder.is_dir():
        raise impossible(f"its folder {source.host_dir!r} is not on this host; copy it there, or change host_dir")
    return folder


def _words(source: ToolSource, folder: Path, port: int, *, is_approved: bool) -> Sequence[str]:
    if source.command:
        return [word.replace("{port}", str(port)) for word in source.command]
    options: list[str] = []
    if is_approved and (folder / "pyproject.toml").exists():
        # Uv would write a lock file, and the code would not be what was approved any more.
        if not (folder / "uv.lock").exists():
            raise impossible("its code was approved without uv.lock, which says what it is made of: run `uv lock`, and record it anew")
        options = ["--frozen"]
    try:
        import uv  # noqa: PLC0415 - only projects need it
    except ImportError:
        raise impossible("uv is not installed on this host; install toolbus[platform], or give the source a command") from None
    return [os.fsdecode(uv.find_uv_bin()), "run", *options, "python", "main.py", "--port", str(port)]
