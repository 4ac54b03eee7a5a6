"""``Workspace``: the folder of one task, and the programs that run in it, confined; their output, and what ends them."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from toolbus.bus.support.safe_text import text_of
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.platform.backends.confinement import base_python, launched, readable
from toolbus.platform.coding.files import Folder, WorkspaceOptions, usage


class Unread:
    """The output of a program since it was last read; what is not read in time is left out from its beginning.

    Args:
        most: characters that are kept.

    Attributes:
        lost: how many were left out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._text = ""
        self.lost = 0

    def add(self, text: str) -> None:
        """Take in text."""
        self._text += text
        cut = max(0, len(self._text) - self._most)
        self.lost += cut
        self._text = self._text[cut:]

    def __str__(self) -> str:
        return (f"[… {self.lost:,} characters left out …]\n" if self.lost else "") + self._text

    def take(self) -> str:
        """Return what came since the last time."""
        text, self._text, self.lost = str(self), "", 0
        return text


class Output:
    """Takes in text, keeps at most so many characters.

    Args:
        most: characters that are kept; three quarters of them from the beginning.
    """

    def __init__(self, most: int) -> None:
        self._head = ""
        self._most_head = most - most // 4
        self._tail = Unread(most // 4)

    def add(self, text: str) -> str:
        """Take in text; return what of it belongs to the beginning, to be passed on at once."""
        begin = text[: self._most_head - len(self._head)]
        self._head += begin
        self._tail.add(text[len(begin) :])
        return begin

    @property
    def rest(self) -> str:
        """The rest after the beginning: how much is left out, and the end."""
        return f"\n{self._tail}" if self._tail.lost else str(self._tail)

    def __str__(self) -> str:
        return self._head + self.rest


_CHUNK = 65_536
# A program that prints more than this is ended.
MOST_PRINTED = 64 << 20
# Seconds for the guard to end what is left, once it is told.
_GONE = 5.0

REASONS = {
    "time": "it was ended: it took longer than {seconds:.1f} s",
    "memory": "it was ended: its processes used more than {memory:,} bytes of memory",
    "processes": "it was ended: it had more than {processes} processes at once",
    "output": "it was ended: it printed more than {printed:,} bytes",
    "disk": "it was ended: the workspace is full ({total_bytes:,} bytes or {entries:,} entries)",
}
"""Texts for the model about a program that was ended, by the reason."""


class Finished(msgspec.Struct, frozen=True):
    """A program that has ended.

    Attributes:
        status: its exit status; 128 and the signal's number when one ended it.
        reason: why it was ended, see ``REASONS``; empty when it ended by itself.
        output: what is kept of its output.
        seconds: that it ran.
    """

    status: int
    reason: str
    output: str
    seconds: float


class Program:
    """A running program; ``start`` makes one.

    Args:
        process: it.
        most_output: characters of its output that are kept.
        report: descriptor from which its guard's report is read, if it has one.
    """

    def __init__(self, process: asyncio.subprocess.Process, most_output: int, report: int = -1) -> None:
        self._process = process
        self._report = report
        self._output, self.unread = Output(most_output), Unread(most_output)
        self._began = time.monotonic()
        self._pieces: asyncio.Queue[str | None] | None = None
        self.reason = ""
        self._ending: asyncio.Task[None] | None = None
        self._reading = asyncio.create_task(self._read())

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return not self._reading.done()

    @property
    def rest(self) -> str:
        """The rest after the pieces: how much is left out, and the end of its output."""
        return self._output.rest

    def on_end(self, done: Callable[[], object]) -> None:
        """Have a function called when it has ended."""
        self._reading.add_done_callback(lambda _task: done())

    def limit(self, seconds: float) -> None:
        """Have it ended after a time."""
        timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)
        self.on_end(timer.cancel)

    def _time_is_up(self) -> None:
        self._ending = asyncio.create_task(self.end(reason="time"))

    async def finished(self) -> Finished:
        """Wait until it has ended, and nothing that it started is left.

        Raises:
            ToolError: the machine lets no program be confined.
        """
        await asyncio.wait((self._reading,))
        status = self._process.returncode
        confine, _, reason = self.reason.partition("confine:")
        if reason and not confine:
            raise cant_confine(reason)
        return Finished(status if status is not None else -1, self.reason, str(self._output), time.monotonic() - self._began)

    async def pieces(self) -> AsyncIterator[str]:
        """Yield its output as it comes, to the end. Only once, and from the start on."""
        # What comes here is bounded by what is kept of the output.
        pieces = self._pieces = asyncio.Queue()
        self.on_end(lambda: pieces.put_nowait(None))
        while (piece := await pieces.get()) is not None:
            yield piece

    async def end(self, grace: float = 0.0, reason: str = "") -> None:
        """End it with everything that it started: ask first, and kill it after ``grace`` seconds. Twice is once."""
        self.reason = self.reason or reason
        with anyio.CancelScope(shield=True):
            if grace > 0 and self.running:
                self._signal(signal.SIGTERM)
                await asyncio.wait((self._reading,), timeout=grace)
            self._signal(signal.SIGKILL)
            await asyncio.wait((self._reading,), timeout=_GONE)
            if self.running:
                # Something that can't be ended holds its output open.
                self._reading.cancel()
                await asyncio.wait((self._reading,))

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 - it is started with a pipe
        decoder, total = codecs.getincrementaldecoder("utf-8")("replace"), 0
        try:
            while chunk := await stream.read(_CHUNK):
                self._take(decoder.decode(chunk))
                total += len(chunk)
                if total > MOST_PRINTED:
                    self.reason = self.reason or "output"
                    self._signal(signal.SIGKILL)
                # What has arrived is read without waiting, so others must be given their turn.
                await asyncio.sleep(0)
            self._take(decoder.decode(b"", final=True))
            await self._process.wait()
        finally:
            if self._report >= 0:
                with contextlib.suppress(OSError):
                    told = os.read(self._report, 4000).decode("utf-8", "replace").partition("\n")[0]
                    self.reason = told or self.reason
                os.close(self._report)

    def _take(self, text: str) -> None:
        self.unread.add(text)
        begin = self._output.add(text)
        if begin and self._pieces is not None:
            self._pieces.put_nowait(begin)


async def _guarded(plan: Mapping[str, Any], environment: Mapping[str, str], most_output: int) -> Program:
    """Start a program under the launcher.

    Args:
        plan: the launcher's plan, without ``parent`` and ``report``.
        environment: all that the program sees of one.
        most_output: characters of its output that are kept.

    Raises:
        ToolError: it can't be started.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    try:
        process = await process_of(launched({**plan, "parent": os.getpid(), "report": writing}), environment, (writing,))
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return Program(process, most_output, reading)


async def process_of(words: Sequence[str], environment: Mapping[str, str], handed: Sequence[int] = ()) -> asyncio.subprocess.Process:
    """Start a process whose output and errors are one pipe; ``handed`` are descriptors that it inherits.

    Raises:
        ToolError: it can't be started.
    """
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            pass_fds=handed,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or text_of(error)
        raise ToolError(f"no program can be started here: {reason}", type="unavailable", code="cant_start") from None


def cant_confine(reason: str) -> ToolError:
    """Return the error of a machine that lets no program be confined."""
    message = (
        f"this machine lets no command be confined ({reason}), so none is run. An operator can allow user namespaces, or run the coding "
        "agent in a container of its own and allow commands that are not confined"
    )
    return ToolError(message, type="unavailable", code="cant_confine")


# Where packages come from, and how they are reached; only uv gets these, and a program that may reach the network the first ones.
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PACKAGES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NATIVE_TLS", "UV_INDEX_STRATEGY")


def environment_of(folder: Path, where: str, *, network: bool = False) -> dict[str, str]:
    """Return the environment of a program: nothing of this process's own, so no secret.

    Args:
        folder: of the workspace.
        where: where the program begins; a uv project's environment there is active.
        network: whether it is uv, and may reach the network.
    """
    virtual = Path(where) / ".venv"
    paths = [virtual / "bin", Path(find_uv()).parent, Path(sys.base_prefix) / "bin", "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {
        "PATH": ":".join(map(str, paths)),
        "VIRTUAL_ENV": str(virtual),
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "TMPDIR": "/tmp",  # noqa: S108 - it is the workspace's own
        "PYTHONUNBUFFERED": "1",
        "UV_CACHE_DIR": str(folder / "home" / ".cache" / "uv"),
        # A file of the shared cache must not be the same as one that the task's programs can change.
        "UV_LINK_MODE": "copy",
        "UV_PYTHON": base_python(),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
    }
    if not network:
        return {**environment, "UV_OFFLINE": "1"}
    names = (*_NETWORK, *(name.lower() for name in _NETWORK), *_PACKAGES)
    return environment | {name: os.environ[name] for name in names if name in os.environ}


@functools.cache
def find_uv() -> str:
    """Return uv's program.

    Raises:
        ToolError: it is not installed.
    """
    try:
        import uv  # noqa: PLC0415 - it is an extra

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ToolError("uv is not installed at the coding agent: pip install 'toolbus[platform]'", type="unavailable", code="no_uv")
    return found


class ClosedNetwork:
    """A process that keeps the network; it starts with the first program that needs it."""

    def __init__(self) -> None:
        self._starting: asyncio.Lock = asyncio.Lock()
        self._holder: asyncio.subprocess.Process | None = None

    async def pid(self) -> int:
        """Return the process whose network programs join.

        Raises:
            ToolError: the machine lets no network be closed off.
        """
        async with self._starting:
            if self._holder is None or self._holder.returncode is not None:
                self._holder = await _held()
            return self._holder.pid

    async def close(self) -> None:
        """End it."""
        holder, self._holder = self._holder, None
        if holder is not None and holder.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                holder.kill()
            await holder.wait()


async def _held() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    words = launched({"parent": os.getpid()})
    holder = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, env={}, start_new_session=True)
    try:
        assert holder.stdout is not None  # noqa: S101 - it is started with a pipe
        told = await holder.stdout.readline()
    except BaseException:
        holder.kill()
        raise
    if told != b"\n":
        await holder.wait()
        raise cant_confine(told.decode("utf-8", "replace").strip())
    return holder


_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Between two looks at the disk; a look that takes long is followed by a longer pause, unless the file system fills quickly.
_LOOK = 1.0
_PAUSE = 10
_GLANCE = 0.1


class Workspace:
    """The workspace of a task; use it with ``async with``, whose end ends every program. The files stay.

    Args:
        root: folder of all workspaces.
        task: id of the task.
        options: limits, and what the deployment allows.

    Attributes:
        files: the task's files; blocking, so call them in a thread.
        at_end: what is closed when it is left, before its programs are ended.

    Raises:
        ConfigurationError: the id is none that a folder can have.
    """

    def __init__(self, root: str | Path, task: str, options: WorkspaceOptions | None = None) -> None:
        if not _TASK.fullmatch(task):
            raise ConfigurationError(f"{task[:80]!r} is no id of a task: it has letters, digits, - and _ only, at most 64")
        self.options = options or WorkspaceOptions()
        self.task = task
        self._root = Path(os.path.abspath(root))  # noqa: PTH100 - links on the way to it are the deployment's own
        self._folder = self._root / task
        self.files = Folder(str(self._folder / "files"), self.options)
        self._cache = self._folder / "cache"
        self.at_end = contextlib.AsyncExitStack()
        self._programs: set[Program] = set()
        self._network = ClosedNetwork()
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._make)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):
            await self.at_end.aclose()
            await asyncio.gather(*(each.end() for each in tuple(self._programs)))
            if self._watching is not None:
                self._watching.cancel()
                await asyncio.wait((self._watching,))
                self._watching = None
            await self._network.close()

    def _make(self) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in (self._folder, *(self._folder / name for name in ("files", "home", "tmp", "root", "cache"))):
            each.mkdir(mode=0o700, exist_ok=True)
            if each.is_symlink():
                raise ConfigurationError(f"{each} is a link, not a workspace: remove it")

    async def start(self, words: Sequence[str], *, folder: str = "", seconds: float = 0.0, network: bool = True) -> Program:
        """Start a program that runs until it ends, is ended, or the workspace is left.

        Args:
            words: its command line; programs are looked for in the project's environment and in the system's folders.
            folder: where it begins, in the workspace; a uv project's environment there is active.
            seconds: most that it may run; 0 for the options' limit, which is the most in any case.
            network: whether it reaches the network where the workspace's commands may.

        Raises:
            ToolError: there is no such folder, or no program can be started.
        """
        where = await asyncio.to_thread(self.files.folder, folder)
        environment = environment_of(self._folder, where)
        return await self._start(words, where, environment, seconds, network=network and self.options.network == "all")

    async def run_uv(self, words: Sequence[str], *, folder: str) -> Finished:
        """Run uv itself, with its cache and, where the deployment allows it, the network. It builds nothing.

        Args:
            words: its arguments.
            folder: of the project, in the workspace.
        """
        where = await asyncio.to_thread(self.files.folder, folder)
        network = self.options.network != "none"
        environment = environment_of(self._folder, where, network=network)
        environment |= {"UV_CACHE_DIR": str(self._cache), "UV_NO_BUILD": "1"}
        command = [find_uv(), "--no-progress", "--color", "never", *([] if network else ["--offline"]), *words]
        program = await self._start(command, where, environment, network=network, write=(str(self._cache),))
        try:
            return await program.finished()
        finally:
            await program.end()

    async def _start(
        self,
        words: Sequence[str],
        where: str,
        environment: dict[str, str],
        seconds: float = 0.0,
        *,
        network: bool,
        write: Sequence[str] = (),
    ) -> Program:
        options = self.options
        if sys.platform != "linux":
            raise ToolError("commands are run on Linux only", type="unavailable", code="cant_confine")
        if not options.confined and options.network != "all":
            message = (
                "no command is run: this deployment says that commands are not confined, so they can't be kept from the network, and it "
                'does not allow that. An operator can allow it (network="all"), or let commands be confined'
            )
            raise ToolError(message, type="unavailable", code="network_open")
        seconds = min(seconds or options.seconds, options.seconds)
        plan: dict[str, Any] = {
            "words": list(words),
            "folder": where,
            "confined": options.confined,
            "join": 0 if network or not options.confined else await self._network.pid(),
            "root": str(self._folder / "root"),
            "read": [*readable(), find_uv()],
            "write": [str(self._folder / "files"), str(self._folder / "home"), *write],
            "temporary": str(self._folder / "tmp"),
            "memory": options.memory,
            "processes": options.processes,
            "seconds": seconds,
            "file_bytes": options.file_bytes,
        }
        program = await _guarded(plan, environment, options.output)
        self._programs.add(program)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch_disk())
        program.limit(seconds)
        program.on_end(lambda: self._programs.discard(program))
        return program

    async def _watch_disk(self) -> None:
        """End all programs when the files are too many or too large."""
        clock = asyncio.get_running_loop().time
        most_bytes, most_entries = self.options.total_bytes, self.options.entries
        used = entries = 0
        took = 0.0
        while self._programs:
            await self._until_look(took, most_bytes - used, most_entries - entries)
            began = clock()
            used, entries = await asyncio.to_thread(usage, str(self._folder), most_bytes=most_bytes, most_entries=most_entries)
            took = clock() - began
            if used > most_bytes or entries > most_entries:
                await asyncio.gather(*(each.end(reason="disk") for each in tuple(self._programs)))

    async def _until_look(self, took: float, room: int, places: int) -> None:
        """Wait until the files are to be counted again: after a while, or when half of what is left may have been used by then."""
        clock = asyncio.get_running_loop().time
        began, until = clock(), max(_LOOK, took * _PAUSE)
        before = _free(self._folder)
        while self._programs and clock() - began < until:
            await anyio.sleep(_GLANCE)
            now = _free(self._folder)
            quick = before[0] - now[0] > room / 2 or before[1] - now[1] > places / 2
            # A machine whose other processes fill the disk must not make it count all the time.
            if quick and clock() - began >= took:
                return


def _free(folder: Path) -> tuple[int, int]:
    """Return the free bytes and inodes of a folder's file system, as far as it says."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_favail
