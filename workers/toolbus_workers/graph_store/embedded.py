"""Keep a graph in its own process: Ladybug, which understands Cypher, in memory or in one file."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self, TypeVar

import msgspec

from toolbus import ErrorInfo, ToolError
from toolbus_workers.graph_store.store import Batch, Found, GraphStore, Loaded, Schema
from toolbus_workers.program import Program

T = TypeVar("T")

_PROGRAM = Path(__file__).parents[1] / "graph_engine.py"
_START = 30.0
_Size = Annotated[int, msgspec.Meta(ge=32 << 20, le=1 << 40)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The place and the limits of the graph; each is read from ``TOOLBUS_GRAPH_<NAME>``.

    Attributes:
        path: file that keeps the graph; when empty, a temporary file that is removed with the worker.
        memory: bytes that the database may hold in memory, and most bytes of a temporary file; its process may take 256 MiB more.
        disk: most bytes of the file.
    """

    path: str = ""
    memory: _Size = 256 << 20
    disk: _Size = 4 << 30


class EmbeddedGraph(GraphStore):
    """One graph for all callers of a worker; requests take turns, and a process that died is started again.

    A statement can end the process, because some functions are stopped neither by an interruption nor by a memory limit. So even
    a graph that ends with the worker is kept in a file, which the next process opens: no caller's statement can destroy the
    data of the others.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = Limits() if limits is None else limits
        # The process has another working folder, so the path must be absolute.
        self._path = str(Path(self._limits.path).absolute()) if self._limits.path else ""
        self._disk = self._limits.disk
        self._folder = ""
        self._turn = asyncio.Lock()
        self._program: Program | None = None

    async def __aenter__(self) -> Self:
        async with self._turn:
            await self._running()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._program is not None:
            await self._program.aclose()
        self._remove_folder()

    async def query(self, query: str, parameters: dict[str, Any], *, max_rows: int, max_bytes: int, seconds: float) -> Found:
        """Return the first rows of one reading statement, which reaches no file and no network."""
        request = {"do": "query", "query": query, "parameters": parameters, "max_rows": max_rows, "max_bytes": max_bytes}
        return await self._ask(request, seconds, Found)

    async def schema(self, *, seconds: float) -> Schema:
        """Return labels, types, properties and counts."""
        return await self._ask({"do": "schema"}, seconds, Schema)

    async def load(self, batch: Batch, *, seconds: float) -> Loaded:
        """Add or update all rows of a batch in one transaction."""
        return await self._ask({"do": "load", **msgspec.to_builtins(batch)}, seconds, Loaded)

    async def _ask(self, request: dict[str, Any], seconds: float, type_: type[T]) -> T:
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
        except TimeoutError:
            message = "earlier statements still run; try again when they have ended"
            raise ToolError(message, type="overloaded", code="busy", retryable=True) from None
        try:
            program = await self._running()
            answer = await program.ask(request, max(0.05, deadline - time.monotonic()))
        finally:
            self._turn.release()
        if answer is None:
            message = f"the statement was stopped after {seconds:.3g} s; narrow it, bound paths (*1..3), or aggregate earlier"
            raise ToolError(message if program.alive else f"{message}. {self._lost()}", type="deadline_exceeded", code="too_slow")
        return msgspec.convert(_result(answer), type_)

    async def _running(self) -> Program:
        """Return the process, started if there is none.

        Raises:
            ToolError: Ladybug is not installed, or the graph can't be opened.
        """
        if self._program is not None and self._program.alive:
            return self._program
        if importlib.util.find_spec("ladybug") is None:
            raise ToolError(
                "the graph store needs the package ladybug: pip install 'toolbus[graph]'", type="unavailable", code="not_installed"
            )
        self._make_folder()
        try:
            program = await Program.start(
                _PROGRAM, self._path, self._limits.memory, self._disk, self._folder, lost=f"the graph's process ended. {self._lost()}"
            )
        except OSError as error:
            message = f"the graph's process can't be started: {error.strerror}; try again later"
            raise ToolError(message, type="unavailable", code="no_process", retryable=True) from None
        try:
            await _opened(program)
        except BaseException:
            await program.aclose()
            if self._program is None:
                self._remove_folder()
            raise
        self._program = program
        return program

    def _make_folder(self) -> None:
        """Give a temporary graph its file; without a place for one it stays in the process's memory."""
        if not self._path:
            with contextlib.suppress(OSError):
                self._folder = tempfile.mkdtemp(prefix="toolbus-graph-")
                self._path = str(Path(self._folder) / "graph")
                self._disk = self._limits.memory

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._path = ""

    def _lost(self) -> str:
        if self._path:
            return "What had been imported is kept; ask for less at a time."
        return "The graph was in memory and is empty now: import it again, and ask for less at a time."


async def _opened(program: Program) -> None:
    answer = await program.ask({"do": "opened"}, _START)
    if answer is None:
        raise ToolError(f"the graph could not be opened within {_START:g} s", type="unavailable", code="not_opened", retryable=True)
    _result(answer)


def _result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise ToolError(msgspec.convert(answer["error"], ErrorInfo))
    return answer["ok"]
