"""The frames of a handler that streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolbus.bus.values.envelope import Frame, pieces
from toolbus.bus.values.results import Blob, ErrorInfo, Progress, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.run.attachments import pieces_of
from toolbus.bus.worker.run.outcome import checked, is_retryable
from toolbus.bus.worker.run.reasons import RunState
from toolbus.bus.worker.serving.handlers import Handler, Served
from toolbus.bus.worker.sessions.session import SessionBook

if TYPE_CHECKING:
    from toolbus.bus.broker.take.requests import Delivery
    from toolbus.bus.broker.worker import WorkerBroker

_ANSWERED = RunState.ANSWERED
_MOST_MEDIA_TYPE = 255


class StreamingRun(Protocol):
    """The part of a run that its stream uses."""

    @property
    def state(self) -> RunState:
        """The state of the run."""

    def frame(self, kind: Any) -> Frame:
        """Make the next frame of the run."""

    def send(self, frame: Frame) -> None:
        """Send a frame that is not the last one."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def emit(self, item: Progress) -> None:
        """Send progress."""


class Stream:
    """Sends what a handler yields. Texts gather while earlier frames leave: several in one frame cost hardly more than one.

    Args:
        most_gathered: bytes of text that gather for one frame, about.

    Attributes:
        gathered: texts that were not sent yet.
        has_text: whether the caller was sent any text, or is about to be.
        blobs: how many blobs the caller was sent.
        first: when the first text was sent, in monotonic seconds; 0 before.
    """

    __slots__ = ("_broker", "_most_gathered", "_run", "_sent", "_settings", "_size", "blobs", "first", "gathered", "has_text")

    def __init__(self, run: StreamingRun, broker: WorkerBroker, settings: Settings, most_gathered: int) -> None:
        self._run = run
        self._broker = broker
        self._settings = settings
        self._most_gathered = most_gathered
        self._sent = 0
        self._size = 0
        self.blobs = 0
        self.first = 0.0
        self.gathered: list[str] = []
        self.has_text = False

    async def consume(self, items: Any) -> ToolResult:
        """Send the items of an async iterable; return the result that it yields last, or one without output.

        Raises:
            ToolError: it yielded more after its result, or more than a call may send.
            CancelledError: the run was answered meanwhile.
        """
        result: ToolResult | None = None
        broker, run = self._broker, self._run
        iterator: AsyncIterator[Any] = aiter(items)
        try:
            async for item in iterator:
                if run.state >= _ANSWERED:
                    # The generator swallowed its cancellation: it is closed, or it would hold its slot for good.
                    raise asyncio.CancelledError
                if result is not None:
                    raise ToolError("the handler yielded more after its ToolResult", code="bad_stream")
                if type(item) is str:
                    self.send_text(item)
                elif isinstance(item, ToolResult):
                    result = checked(item, self.blobs)
                else:
                    self._send_item(item)
                # What gathers is bounded, so only what left can have filled the way to the server.
                if not self.gathered and broker.congested:
                    await broker.room()
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
        return result if result is not None else ToolResult(output=None if self.has_text else "")

    def send_text(self, text: str) -> None:
        """Send text, or gather it for the next frame.

        Raises:
            ToolError: the call has sent more than it may.
        """
        if not text:
            return
        self.has_text = True
        most = self._most_gathered
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            # Lone surrogates are replaced where text is cut into pieces.
            size = most + 1
        if size > most:
            self.send_pieces("text", text)
            return
        self._sent += size
        if self._sent > self._settings.max_output:
            self._count(0)
        if not self.gathered:
            self._broker.before_sending(self.pack)
        self.gathered.append(text)
        self._size += size
        if self._size > most:
            self.pack()

    def pack(self) -> None:
        """Send the texts that gathered, as one frame."""
        texts, self.gathered, self._size = self.gathered, [], 0
        if texts:
            self.first = self.first or self._run.now()
            frame = self._run.frame("text")
            if len(texts) == 1:
                frame.response = texts[0]
            else:
                frame.texts = texts
            self._run.send(frame)

    def send_pieces(self, kind: Any, text: str) -> None:
        """Send a text in frames of the largest size.

        Raises:
            ToolError: the call has sent more than it may.
        """
        self.first = self.first or self._run.now()
        for piece in pieces(text, self._settings.max_frame):
            self._count(len(piece))
            frame = self._run.frame(kind)
            frame.response = piece
            self._run.send(frame)

    def send_blob(self, blob: Blob) -> None:
        """Send a blob, in as many frames as it needs.

        Raises:
            ToolError: the call has sent more than it may, or the blob's media type is no such thing.
        """
        if len(blob.media_type) > _MOST_MEDIA_TYPE:
            raise ToolError(f"a blob's media type has at most {_MOST_MEDIA_TYPE} characters", code="bad_result")
        self.blobs += 1
        # Base64 makes four bytes of three.
        step = self._settings.max_frame * 3 // 4
        for start in range(0, max(1, len(blob.data)), step):
            self._count(min(step, len(blob.data) - start))
            frame = self._run.frame("blob")
            frame.blob = Blob(blob.media_type, blob.data[start : start + step])
            frame.more = start + step < len(blob.data)
            self._run.send(frame)

    def _send_item(self, item: object) -> None:
        for piece in pieces_of(item, self.blobs):
            if isinstance(piece, str):
                self.send_text(piece)
            elif isinstance(piece, Blob):
                self.send_blob(piece)
            elif isinstance(piece, Progress):
                self._run.emit(piece)

    def _count(self, size: int) -> None:
        self._sent += size
        limit = self._settings.max_output
        if self._sent > limit:
            raise ToolError(f"the output is over the limit of {limit} bytes (TOOLBUS_MAX_OUTPUT)", code="output_limit")


_MOVED = ErrorInfo(
    "tool_error", "session_moved", "the session went to another worker while this call ran, so what it changed there is lost"
)


class KeepingContext(Protocol):
    """The part of a run's context that is used here."""

    settings: Settings


class KeptRun(Protocol):
    """A run, as far as its session's state is concerned."""

    delivery: Delivery
    served: Served
    handler: Handler
    state: RunState
    abandoned: bool

    @property
    def context(self) -> KeepingContext:
        """Share what the runs of a worker have in common."""

    def error_info(self, error: BaseException) -> ErrorInfo:
        """Return what the caller is told of an exception."""


class Handled(Protocol):
    """A handler that is about to run."""

    async def handle(self) -> ToolResult:
        """Return its result."""


async def kept(run: KeptRun, handling: Handled) -> ToolResult:
    """Return a handler's result, after a snapshot of its session if the service wants that, also when the handler failed."""
    sessions = _changed(run)
    if sessions is None:
        return await handling.handle()
    sessions.enter(run.delivery)
    result, done, changes = None, True, True
    try:
        result = await handling.handle()
        done = not _has_attempts(run) or result.error is None or not result.error.retryable
    except BaseException as error:
        done = not _has_attempts(run) or not is_retryable(error, run.error_info(error))
        raise
    finally:
        keep = run.state < RunState.ANSWERED and not run.abandoned
        changes = await sessions.leave(run.delivery, keep=keep, done=done)
    return result if changes else ToolResult(success=False, error=_MOVED)


def forget(run: KeptRun) -> None:
    """Forget the snapshot of a run that is stopped: its handler may have changed the state, and what it changes yet is in no snapshot."""
    sessions = _changed(run)
    if sessions is not None:
        sessions.forget(run.delivery)


def _changed(run: KeptRun) -> SessionBook | None:
    """Return the sessions of the service if they have snapshots and this call may change the state of one."""
    changes = run.served.restores_sessions and not (run.handler.beside and not run.delivery.request.ordered)
    return run.served.sessions if changes else None


def _has_attempts(run: KeptRun) -> bool:
    """Return whether a retryable failure leads to another attempt, unless the deadline comes first."""
    policy = run.handler.retry if run.state is RunState.RUNNING else None
    return policy is not None and policy.allows(run.delivery.tries, run.context.settings.max_deliveries)
