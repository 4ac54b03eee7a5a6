"""A child process: it runs one call after another of those that come through its channel."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Unpack

from toolbus.bus.support.safe_text import traceback_of
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationAnswer
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.envelope import Request, decode_request, encode, encode_data
from toolbus.bus.values.options import CallOptions
from toolbus.bus.values.results import Blob, CallCancelled, EnvelopeError, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.worker.isolation.messages import (
    JOB_HEADER,
    Job,
    Message,
    address_space,
    adopt_orphans,
    decode_job,
    die_with_parent,
    framed_message,
    leave_signals_to_worker,
)
from toolbus.bus.worker.isolation.targets import ChildTool
from toolbus.bus.worker.run.invocation import Caller, Invocation, enter
from toolbus.bus.worker.run.outcome import checked, encodable, error_of, pieces_of, result_of

_CUT = 4_000
_MOVES = frozenset({"os.chdir", "os.putenv", "os.unsetenv"})


class Channel:
    """The blocking side of the socket between a child and its worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def hear(self) -> Job | None:
        """Wait for the next call; return None when there will be no more."""
        header = self._exactly(JOB_HEADER.size)
        payload = header and self._exactly(JOB_HEADER.unpack(header)[0])
        return decode_job(payload) if payload else None

    def write(self, payload: bytes) -> None:
        """Send to the worker; blocks while the channel is full."""
        self._connection.sendall(payload)

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._connection.recv(min(size - len(received), 1 << 20))
            if not part:
                return b""
            received += part
        return bytes(received)


class Answer:
    """The messages of one call, each with the call's token and its number; several threads may send.

    What comes after the end, of a thread that the call left behind, is dropped: the channel is another call's by then.

    Attributes:
        blobs: how many blobs were sent.
    """

    def __init__(self, channel: Channel, token: bytes) -> None:
        self._channel = channel
        self._token = token
        self.blobs = 0
        self._said = 0
        self._ended = False
        self._lock = threading.Lock()

    def say(self, said: Message) -> None:
        """Send a message, unless the call has ended."""
        with self._lock:
            if not self._ended:
                self._ended = said.kind == "end"
                self._channel.write(framed_message(said, self._token, self._said))
                self._said += 1
                self.blobs += len(said.blobs)


class _ChildInvocation(Invocation):
    """The handler's view of its call in a child. It is never cancelled: the child is killed instead."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop, request: Request, job: Job) -> None:
        super().__init__(loop, request, attempt=job.attempt, deadline=job.deadline)
        self._answer = answer

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        self._answer.say(Message("progress", progress=Progress(done, total, message)))

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        raise _no_calls(tool)

    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]) -> ToolResult:
        raise _no_calls(tool)

    async def caller(self) -> Caller:
        raise _no_calls("")

    async def confirm(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        raise _no_questions()

    def confirm_sync(self, question: str, data: Any = None, *, timeout: float = CONFIRM_TIMEOUT) -> ConfirmationAnswer:
        raise _no_questions()


def main(descriptor: int, found: tuple[ChildTool, ...], parent: int) -> NoReturn:
    """Serve calls until the worker has no more of them; ends the process."""
    die_with_parent(parent)
    leave_signals_to_worker()
    os.set_inheritable(descriptor, False)
    adopt_orphans()
    channel, surroundings = Channel(socket.socket(fileno=descriptor)), _Environment()
    with asyncio.Runner() as runner:
        while True:
            job = channel.hear()
            if job is None:
                os._exit(0)
            before, answer = _Before(surroundings), Answer(channel, job.token)
            # Context variables that a handler sets are its call's alone.
            end = contextvars.copy_context().run(_run, found[job.target], job, answer, runner, before)
            if job.memory:
                address_space(0)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            answer.say(Message("end", error=end.error, crashed=end.crashed, fit=end.fit and before.nothing_left(runner)))


class _Environment:
    """The folder and the environment, which each call must find as they were.

    Reading the whole environment takes as long as a call, so that is done only when a call may have changed it.
    """

    def __init__(self) -> None:
        self._touched = True
        self._were: tuple[str, dict[str, str]] = "", {}
        sys.addaudithook(self._audit)

    def look(self) -> None:
        """Take note of what is there now."""
        if self._touched:
            self._were = self._are()
            self._touched = False

    def are_kept(self) -> bool:
        """Return whether they are as they were."""
        return not self._touched or self._are() == self._were

    def _audit(self, event: str, _: object) -> None:
        if event in _MOVES:
            self._touched = True

    @staticmethod
    def _are() -> tuple[str, dict[str, str]]:
        try:
            folder = str(Path.cwd())
        except OSError:
            folder = ""
        return folder, dict(os.environ)


class _Before:
    """Everything that was there before a handler ran, its services' own threads and tasks among it."""

    def __init__(self, surroundings: _Environment) -> None:
        self._threads = _threads()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._surroundings = surroundings

    def look(self, runner: asyncio.Runner) -> None:
        """Take note of what is there now."""
        self._threads = _threads()
        self._tasks = asyncio.all_tasks(runner.get_loop())
        self._surroundings.look()

    def nothing_left(self, runner: asyncio.Runner) -> bool:
        """Return whether nothing of the call still runs, while folder and environment are as they were."""
        left = asyncio.all_tasks(runner.get_loop()) - self._tasks
        return _threads() <= self._threads and not left and not _offspring() and self._surroundings.are_kept()


def _run(found: ChildTool, job: Job, answer: Answer, runner: asyncio.Runner, before: _Before) -> Message:
    """Run one call; return its last message."""
    try:
        request = decode_request(job.request, limit=len(job.request))
        view = _ChildInvocation(answer, runner.get_loop(), request, job)
        enter(lambda: view)
        arguments = found.arguments(request.arguments, runner)
        before.look(runner)
        if job.memory:
            address_space(job.memory)
        function = found.function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            runner.run(_consume_async(function(**arguments), answer), context=contextvars.copy_context())
        else:
            _consume(function, arguments, answer, runner)
    except MemoryError as error:
        if not job.memory:
            return _crash(error)
        address_space(0)
        message = f"the tool needs more memory than its limit of {job.memory} bytes; ask for less at once"
        return Message("end", error=_encoded(ErrorInfo("tool_error", "memory_limit", message)), fit=False)
    except (ToolError, EnvelopeError, CallCancelled, SystemExit) as error:
        return Message("end", error=_encoded(error_of(error)))
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises is contained and becomes its answer
        return _crash(error)
    return Message("end")


def _crash(error: BaseException) -> Message:
    said = traceback_of(error)
    return Message("end", error=_encoded(error_of(error)), crashed=whole_text(said[-_CUT:]))


def _consume(function: Callable[..., Any], arguments: dict[str, Any], answer: Answer, runner: asyncio.Runner) -> None:
    value = function(**arguments)
    if inspect.isawaitable(value) or hasattr(value, "__aiter__"):
        runner.run(_consume_async(value, answer), context=contextvars.copy_context())
    elif isinstance(value, Iterator):
        for item in value:
            _say_item(item, answer)
    else:
        answer.say(_result(result_of(value)))


async def _consume_async(value: Any, answer: Answer) -> None:
    if inspect.isawaitable(value):
        value = await value
    if hasattr(value, "__aiter__"):
        async for item in value:
            _say_item(item, answer)
    elif isinstance(value, Iterator):
        for item in value:
            _say_item(item, answer)
    else:
        answer.say(_result(result_of(value)))


def _say_item(item: object, answer: Answer) -> None:
    for piece in pieces_of(item, answer.blobs):
        if isinstance(piece, str):
            answer.say(Message("text", text=whole_text(piece)))
        elif isinstance(piece, Progress):
            answer.say(Message("progress", progress=piece))
        elif isinstance(piece, Blob):
            answer.say(Message("blob", blobs=(piece,)))
        elif isinstance(piece, ToolResult):
            answer.say(_result(checked(piece, answer.blobs)))


def _result(result: ToolResult) -> Message:
    return Message(
        "result",
        text=None if result.output is None else whole_text(result.output),
        data=None if result.data is None else encode_data(result.data),
        blobs=result.content,
        error=None if result.error is None else _encoded(result.error),
        success=result.success,
    )


def _encoded(error: ErrorInfo) -> bytes:
    return encode(encodable(error))


def _no_calls(tool: str) -> ToolError:
    message = (
        f"a tool with isolation='process' can't call other tools ({tool!r}); leave the isolation out, or let the agent make both calls"
    )
    return ToolError(message, code="no_nested_calls")


def _no_questions() -> ToolError:
    message = "a tool with isolation='process' can't ask a person; declare confirm=True, or leave the isolation out"
    return ToolError(message, code="no_questions")


def _threads() -> int:
    """Return how many threads run Python, those that ``threading`` does not know of and those that have not come so far yet among them."""
    return max(threading.active_count(), len(sys._current_frames()))


def _offspring() -> bool:
    """Return whether processes that the call started still run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
