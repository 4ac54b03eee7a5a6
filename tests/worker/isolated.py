"""Tools in child processes, in a module of their own because other processes import it."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import ctypes
import gc
import multiprocessing
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry import trace

from toolbus import Blob, Progress, ToolError, ToolResult, invocation, tool
from toolbus.bus.values.results import CallCancelled
from toolbus.bus.worker.isolation.fork_server import Answer
from toolbus.bus.worker.isolation.messages import MESSAGE_HEADER, Message, framed_message

state: list[int] = []
variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")


class Point(msgspec.Struct):
    """A structured argument."""

    x: int
    y: int = 0


def sockets() -> list[int]:
    """The descriptors of this process's sockets, its channel among them."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                found.append(int(entry.name))
    return found


def write_everywhere(payload: bytes) -> None:
    """Write to every socket, as a handler that does not know which one is the channel."""
    for descriptor in sockets():
        with contextlib.suppress(OSError):
            os.write(descriptor, payload)


def answer_of_this_call() -> Answer:
    """Return the object that sends this call's answers: a handler that is out to forge messages finds it in memory."""
    return next(each for each in reversed(gc.get_objects()) if isinstance(each, Answer) and not each._ended)


def forged(how: str) -> bytes:
    """Messages that this call must not send."""
    evil, end = Message("result", text="evil"), Message("end")
    other, token = b"another!", answer_of_this_call()._token
    return {
        "early": framed_message(evil, other, 0) + framed_message(end, other, 1),
        "plain": b"".join(len(each).to_bytes(4, "big") + each for each in map(msgspec.msgpack.encode, (evil, end))),
        "noise": os.urandom(4_096),
        "half": framed_message(evil, other, 0)[:-3],
        "half_of_this": framed_message(evil, token, 0)[:-3],
        "huge": MESSAGE_HEADER.pack(0xFFFFFFFF, other, 0) + bytes(100_000),
        "skip": framed_message(evil, token, 7),
        "unreadable": framed_message(Message("result", data=b"{"), token, 0),
        "empty": framed_message(Message("blob"), token, 0),
    }[how]


def end_the_channel(how: str) -> None:
    """Let nothing more through."""
    for descriptor in sockets():
        if how == "shut":
            socket.socket(fileno=os.dup(descriptor)).shutdown(socket.SHUT_RDWR)
        else:
            os.close(descriptor)


def say_more_after_the_end(seconds: float = 0.0) -> None:
    """Have this call's end followed, so many seconds later, by another answer with the call's own token."""
    answer = answer_of_this_call()
    said, channel = answer.send, answer._channel

    def say(what: Message) -> None:
        said(what)
        if what.kind == "end":
            time.sleep(seconds)
            evil = framed_message(Message("result", text="evil"), answer._token, 2)
            channel.write(evil + framed_message(Message("end"), answer._token, 3))

    answer.send = say  # type: ignore[assignment, method-assign]


def write_later(payload: bytes, seconds: float) -> None:
    """Write again and again from a process that nobody knows of."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                write_everywhere(payload)
                time.sleep(0.002)
        os._exit(0)


@tool(effect="read", isolation="process")
def iso_forge(how: str) -> str:
    """Try to have another call answered."""
    if how == "after":
        say_more_after_the_end()
    elif how == "after_a_while":
        say_more_after_the_end(0.1)
    elif how == "later":
        write_later(framed_message(Message("result", text="evil"), b"another!", 0) + framed_message(Message("end"), b"another!", 1), 0.5)
    elif how == "thread":
        answer = answer_of_this_call()
        _thread.start_new_thread(lambda: [time.sleep(0.1), answer.send(Message("end"))], ())
        time.sleep(0.02)
    elif how in {"shut", "closed"}:
        end_the_channel(how)
    else:
        write_everywhere(forged(how))
    return "mine"


@tool(effect="once", isolation="process")
def iso_forge_once() -> str:
    """Have an effect, and say what is of no call."""
    write_everywhere(forged("early"))
    return "mine"


@tool(effect="read", isolation="process")
def iso_echo(text: str) -> str:
    """Say it."""
    return text


@tool(effect="read", isolation="process")
async def iso_trace(how: str) -> dict[str, Any]:
    """Return what earlier calls left where every call looks, and leave something there."""
    found = {"user": invocation().user, "variable": variable.get(), "environment": os.environ.get("LEFT", ""), "folder": str(Path.cwd())}
    variable.set("left")
    if how == "environment":
        os.environ["LEFT"] = "left"
    if how == "folder":
        os.chdir("/")
    return found


@tool(effect="read", isolation="process")
def iso_trace_sync() -> str:
    """The same of a plain function's context variables."""
    found = variable.get()
    variable.set("left")
    return found


@tool(effect="read", isolation="process")
def iso_sockets() -> list[str]:
    """The channels of this process, by what the system calls them."""
    time.sleep(0.05)
    return [str(Path(f"/proc/self/fd/{each}").readlink()) for each in sockets()]


@tool(effect="read", isolation="process")
def iso_trace_id() -> str:
    """Tell of the trace in a process that exports no spans."""
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)


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
    """Report progress, and return what the invocation says."""
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
        # Longer than any header, so that nothing more is waited for.
        write_everywhere(b"\x00\x00\x00\x02\xc1\xc1" * 16)
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
    """Return how many calls this process has had."""
    state.append(1)
    return len(state)


def escape(pid_file: str) -> None:
    """Start a process that leaves session, group and parent, and so does the one that it starts."""
    code = (
        "import os, sys, time\n"
        "for _ in range(2):\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "if not os.fork(): os.setsid()\n"
        "with open(sys.argv[1], 'a') as file: file.write(f'{os.getpid()} ')\n"
        "time.sleep(600)"
    )
    subprocess.run([sys.executable, "-c", code, pid_file], check=True)
    while not Path(pid_file).exists() or len(Path(pid_file).read_text("utf-8").split()) < 2:
        time.sleep(0.01)


@tool(effect="read", isolation="process")
def iso_escape(pid_file: str, then: str) -> str:
    """Start processes that slip away, and end in some way."""
    escape(pid_file)
    if then == "dies":
        os._exit(1)
    if then != "ends":
        time.sleep(600)
    return "ended"
