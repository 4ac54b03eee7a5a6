"""The messages between a worker, its fork server and the children.

Everything is data (JSON or MessagePack), never pickles: what comes out of a child whose memory was damaged must not run here.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from toolbus.encoding import simpler
from toolbus.results import Blob, ErrorInfo, Progress, ToolResult

JOB_HEADER = struct.Struct(">I")
"""Before a job: its length."""
MESSAGE_HEADER = struct.Struct(">I8sQ")
"""Before what a child says: its length, the token of the call that it is of, and its number in that call, from 0."""
# Beside the output itself: an error with its traceback, names, lengths.
SLACK = 1 << 20


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
    """

    target: int
    request: bytes
    attempt: int
    deadline: float
    memory: int
    token: bytes


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
