"""The fork server: a process that imports the isolated tools once, and starts, kills and reaps the children that run them.

Children are forks of it: started in milliseconds, with the tools imported and the memory of that shared. Where something
imported has started threads, which a fork would lose, and on other systems than Linux, a child is a fresh interpreter
instead. It runs no tool itself and always listens, so it can kill whatever its children do. When its worker is gone, in
whatever way, the connection ends: it kills them all and ends too. When it is gone itself, the system kills them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import importlib
import inspect
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Unpack

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.schema.derivation import derive
from toolbus.bus.support.safe_text import described, is_a, reason_of, traceback_of
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT, ConfirmationAnswer
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.envelope import Request, decode_request, encode, encode_data
from toolbus.bus.values.options import CallOptions
from toolbus.bus.values.results import (
    Blob,
    CallCancelled,
    ConfigurationError,
    EnvelopeError,
    ErrorInfo,
    Progress,
    ToolbusError,
    ToolError,
    ToolResult,
)
from toolbus.bus.worker import isolation
from toolbus.bus.worker.function import FunctionTool, find_tool
from toolbus.bus.worker.invocation import Caller, Invocation, enter
from toolbus.bus.worker.isolation.messages import (
    JOB_HEADER,
    LINUX,
    MAIN,
    Job,
    Message,
    Order,
    Report,
    Setup,
    Target,
    address_space,
    adopt_orphans,
    decode_job,
    die_with_parent,
    framed_message,
    leave_signals_to_worker,
    native_threads,
    offspring,
)
from toolbus.bus.worker.loading import ask
from toolbus.bus.worker.outcome import checked, encodable, error_of, pieces_of, result_of
from toolbus.bus.worker.provide import Services, has_factory, injected

# The name under which another process imports the main module, so that its `if __name__ == "__main__":` does not run.
_MAIN_AGAIN = "__mp_main__"
_FRESH = "from toolbus.bus.worker.isolation.fork_server import fresh_child; fresh_child({descriptor}, {parent})"
_SETUP = "TOOLBUS_ISOLATION_SETUP"


class ForkServer:
    """One worker's children."""

    def __init__(self, worker: socket.socket, found: tuple[ChildTool, ...], setup: bytes) -> None:
        self._worker = worker
        self._found = found
        self._setup = setup
        self._forks = LINUX and native_threads() == 1
        self._children: dict[int, int] = {}
        # What an import started is not of any call.
        self._own = offspring()
        self._channels: deque[int] = deque()
        self._wakes: tuple[int, ...] = ()
        self._unread = b""

    def serve(self) -> NoReturn:
        """Carry out orders until the worker is gone; end the process then."""
        woken, wake = self._wakes = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._worker, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            self._tell(Report("ready"))
            while True:
                for key, _ in selector.select():
                    if key.fd == woken:
                        os.read(woken, 4096)
                    else:
                        self._obey()
                self._reap()

    def _obey(self) -> None:
        try:
            payload, channels, _, _ = socket.recv_fds(self._worker, 65_536, 64)
        except ConnectionError:
            payload, channels = b"", []
        if not payload:
            self._end()
        for channel in channels:
            os.set_inheritable(channel, False)
        self._channels.extend(channels)
        *lines, self._unread = (self._unread + payload).split(b"\n")
        for line in lines:
            order = msgspec.json.decode(line, type=Order)
            if order.do == "start":
                self._start_child(order.child, self._channels.popleft())
            else:
                self._kill(order.child)

    def _start_child(self, number: int, channel: int) -> None:
        try:
            pid = self._fork(channel) if self._forks else self._spawn(channel)
        except OSError as error:
            self._tell(Report("died", number, error=error.strerror or str(error)))
        else:
            self._children[pid] = number
            self._tell(Report("started", number, pid))
        finally:
            os.close(channel)

    def _fork(self, channel: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._worker.close()
            # Neither the fork server's signals nor other children's calls are this one's business.
            for descriptor in (*self._wakes, *self._channels):
                os.close(descriptor)
            run_child(channel, self._found, parent)
        except BaseException:  # noqa: BLE001 - a child never returns into the fork server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _spawn(self, channel: int) -> int:
        os.set_inheritable(channel, True)
        code = _FRESH.format(descriptor=channel, parent=os.getpid())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), _SETUP: self._setup.decode()}
        options = [f"-W{each}" for each in sys.warnoptions]
        return os.posix_spawn(sys.executable, [sys.executable, *options, "-c", code], environment, setpgroup=0)

    def _kill(self, number: int) -> None:
        for pid, child in self._children.items():
            if child == number:
                _kill_group(pid)

    def _reap(self) -> None:
        for pid, number in list(self._children.items()):
            if LINUX:
                # It stays until its group is killed, so that the group's number can't be another's by then.
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    continue
                _kill_group(pid)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                self._kill_orphans()
                self._tell(Report("died", number, pid, os.waitstatus_to_exitcode(status)))
        self._kill_orphans()

    def _kill_orphans(self) -> bool:
        """Kill processes of calls that have ended, which have left their groups; return whether there were any.

        When a child dies, what it had started becomes this process's own, and so does what those had started when they die.
        """
        orphans = offspring() - self._own - self._children.keys()
        for pid in orphans:
            _kill_group(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(orphans)

    def _tell(self, news: Report) -> None:
        try:
            self._worker.sendall(msgspec.json.encode(news) + b"\n")
        except ConnectionError:
            self._end()

    def _end(self) -> NoReturn:
        for pid in self._children:
            _kill_group(pid)
        for pid in self._children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._children.clear()
        while self._kill_orphans():
            # Each is dead in a moment, and what it had started is found then.
            time.sleep(0.001)
        os._exit(0)


def main(descriptor: int) -> NoReturn:
    """Run a fork server; ``descriptor`` is the connection to the worker, on which the setup comes first."""
    isolation.inside = True
    leave_signals_to_worker()
    adopt_orphans()
    worker = socket.socket(fileno=descriptor)
    with worker.makefile("rb", buffering=0) as lines:
        setup = lines.readline()
    try:
        found = _prepare(setup)
    except BaseException as error:  # noqa: BLE001 - whatever the user's module raises is told in one line
        said = (reason_of(error) if is_a(error, ToolbusError) else described(error))[:2_000]
        worker.sendall(msgspec.json.encode(Report("refused", error=said)) + b"\n")
        os._exit(1)
    # What is never collected is never written to, and stays shared with the children.
    gc.collect()
    gc.freeze()
    ForkServer(worker, found, setup).serve()


def fresh_child(descriptor: int, parent: int) -> NoReturn:
    """Run a child that is a fresh interpreter."""
    isolation.inside = True
    run_child(descriptor, _prepare(os.environ.pop(_SETUP).encode()), parent)


def _prepare(document: bytes) -> tuple[ChildTool, ...]:
    setup = msgspec.json.decode(document, type=Setup)
    if setup.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup.pythonpath
    from multiprocessing import spawn  # noqa: PLC0415 - only a fork server needs it

    ask(setup.places)
    spawn.prepare(setup.prepare)
    return find(setup.targets)


def _kill_group(pid: int) -> None:
    # The group is there from the first moment on, except in a fork that has not come so far yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


# -- the tools of children -------------------------------------------------------------------------


class ChildTool:
    """A tool as a child runs it."""

    def __init__(self, made: FunctionTool) -> None:
        self.function: Callable[..., Any] = made.function
        self._services = Services()
        derived = derive(made.function, parameters=made.parameters, injected=injected(made.parameters, made.function, self._services))
        self._bind = derived.bind
        self._spared = derived.spared
        self._given = {name: type_ for name, type_ in derived.injected.items() if self._services.provides(type_)}
        for name, type_ in derived.injected.items():
            if not has_factory(type_) if name in self._given else name not in self._spared:
                raise ConfigurationError(f"{made.origin} needs {type_.__qualname__} in each child: provide a function that makes one")
        self._made: dict[str, Any] | None = None if self._given else {}

    def arguments(self, given: Mapping[str, Any], runner: asyncio.Runner) -> dict[str, Any]:
        """Return the handler's keyword arguments; the first time, its services are made, which then live as long as the child.

        Raises:
            ToolError: they do not fit.
            ConfigurationError: a service can't be made.
        """
        bound = self._bind(given)
        if self._made is None:
            self._made = runner.run(self._make())
        return {**bound, **self._spared, **self._made}

    async def _make(self) -> dict[str, Any]:
        return {name: await self._services.make(type_) for name, type_ in self._given.items()}


def find(targets: Iterable[Target]) -> tuple[ChildTool, ...]:
    """Import the tools' modules and find the tools.

    Raises:
        ConfigurationError: a tool is not there.
    """
    found: list[ChildTool] = []
    for target in targets:
        module = _MAIN_AGAIN if target.module == MAIN else target.module
        importlib.import_module(module)
        made = find_tool(module, target.qualname, target.name)
        if made is None:
            raise ConfigurationError(f"importing {target.module} afresh defines no tool {target.name!r} at {target.qualname}")
        found.append(ChildTool(made))
    return tuple(found)


# -- children, which run one call after another of those that come through their channels ----------

_CUT = 4_000
_MOVES = frozenset({"os.chdir", "os.putenv", "os.unsetenv"})


class Channel:
    """The blocking side of the socket between a child and its worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.write = connection.sendall
        self._jobs = connection.makefile("rb")

    def next_job(self) -> Job | None:
        """Wait for the next call; return None when there will be no more."""
        header = self._jobs.read(JOB_HEADER.size)
        if len(header) < JOB_HEADER.size:
            return None
        size: int = JOB_HEADER.unpack(header)[0]
        payload = self._jobs.read(size)
        return decode_job(payload) if len(payload) == size else None


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
        self._sent = 0
        self._ended = False
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message, unless the call has ended."""
        with self._lock:
            if not self._ended:
                self._ended = message.kind == "end"
                self._channel.write(framed_message(message, self._token, self._sent))
                self._sent += 1
                self.blobs += len(message.blobs)


class _ChildInvocation(Invocation):
    """The handler's view of its call in a child. It is never cancelled: the child is killed instead."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop, request: Request, job: Job) -> None:
        super().__init__(loop, request, attempt=job.attempt, deadline=job.deadline)
        self._answer = answer

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        self._answer.send(Message("progress", progress=Progress(done, total, message)))

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


def run_child(descriptor: int, found: tuple[ChildTool, ...], parent: int) -> NoReturn:
    """Serve calls until the worker has no more of them; ends the process."""
    die_with_parent(parent)
    leave_signals_to_worker()
    os.set_inheritable(descriptor, False)
    adopt_orphans()
    channel = Channel(socket.socket(fileno=descriptor))
    with asyncio.Runner() as runner:
        surroundings = _Surroundings(runner.get_loop())
        while True:
            job = channel.next_job()
            if job is None:
                os._exit(0)
            surroundings.look()
            answer = Answer(channel, job.token)
            # Context variables that a handler sets are its call's alone.
            end = contextvars.copy_context().run(_run_traced, found[job.target], job, answer, runner, surroundings)
            if job.memory:
                address_space(0)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            answer.send(Message("end", error=end.error, crashed=end.crashed, fit=end.fit and surroundings.are_kept()))


class _Surroundings:
    """Everything that is there before a handler runs: threads and tasks, its services' own among them, the folder and the environment.

    Each call must find folder and environment as they were. Reading the whole environment takes as long as a call, so that is done only
    when a call may have changed it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._touched = True
        self._were: tuple[str, dict[str, str]] = "", {}
        sys.addaudithook(self._audit)

    def look(self) -> None:
        """Take note of what is there now."""
        self._threads = _threads()
        self._tasks = asyncio.all_tasks(self._loop)
        if self._touched:
            self._were = self._are()
            self._touched = False

    def are_kept(self) -> bool:
        """Return whether nothing of the call still runs, while folder and environment are as they were."""
        running = _threads() > self._threads or asyncio.all_tasks(self._loop) - self._tasks or _offspring()
        return not running and (not self._touched or self._are() == self._were)

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


def _run_traced(found: ChildTool, job: Job, answer: Answer, runner: asyncio.Runner, surroundings: _Surroundings) -> Message:
    """Run one call within the span that its worker made for it, if there is one; return its last message."""
    if not job.traceparent:
        return _run(found, job, answer, runner, surroundings)
    # What a handler logs or requests elsewhere names the trace, also where this process exports no spans.
    with telemetry.continued(job.traceparent, exported=False):
        return _run(found, job, answer, runner, surroundings)


def _run(found: ChildTool, job: Job, answer: Answer, runner: asyncio.Runner, surroundings: _Surroundings) -> Message:
    """Run one call; return its last message."""
    try:
        request = decode_request(job.request, limit=len(job.request))
        view = _ChildInvocation(answer, runner.get_loop(), request, job)
        enter(lambda: view)
        arguments = found.arguments(request.arguments, runner)
        surroundings.look()
        if job.memory:
            address_space(job.memory)
        value = found.function(**arguments)
        if inspect.isawaitable(value) or hasattr(value, "__aiter__"):
            runner.run(_consume_async(value, answer), context=contextvars.copy_context())
        else:
            _consume(value, answer)
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


def _consume(value: Any, answer: Answer) -> None:
    if isinstance(value, Iterator):
        for item in value:
            _send_item(item, answer)
    else:
        answer.send(_result(result_of(value)))


async def _consume_async(value: Any, answer: Answer) -> None:
    if inspect.isawaitable(value):
        value = await value
    if hasattr(value, "__aiter__"):
        async for item in value:
            _send_item(item, answer)
    else:
        _consume(value, answer)


def _send_item(item: object, answer: Answer) -> None:
    for piece in pieces_of(item, answer.blobs):
        if isinstance(piece, str):
            answer.send(Message("text", text=whole_text(piece)))
        elif isinstance(piece, Progress):
            answer.send(Message("progress", progress=piece))
        elif isinstance(piece, Blob):
            answer.send(Message("blob", blobs=(piece,)))
        elif isinstance(piece, ToolResult):
            answer.send(_result(checked(piece, answer.blobs)))


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
