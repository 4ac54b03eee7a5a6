"""Manage the sessions of ``data_analysis``: a process for each (user, session), started on demand and ended when idle."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec

from toolbus import ErrorInfo, ToolError
from toolbus_workers.program import Program

_PROGRAM = Path(__file__).with_name("data_engine.py")
_LOST = "the statement ended the session's process, most likely by its memory; upload the tables again and ask for less"
# A session that was used within this many seconds is not ended to make room for another.
_SETTLED = 60.0

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one worker process; each is read from ``TOOLBUS_DATA_<NAME>``.

    Attributes:
        sessions, sessions_per_user: most sessions at once, of all users and of one user.
        running: most statements that run at once.
        idle: seconds after its last call when a session's tables are dropped.
        memory: bytes of tables and intermediate results of a session; its process may take 256 MiB more.
    """

    sessions: _Count = 16
    sessions_per_user: _Count = 4
    running: _Count = 4
    idle: _Seconds = 900.0
    memory: Annotated[int, msgspec.Meta(ge=32 << 20)] = 256 << 20


class Key(NamedTuple):
    """The owner of a session's tables."""

    user: str
    session: str


class Statistics(NamedTuple):
    """The numbers of live sessions, and of those with a running call."""

    sessions: int
    busy: int


class SessionEnded(Exception):
    """The process of a session has ended, and its tables are gone."""


class Session:
    """One process with its tables; its calls take turns, and all sessions share a limit on running calls."""

    def __init__(self, program: Program, upload: BinaryIO, running: asyncio.Semaphore) -> None:
        self._program = program
        self._upload = upload
        self._running = running
        self._turn = asyncio.Lock()
        self.calls = 0
        self.used = time.monotonic()

    @classmethod
    async def start(cls, memory: int, running: asyncio.Semaphore) -> Session:
        """Start the process and wait until it is ready.

        Raises:
            ToolError: DuckDB is not installed, or the process can't be started.
        """
        if importlib.util.find_spec("duckdb") is None:
            raise ToolError("data_analysis needs the package duckdb: pip install 'toolbus[data]'", type="unavailable", code="not_installed")
        # A file without a name can't be found on the disk, and needs no clean-up after a crash.
        upload = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the session
        try:
            program = await Program.start(_PROGRAM, memory, upload.fileno(), lost=_LOST, pass_fds=[upload.fileno()])
        except BaseException as error:
            upload.close()
            if not isinstance(error, OSError):
                raise
            message = f"the session's process can't be started: {error.strerror}; try again later"
            raise ToolError(message, type="unavailable", code="no_process", retryable=True) from None
        return cls(program, upload, running)

    @property
    def alive(self) -> bool:
        """True while the process can answer."""
        return self._program.alive

    async def ask(self, request: dict[str, Any], seconds: float, upload: bytes | None = None) -> dict[str, Any]:
        """Send a request and return its answer within ``seconds``, which include waiting for its turn.

        Raises:
            ToolError: the request failed, took too long, or ended its process.
            SessionEnded: an earlier request ended the process; this one was not carried out.
        """
        deadline = time.monotonic() + seconds
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(seconds):
                    await held.enter_async_context(self._turn)
                    await held.enter_async_context(self._running)
            except TimeoutError:
                message = "earlier statements still run; try again when they have ended"
                raise ToolError(message, type="overloaded", code="busy", retryable=True) from None
            if not self.alive:
                raise SessionEnded
            try:
                if upload is not None:
                    self._put(upload)
                answer = await self._program.ask(request, deadline - time.monotonic())
            finally:
                if upload is not None:
                    self._put(b"")
        if answer is None:
            hint = "narrow it, aggregate earlier, or work on a sample (USING SAMPLE)"
            raise _too_slow(seconds, hint if self.alive else f"{hint}; it could only be ended with its session, so upload the tables again")
        if "error" in answer:
            raise ToolError(msgspec.convert(answer["error"], ErrorInfo))
        result: dict[str, Any] = answer["ok"]
        return result

    async def aclose(self) -> None:
        """End the process and drop its tables."""
        await self._program.aclose()
        self._upload.close()

    def _put(self, content: bytes) -> None:
        if not self._upload.closed:
            self._upload.seek(0)
            self._upload.truncate()
            self._upload.write(content)


class Sessions:
    """All sessions of this worker process."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._live: dict[Key, Session] = {}
        self._running = asyncio.Semaphore(limits.running)
        self._making = asyncio.Lock()

    def statistics(self) -> Statistics:
        """Return the numbers of live sessions, and of those in use."""
        return Statistics(len(self._live), sum(session.calls > 0 for session in self._live.values()))

    async def ask(self, key: Key, request: dict[str, Any], seconds: float, upload: bytes | None = None) -> dict[str, Any]:
        """Send a request to a session, which is started when there is none.

        Raises:
            ToolError: the request failed, took too long, or no session can be started.
        """
        deadline = time.monotonic() + seconds
        while True:
            session = await self._session(key)
            try:
                return await session.ask(request, max(0.05, deadline - time.monotonic()), upload)
            except SessionEnded:
                # Another call ended the session while this one waited for its turn.
                continue
            finally:
                await self._leave(key, session)

    async def sweep(self) -> None:
        """End sessions as they become idle; runs until it is cancelled."""
        while True:
            oldest = min((session.used for session in self._live.values() if not session.calls), default=time.monotonic())
            await asyncio.sleep(max(0.05, min(oldest + self.limits.idle - time.monotonic(), self.limits.idle / 2)))
            now = time.monotonic()
            for key, session in list(self._live.items()):
                if not session.calls and now - session.used >= self.limits.idle:
                    await self._close(key)

    async def end(self, key: Key) -> None:
        """End a session, if it lives."""
        await self._close(key)

    async def aclose(self) -> None:
        """End every session."""
        for key in list(self._live):
            await self._close(key)

    async def _session(self, key: Key) -> Session:
        """Return the session of a key, with one more call counted."""
        async with self._making:
            found = self._live.get(key)
            if found is None or not found.alive:
                if found is not None:
                    await self._close(key)
                await self._make_room(key)
                found = await Session.start(self.limits.memory, self._running)
                self._live[key] = found
            found.calls += 1
            return found

    async def _leave(self, key: Key, session: Session) -> None:
        session.calls -= 1
        session.used = time.monotonic()
        if not session.alive and self._live.get(key) is session:
            await self._close(key)

    async def _make_room(self, key: Key) -> None:
        own = [other for other in self._live if other.user == key.user]
        full = len(self._live) >= self.limits.sessions
        candidates = own if len(own) >= self.limits.sessions_per_user else list(self._live) if full else []
        if not candidates:
            return
        now = time.monotonic()
        idle = min((other for other in candidates if not self._live[other].calls), key=lambda other: self._live[other].used, default=None)
        if idle is not None and now - self._live[idle].used >= min(_SETTLED, self.limits.idle):
            await self._close(idle)
            return
        whose = f"{len(own)} sessions of yours" if candidates is own else f"{len(self._live)} sessions"
        wait = _SETTLED if idle is None else max(1.0, self._live[idle].used + _SETTLED - now)
        message = f"{whose} live, the most there may be; go on in one of them, or try again in {wait:.0f} s"
        raise ToolError(message, type="overloaded", code="too_many_sessions", retryable=True, retry_after=wait)

    async def _close(self, key: Key) -> None:
        session = self._live.pop(key, None)
        if session is not None:
            await session.aclose()


def _too_slow(seconds: float, hint: str) -> ToolError:
    return ToolError(f"the statement was stopped after {seconds:.3g} s; {hint}", type="deadline_exceeded", code="too_slow")
