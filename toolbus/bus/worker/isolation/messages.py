"""The messages between a worker, its fork server and the children.

Everything is data (JSON or MessagePack), never pickles: what comes out of a child whose memory was damaged must not run here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolbus.bus.values.encoding import simpler
from toolbus.bus.values.results import Blob, ErrorInfo, Progress, ToolResult

JOB_HEADER = struct.Struct(">I")
"""Before a job: its length."""
MESSAGE_HEADER = struct.Struct(">I8sQ")
"""Before what a child says: its length, the token of the call that it is of, and its number in that call, from 0."""
# Beside the output itself: an error with its traceback, names, lengths.
SLACK = 1 << 20


MAIN = "__main__"


class Target(msgspec.Struct, frozen=True):
    """A tool as another process finds it again: where its function is defined, and what it is called."""

    module: str
    qualname: str
    name: str


class Setup(msgspec.Struct, frozen=True):
    """The first message to a fork server.

    Attributes:
        prepare: what ``multiprocessing.spawn.prepare`` takes: ``sys.path``, ``sys.argv``, the folder, and the main module if it has tools.
        places: where modules are that were asked for by path, see ``places_asked``.
        pythonpath: the variable as it was, or None; the fork server's own start needed another.
    """

    prepare: dict[str, Any]
    targets: tuple[Target, ...]
    places: dict[str, str]
    pythonpath: str | None


class Order(msgspec.Struct, frozen=True):
    """An order to the fork server: start a child, whose channel comes along, or kill one."""

    do: Literal["start", "kill"]
    child: int


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """A report of the fork server to its worker.

    Attributes:
        kind: it is ready, can't be, or a child was started or has died.
        status: of a child that has died: its exit code, or the negative number of the signal.
        error: why the fork server can't be ready, or a child was not started.
    """

    kind: Literal["ready", "refused", "started", "died"]
    child: int = 0
    pid: int = 0
    status: int | None = None
    error: str = ""


class Job(msgspec.Struct, frozen=True):
    """One call for a child.

    Attributes:
        target: index of the tool in the fork server's setup.
        request: the request as JSON.
        deadline: monotonic seconds, the same clock in every process of the machine.
        memory: bytes that the call may take beyond what the child has, or 0.
        token: what the child says of this call carries it; 8 random bytes, so that what another call left behind can't pass for it.
        traceparent: W3C trace context of the span in which it runs, or empty.
    """

    target: int
    request: bytes
    attempt: int
    deadline: float
    memory: int
    token: bytes
    traceparent: str = ""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a child about its call: any number of items, then one ``end``.

    Attributes:
        text: a piece of text, or of an ``end`` or ``result`` its output; None when there is none.
        data: of an ``end`` or ``result``, its data as JSON.
        error: why it failed, as JSON.
        crashed: it raised something of its own, whose traceback this is.
        fit: of an ``end``: nothing of the call is left in the child, which can take another.
    """

    kind: Literal["text", "progress", "blob", "result", "end"]
    text: str | None = None
    progress: Progress | None = None
    blobs: tuple[Blob, ...] = ()
    data: bytes | None = None
    error: bytes | None = None
    success: bool = True
    crashed: str = ""
    fit: bool = True


_encode_job = msgspec.msgpack.Encoder().encode
decode_job = msgspec.msgpack.Decoder(Job).decode
_encode_message = msgspec.msgpack.Encoder(enc_hook=simpler).encode
decode_message = msgspec.msgpack.Decoder(Message).decode
_error = msgspec.json.Decoder(ErrorInfo)


def framed_job(job: Job) -> bytes:
    """Return a job after its length."""
    payload = _encode_job(job)
    return JOB_HEADER.pack(len(payload)) + payload


def framed_message(said: Message, token: bytes, number: int) -> bytes:
    """Return a message after its header."""
    payload = _encode_message(said)
    return MESSAGE_HEADER.pack(len(payload), token, number) + payload


def error_of(said: Message) -> ErrorInfo | None:
    """Return why the call failed, or None."""
    return None if said.error is None else _error.decode(said.error)


def result_of(said: Message) -> ToolResult:
    """Return the result that a ``result`` or ``end`` carries."""
    data = None if said.data is None else msgspec.json.decode(said.data)
    return ToolResult(said.success, said.text, data, error_of(said), said.blobs)


LINUX = sys.platform.startswith("linux")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent dies, in whatever way; Linux only."""
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before it could matter.
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of processes that lose theirs below this one, so that none can slip away; Linux only."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def offspring() -> set[int]:
    """Return the ids of this process's children, those that it adopted among them; none where that can't be told."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            found.update(map(int, (thread / "children").read_text("ascii").split()))
    return found


def address_space(more: int) -> None:
    """Let this process have so many bytes of address space beyond what it has now; 0 lifts the limit. Linux only."""
    if not LINUX:
        return
    import resource  # noqa: PLC0415 - there is none on Windows

    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = hard
    if more:
        pages = int(Path("/proc/self/statm").read_text("ascii").partition(" ")[0])
        soft = pages * resource.getpagesize() + more
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def native_threads() -> int:
    """Return how many threads this process has, also those that Python does not know of; 0 where that can't be told."""
    try:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only the number matters
    except OSError:
        return 0


def leave_signals_to_worker() -> None:
    """Let SIGTERM and SIGINT pass by: only the worker ends this process."""
    # A handler, unlike SIG_IGN, is not passed on to the programs that a tool starts.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
