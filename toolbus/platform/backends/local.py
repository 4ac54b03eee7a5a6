"""Run local programs: a uv project, started with a free port, that answers over HTTP on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolbus.bus import telemetry
from toolbus.bus.values.results import ConfigurationError, ToolResult
from toolbus.bus.values.secrets import harmless, value_of
from toolbus.platform.backends import marks, program
from toolbus.platform.backends.confinement import Confinement, base_python, bound
from toolbus.platform.backends.http.calls import Endpoint, HttpCalls
from toolbus.platform.backends.keeper import descendants
from toolbus.platform.backends.made import MadeFolder, made_elsewhere, remove_unused
from toolbus.platform.backends.marks import LOOPBACK, Listening, Ports, listening
from toolbus.platform.backends.program import Program
from toolbus.platform.backends.runner import CannotStart, Line, Output
from toolbus.platform.records import RecordedTool, ToolSource

_FIRST, _MOST = 0.02, 0.25
_CONNECT = 2.0
_HEALTHY_WITHIN = 5.0


class Readiness:
    """Says when a program is ready.

    Args:
        source: says how readiness is known: ``port``, ``path:/health`` or ``log:TEXT``.
        port: of the program.
        relayed: whether the host passes on connections, so that it has the port, and takes them once the program listens.

    Attributes:
        taken: another process listens on its port.
        everywhere: it listens on all addresses of the machine; known when it is ready.
    """

    def __init__(self, source: ToolSource, port: int, *, relayed: bool = False) -> None:
        self._kind, _, self._what = source.ready.partition(":")
        self._port = port
        self._relayed = relayed
        self.taken = self.everywhere = False

    @property
    def wanted(self) -> str:
        """Name what it waits for, in words."""
        if self._kind == "path":
            return f"GET {self._what} was not answered well"
        if self._kind == "log":
            return f"no line with {self._what!r} was written"
        return f"nothing listens on port {self._port}"

    async def wait(self, running: Program, calls: HttpCalls) -> None:
        """Wait until the program is ready; for ever, if it never is."""
        if self._kind == "log":
            await running.wrote(self._what)
            if not self._relayed:
                self.everywhere = (await self._listening(running)).everywhere
                return
        pause = _FIRST
        while True:
            if (
                await self._connects()
                and await self._is_own(running)
                and not (self._kind == "path" and await calls.get(self._what, _CONNECT))
            ):
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _MOST)

    async def health(self, calls: HttpCalls) -> str:
        """Return why a program that runs is not well; empty when it is."""
        if self._kind == "path":
            return await calls.get(self._what, _HEALTHY_WITHIN)
        return "" if await self._connects() else f"nothing listens on its port {self._port}"

    async def _connects(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT):
                _, writer = await asyncio.open_connection(LOOPBACK, self._port)
            writer.close()
            return True
        return False

    async def _is_own(self, running: Program) -> bool:
        """Return whether it is the program that listens; true where the system does not say."""
        if self._relayed:
            return True
        found = await self._listening(running)
        self.taken = found.known and found.anyone and not found.ours
        self.everywhere = found.everywhere
        return not self.taken

    async def _listening(self, running: Program) -> Listening:
        return await asyncio.to_thread(lambda: listening(self._port, [running.pid, *descendants(running.pid)]))


# Another process may take a port between its choice and the program's start.
_MOST_TRIES = 3
_IN_USE = ("address already in use", "errno 98", "errno 48", "eaddrinuse", "only one usage of each socket address")
# Of uv's own settings those that say where it keeps things.
_OF_UV = ("UV_CACHE_DIR", "UV_OFFLINE", "UV_PYTHON", "UV_PYTHON_INSTALL_DIR", "UV_LINK_MODE", "XDG_CACHE_HOME", "XDG_DATA_HOME")


class LocalInstance:
    """One running program."""

    def __init__(
        self, running: program.Program, port: int, ports: Ports, calls: HttpCalls, readiness: Readiness, made: MadeFolder | None
    ) -> None:
        self._program = running
        self._made = made
        self._ports = ports
        self._calls = calls
        self._readiness = readiness
        self.pid = running.pid
        self.port = port

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call."""
        return await self._calls.call(arguments, output, user=user, deadline=deadline)

    async def health(self, *, answered: bool = False) -> str:
        """Return why it is not well."""
        if self._program.code is not None:
            return self._program.ending
        return await (self._calls.answers(_HEALTHY_WITHIN) if answered else self._readiness.health(self._calls))

    async def unfinished(self) -> int:
        """Return how many calls it goes on with although their connections were closed."""
        return await self._calls.unfinished()

    async def ended(self) -> str:
        """Wait until it has ended by itself."""
        await self._program.ended()
        return self._program.ending

    async def stop(self, within: float) -> None:
        """End it with everything that it started."""
        try:
            await self._program.stop(within)
        finally:
            self._ports.give_back(self.port)
            if self._made is not None:
                self._made.release()
            await self._calls.aclose()


class LocalRunner:
    """Starts local programs.

    Args:
        host: id of the host that they belong to.
        confine: whether programs that models wrote are confined, and refused where they can't be.
    """

    def __init__(self, host: str, *, confine: bool = True) -> None:
        self._host = host
        self._confinement = Confinement(needed=confine)
        self._ports = Ports()
        # Tools of which the log says that others can reach their programs.
        self._exposed: set[str] = set()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> LocalInstance:
        """Start a program, and return when it is ready."""
        folder = _folder(source)
        environment = _environment(source)
        if not tool.code:
            return await self._start_at_a_port(tool, source, folder, environment, line, None)
        made = await _made(folder, tool.code)
        try:
            return await self._start_at_a_port(tool, source, folder, {**environment, **made.variables}, line, made)
        except BaseException:
            made.release()
            raise

    async def _start_at_a_port(
        self, tool: RecordedTool, source: ToolSource, folder: Path, environment: Mapping[str, str], line: Line, made: MadeFolder | None
    ) -> LocalInstance:
        for left in reversed(range(_MOST_TRIES)):
            port = self._ports.take()
            try:
                return await self._start(tool, source, folder, environment, port, line, made)
            except _PortTaken as error:
                self._ports.give_back(port)
                if not left:
                    raise CannotStart(f"{error}; after {_MOST_TRIES} tries") from None
            except BaseException:
                self._ports.give_back(port)
                raise
        raise AssertionError

    async def clean(self) -> list[str]:
        """End the programs of hosts that are dead, and remove what was made of code that nobody uses any more."""
        return await asyncio.to_thread(marks.end_orphans) + await asyncio.to_thread(remove_unused)

    async def aclose(self) -> None:
        """Remove what confined programs shared."""
        self._confinement.close()

    async def _start(
        self,
        tool: RecordedTool,
        source: ToolSource,
        folder: Path,
        environment: Mapping[str, str],
        port: int,
        line: Line,
        made: MadeFolder | None,
    ) -> LocalInstance:
        environment = {**environment, "PORT": str(port)}
        confined = await self._confinement.applies(tool)
        readiness = Readiness(source, port, relayed=confined and source.network != "host")
        if confined:
            running = await self._start_confined(tool, source, folder, environment, port, line)
        else:
            running = await program.start(_words(source, folder, port, is_approved=bool(tool.code)), folder, environment, line)
        endpoint = Endpoint(
            base=f"http://{LOOPBACK}:{port}",
            method=source.http_method.upper(),
            path=source.endpoint_path,
            shown=tool.tool_id,
            streams=tool.meta.stream_support,
            once=tool.running.effect == "once",
            tells_user=True,
        )
        calls = HttpCalls(endpoint, ended=running.ended)
        try:
            await _ready(running, readiness, calls, source)
        except BaseException:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.ensure_future(running.kill()))
            await calls.aclose()
            raise
        if readiness.everywhere:
            self._tell_exposed(tool.tool_id, port, line)
        return LocalInstance(running, port, self._ports, calls, readiness, made)

    async def _start_confined(
        self, tool: RecordedTool, source: ToolSource, folder: Path, environment: Mapping[str, str], port: int, line: Line
    ) -> program.Program:
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

    def _tell_exposed(self, tool: str, port: int, line: Line) -> None:
        line(f"toolbus: it listens on all addresses of the machine, where others can call it: let it listen on {LOOPBACK}, as HOST says")
        if tool not in self._exposed:
            self._exposed.add(tool)
            telemetry.log.warning("instance.listens_everywhere", tool=tool, port=port)


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


async def _ready(running: program.Program, readiness: Readiness, calls: HttpCalls, source: ToolSource) -> None:
    """Wait until a program is ready.

    Raises:
        CannotStart: it ended before, or is not ready in time.
    """
    waiting = asyncio.create_task(readiness.wait(running, calls))
    ending = asyncio.create_task(running.ended())
    try:
        async with asyncio.timeout(source.ready_within):
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        said = f"; it last wrote: {running.last_words}" if running.last_words else "; it wrote nothing"
        raise CannotStart(f"it was not ready within {source.ready_within:g} s ({readiness.wanted}){said}") from None
    finally:
        for task in (waiting, ending):
            task.cancel()
        await asyncio.gather(waiting, ending, return_exceptions=True)
    if not waiting.cancelled() and waiting.exception() is None:
        return
    if readiness.taken or any(each in running.last_words.lower() for each in _IN_USE):
        raise _PortTaken(f"its port was taken by another process: {running.last_words}")
    if running.code is None:
        raise CannotStart(f"it can't be seen whether it is ready: {waiting.exception()}")
    raise CannotStart(running.ending)


def _folder(source: ToolSource) -> Path:
    folder = Path(source.host_dir).expanduser()
    if not source.host_dir or not folder.is_dir():
        raise CannotStart(f"its folder {source.host_dir!r} is not on this host; copy it there, or change host_dir", permanent=True)
    return folder


def _words(source: ToolSource, folder: Path, port: int, *, is_approved: bool) -> Sequence[str]:
    if source.command:
        return [word.replace("{port}", str(port)) for word in source.command]
    options: list[str] = []
    if is_approved and (folder / "pyproject.toml").exists():
        # Uv would write a lock file, and the code would not be what was approved any more.
        if not (folder / "uv.lock").exists():
            raise CannotStart(
                "its code was approved without uv.lock, which says what it is made of: run `uv lock`, and record it anew", permanent=True
            )
        options = ["--frozen"]
    try:
        import uv  # noqa: PLC0415 - only projects need it
    except ImportError:
        raise CannotStart(
            "uv is not installed on this host; install toolbus[platform], or give the source a command", permanent=True
        ) from None
    return [os.fsdecode(uv.find_uv_bin()), "run", *options, "python", "main.py", "--port", str(port)]


def _environment(source: ToolSource) -> dict[str, str]:
    try:
        own = {name: value_of(value) for name, value in source.env.items()}
    except ConfigurationError as error:
        raise CannotStart(str(error), permanent=True) from None
    kept = {name: os.environ[name] for name in _OF_UV if name in os.environ}
    # Output in a pipe would come in blocks, long after it was written.
    return {**harmless(), **kept, "PYTHONUNBUFFERED": "1", "HOST": LOOPBACK, **own}


async def make_runner(host: str, *, confine: bool = True) -> LocalRunner:
    """Return the runner of a host."""
    return LocalRunner(host, confine=confine)
