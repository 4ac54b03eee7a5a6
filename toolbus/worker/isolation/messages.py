"""What a worker, its nursery and the children say to each other.

Everything is data (JSON or MessagePack), never pickles: what comes out of a child whose memory was damaged must not run here.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from toolbus.results import Blob, ErrorInfo, Progress, ToolResult

HEADER = struct.Struct(">I")
"""Before a job: its length."""
SAID_HEADER = struct.Struct(">I8sQ")
"""Before what a child says: its length, the token of the call that it is of, and its number in that call, from 0."""
# Beside the output itself: an error with its traceback, names, lengths.
SLACK = 1 << 20


class Target(msgspec.Struct, frozen=True):
    """A tool as another process finds it again: where its function is defined, and what it is called."""

    module: str
    qualname: str
    name: str


class Setup(msgspec.Struct, frozen=True):
    """What a nursery begins with.

    Attributes:
        prepare: what ``multiprocessing.spawn.prepare`` takes: ``sys.path``, ``sys.argv``, the folder, and the main module if it has tools.
        pythonpath: the variable as it was, or None; the nursery's own start needed another.
    """

    prepare: dict[str, Any]
    targets: tuple[Target, ...]
    pythonpath: str | None


class Order(msgspec.Struct, frozen=True):
    """What a worker tells its nursery: bear a child, whose channel comes along, or kill one."""

    do: Literal["bear", "kill"]
    child: int


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a nursery tells its worker.

    Attributes:
        kind: it is ready, can't be, or a child was born or has died.
        status: of a child that has died: its exit code, or the negative number of the signal.
        error: why the nursery can't be ready, or a child was not born.
    """

    kind: Literal["ready", "refused", "born", "died"]
    child: int = 0
    pid: int = 0
    status: int | None = None
    error: str = ""


class Job(msgspec.Struct, frozen=True):
    """One call for a child.

    Attributes:
        target: index of the tool in the nursery's setup.
        request: the request as JSON.
        deadline: monotonic seconds, the same clock in every process of the machine.
        memory: bytes that the call may take beyond what the child has, or 0.
        token: what the child says of this call carries it; 8 random bytes, so that what another call left behind can't pass for it.
    """

    target: int
    request: bytes
    attempt: int
    deadline: float
    memory: int
    token: bytes


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child says of its call: any number of items, then one ``end``.

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
_encode_said = msgspec.msgpack.Encoder().encode
decode_said = msgspec.msgpack.Decoder(Said).decode
_error = msgspec.json.Decoder(ErrorInfo)


def framed_job(job: Job) -> bytes:
    """A job after its length."""
    payload = _encode_job(job)
    return HEADER.pack(len(payload)) + payload


def framed_said(said: Said, token: bytes, number: int) -> bytes:
    """What a child says after its header."""
    payload = _encode_said(said)
    return SAID_HEADER.pack(len(payload), token, number) + payload


def error_of(said: Said) -> ErrorInfo | None:
    """Why the call failed, or None."""
    return None if said.error is None else _error.decode(said.error)


def result_of(said: Said) -> ToolResult:
    """The result that a ``result`` or ``end`` carries."""
    data = None if said.data is None else msgspec.json.decode(said.data)
    return ToolResult(said.success, said.text, data, error_of(said), said.blobs)
