"""Tools in child processes, in a module of their own because other processes import it."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from toolbus import Blob, CallCancelled, Progress, ToolError, ToolResult, invocation, tool

state: list[int] = []


class Point(msgspec.Struct):
    """A structured argument."""

    x: int
    y: int = 0


@tool(effect="read", isolation="process")
def iso_pid() -> int:
    """The process it runs in."""
    return os.getpid()


@tool(effect="read", isolation="process")
async def iso_pid_async() -> int:
    """The process it runs in, from a coroutine."""
    await asyncio.sleep(0)
    return os.getpid()


@tool(effect="read", isolation="process")
def iso_value(kind: str) -> Any:
    """A value of every kind."""
    return {
        "none": None,
        "text": "tëxt",
        "data": {"a": [1, 2**70, None, 1.5]},
        "blob": Blob("a/b", b"\x00\xff"),
        "result": ToolResult(output="o", data=[1], content=(Blob("c/d", b"x"),)),
        "failed": ToolResult.fail("no"),
        "surrogate": "a\ud800b",
        "object": object(),
        "iterator": iter(("a", "b")),
    }[kind]


@tool(effect="read", isolation="process")
def iso_stream(n: int) -> Iterator[Any]:
    """Every kind of item."""
    for step in range(n):
        yield f"{step} "
        yield Progress(step + 1, n)
    yield {"a": 1}
    yield Blob("a/b", b"123")
    yield ToolResult(data={"n": n})


@tool(effect="read", isolation="process")
async def iso_stream_async(n: int) -> AsyncIterator[Any]:
    """Text from an async generator."""
    for step in range(n):
        await asyncio.sleep(0)
        yield f"{step} "


@tool(effect="read", isolation="process")
def iso_point(point: Point) -> int:
    """Take a struct."""
    assert isinstance(point, Point)
    return point.x + point.y


@tool(effect="read", isolation="process")
def iso_here() -> dict[str, Any]:
    """What the invocation says."""
    here = invocation()
    here.progress(1, 2, "half")
    return {
        "tool": here.tool,
        "service": here.service,
        "user": here.user,
        "session": here.session,
        "attempt": here.attempt,
        "id": here.id,
        "left": here.remaining,
        "metadata": dict(here.metadata),
        "cancelled": here.cancelled,
    }


@tool(effect="read", isolation="process")
def iso_nested() -> Any:
    """Call another tool."""
    return invocation().call_sync("iso_pid").data


@tool(effect="read", isolation="process")
def iso_asks() -> Any:
    """Ask a person."""
    return invocation().confirm_sync("May I?").allowed


@tool(effect="read", isolation="process")
def iso_fail(how: str) -> Any:
    """Fail in many ways."""
    if how == "tool_error":
        raise ToolError("no", type="forbidden", code="mine", details={"a": 1})
    if how == "cancelled":
        raise CallCancelled("nobody waits")
    if how == "value_error":
        raise ValueError("bad value")
    if how == "sys_exit":
        sys.exit(3)
    if how == "os_exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), 9)
    if how == "garbage":
        for descriptor in range(3, 100):
            try:
                os.write(descriptor, b"\x00\x00\x00\x02\xc1\xc1")
            except OSError:
                continue
        time.sleep(30)
    return "not failed"


@tool(effect="read", isolation="process")
def iso_text_then_exit() -> Iterator[str]:
    """Say something, then end the process."""
    yield "said "
    os._exit(0)


@tool(effect="once", isolation="process")
def iso_once_exit() -> str:
    """End the process of a call that must not run twice."""
    os._exit(4)


@tool(effect="read", isolation="process", memory_limit=64 << 20)
def iso_memory(megabytes: int) -> int:
    """Take memory."""
    return len(bytearray(megabytes << 20))


@tool(effect="read", isolation="process")
def iso_spin(pid_file: str, child: bool = False) -> str:
    """Burn the processor without end, with a program beside it if wanted; both ids stand in the file."""
    pids = [os.getpid()]
    if child:
        pids.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]).pid)
    written = Path(f"{pid_file}.part")
    written.write_text(" ".join(map(str, pids)), "utf-8")
    written.rename(pid_file)
    while True:
        pass


@tool(effect="read", isolation="process")
def iso_endless() -> Iterator[str]:
    """Text without end."""
    yield f"{os.getpid()} "
    while True:
        yield "x" * 1_000


@tool(effect="read", isolation="process")
def iso_big(megabytes: int) -> str:
    """One large text."""
    return "x" * (megabytes << 20)


@tool(effect="read", isolation="process")
def iso_leave(what: str) -> int:
    """Leave something running."""
    if what == "thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if what == "process":
        subprocess.Popen(["sleep", "600"])
    if what == "fork":
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    return os.getpid()


@tool(effect="read", isolation="process")
async def iso_leave_task() -> int:
    """Leave a task running."""
    iso_leave_task.task = asyncio.create_task(asyncio.sleep(600))  # type: ignore[attr-defined]
    return os.getpid()


@tool(effect="read", isolation="process")
def iso_count() -> int:
    """How many calls this process has had."""
    state.append(1)
    return len(state)
