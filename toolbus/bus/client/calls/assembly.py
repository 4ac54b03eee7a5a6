"""``Assembly``: puts the frames of a call together, as pure logic without tasks or clocks.

A call may be run more than once, when a worker dies. The text of the new run is compared with what was already delivered, piece by
piece as it comes: while it is the same, the caller sees nothing of it.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.envelope import FRAMES_REFUSED, Frame, text_of
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text, size_of
from toolbus.bus.values.results import Blob, ErrorInfo, ResultMeta, ToolResult

GAP_SECONDS = 2.0
"""Seconds to wait for frames that later ones have overtaken, beyond those that it takes until a dead worker's calls run again."""

_MOST_BANNED = 64
# Pieces of text that are kept one by one before they are joined.
_MOST_SMALL = 64
# Limits of the frames that are kept because they came too early.
_MOST_EARLY = 256
_MOST_EARLY_BYTES = 1_048_576


class Run(msgspec.Struct, eq=False):
    """One run of the handler, as far as its frames have come.

    Attributes:
        token: the run's own; empty before the first frame of a call.
        next: position of the frame that is taken in next.
        early: frames that came before others that they should follow, each with its bytes.
        has_text: whether text of it has come.
        is_again: whether it says again what was delivered: up to the ``offset`` in the part ``compared`` of the text, until now.
        partial, output, data: pieces of a blob, of the output and of the data.
    """

    token: str = ""
    next: int = 0
    early: dict[int, tuple[Frame, int]] = {}
    early_bytes: int = 0
    has_text: bool = False
    blobs_seen: int = 0
    is_again: bool = False
    compared: int = 0
    offset: int = 0
    partial: list[bytes] = []
    output: list[str] = []
    data: list[str] = []


class Assembly(msgspec.Struct, eq=False):
    """The state of one call's response; ``feed`` turns a frame into events.

    Attributes:
        text: what was delivered so far, in parts.
        finished: whether the terminal frame was taken in; later frames are ignored.
        attempt: delivery number of the current run, 0 before the first.
        state: the token of the session's state that the terminal frame has.
        run: the current run.
    """

    text: list[str] = []
    finished: bool = False
    attempt: int = 0
    worker: str = ""
    state: str = ""
    run: Run = msgspec.field(default_factory=Run)
    _epoch: int = 0
    _length: int = 0
    _joined: int = 0
    _blobs: list[Blob] = []
    _banned: list[str] = []

    def feed(self, frame: Frame) -> list[Event]:
        """Take in a frame; returns what the caller may see of it, in order."""
        if self.finished or frame.run in self._banned:
            return []
        events: list[Event] = []
        if frame.run != self.run.token:
            if (frame.epoch, frame.attempt) < (self._epoch, self.attempt):
                return []
            self._begin(frame, events)
        if frame.seq < self.run.next or frame.seq in self.run.early:
            return events
        if frame.seq > self.run.next and not _ends_without_them(frame):
            return [*events, *self._hold_early(frame)]
        self._advance(frame, events)
        while self.run.early and not self.finished and self.run.next in self.run.early:
            early, size = self.run.early.pop(self.run.next)
            self.run.early_bytes -= size
            self._advance(early, events)
        return events

    @property
    def missing(self) -> tuple[str, int] | None:
        """The run and position of a frame that is missing while later ones are held back; None when there is none."""
        return (self.run.token, self.run.next) if self.run.early else None

    def lose(self) -> Finished:
        """End the call since frames are missing; only while there are such."""
        upto = min(self.run.early) - 1
        message = f"frames {self.run.next} to {upto} of attempt {self.attempt} are missing"
        return Finished(self.fail(ErrorInfo("outcome_unknown", "frames_missing", message)))

    def fail(self, error: ErrorInfo) -> ToolResult:
        """Return the result of a call that ends with ``error``; the text delivered so far is its partial output."""
        self.finished = True
        return ToolResult(
            success=False,
            output="".join(self.text) or None,
            error=error,
            content=tuple(self._blobs),
            meta=ResultMeta(attempts=self.attempt, worker=self.worker),
        )

    # -- runs -------------------------------------------------------------------------------------

    def _begin(self, frame: Frame, events: list[Event]) -> None:
        if self.run.token:
            # A replaced run may still write: a paused worker does not know yet.
            self._banned.append(self.run.token)
            del self._banned[:-_MOST_BANNED]
        self._epoch, self.attempt = frame.epoch, frame.attempt
        self.run = Run(frame.run, is_again=bool(self._length or self._blobs))

    def _hold_early(self, frame: Frame) -> list[Event]:
        size = len(msgspec.json.encode(frame))
        self.run.early[frame.seq] = frame, size
        self.run.early_bytes += size
        if len(self.run.early) > _MOST_EARLY or self.run.early_bytes > _MOST_EARLY_BYTES:
            return [self.lose()]
        return []

    def _advance(self, frame: Frame, events: list[Event]) -> None:
        self.run.next += 1
        if frame.seq == 0:
            if not self.worker:
                events.append(Started(frame.worker, frame.attempt, frame.queued_ms))
            self.worker = frame.worker
        self._take(frame, events)
        if frame.end_of_stream:
            self._end(frame, events)

    def _reset(self, events: list[Event]) -> None:
        events.append(Reset(self.attempt))
        self.text = []
        self._length = self._joined = 0
        self._blobs = []

    def _take(self, frame: Frame, events: list[Event]) -> None:
        match frame.kind:
            case "text":
                if frame.texts is None:
                    self._take_text(frame.response or "", events)
                else:
                    self._take_texts(frame.texts, events)
            case "progress" if frame.progress is not None and not self.run.is_again:
                events.append(frame.progress)
            case "blob" if frame.blob is not None:
                self._take_blob(frame.blob, events, more=frame.more)
            case "confirm" if (confirm := frame.confirm) is not None:
                # Also of a run that says again what was delivered: it is about now, and no part of the answer.
                events.append(
                    Asked(confirm.id, confirm.question, confirm.timeout) if confirm.timeout > 0 else Answered(confirm.id, confirm.allowed)
                )
            case "output":
                self.run.output.append(frame.response or "")
            case "data":
                self.run.data.append(frame.response or "")
            case "reset":
                self.run.is_again, self.run.blobs_seen, self.run.has_text = False, 0, False
                self._reset(events)

    # -- text and blobs ---------------------------------------------------------------------------

    def _take_text(self, text: str, events: list[Event]) -> None:
        self.run.has_text = True
        if self.run.is_again:
            text = self._compare(text, events)
        self._deliver([text] if text else [], events)

    def _take_texts(self, texts: list[str], events: list[Event]) -> None:
        if self.run.is_again:
            for text in texts:
                self._take_text(text, events)
            return
        self.run.has_text = True
        self._deliver(texts, events)

    def _deliver(self, texts: list[str], events: list[Event]) -> None:
        events += map(Text, texts)
        self.text += texts
        self._length += sum(map(len, texts))
        if len(self.text) - self._joined >= _MOST_SMALL:
            # A string of its own for each word of a long stream takes ten times as much as the text.
            self.text[self._joined :] = ["".join(self.text[self._joined :])]
            self._joined += 1

    def _compare(self, text: str, events: list[Event]) -> str:
        """Return the part of a text that goes beyond what was delivered; a text that differs is delivered anew."""
        at, run = 0, self.run
        while run.compared < len(self.text):
            part = self.text[run.compared]
            size = min(len(part) - run.offset, len(text) - at)
            if not part.startswith(text[at : at + size], run.offset):
                self._diverge(self._own_text() + text[at:], events)
                return ""
            at += size
            run.offset += size
            if run.offset < len(part):
                return ""
            run.compared += 1
            run.offset = 0
        run.is_again = False
        return text[at:]

    def _own_text(self) -> str:
        """Return the text of the current run so far, which is equal to what was delivered."""
        run = self.run
        if not run.is_again:
            return "".join(self.text)
        return "".join(self.text[: run.compared]) + "".join(self.text[run.compared : run.compared + 1])[: run.offset]

    def _diverge(self, text: str, events: list[Event]) -> None:
        self.run.is_again = False
        blobs = self._blobs[: self.run.blobs_seen]
        self._reset(events)
        self._deliver([text] if text else [], events)
        self._blobs = blobs
        events.extend(blobs)

    def _take_blob(self, part: Blob, events: list[Event], *, more: bool) -> None:
        self.run.partial.append(part.data)
        if more:
            return
        blob = Blob(part.media_type, b"".join(self.run.partial))
        self.run.partial = []
        if self.run.blobs_seen < len(self._blobs) and self._blobs[self.run.blobs_seen] != blob:
            self._diverge(self._own_text(), events)
        self.run.blobs_seen += 1
        if self.run.blobs_seen > len(self._blobs):
            self._blobs.append(blob)
            events.append(blob)

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, frame: Frame, events: list[Event]) -> None:
        output = "".join(self.run.output) if self.run.output else frame.response
        error, data = frame.error, frame.data
        if self.run.data:
            try:
                data = msgspec.json.decode("".join(self.run.data))
            except DECODE_ERRORS as problem:
                error = error or ErrorInfo("tool_error", "bad_data", f"the result's data can't be read: {problem}")
        if not output and not self.run.has_text and data is not None and error is None:
            output = "".join(self.run.data) or text_of(data)
        if output is not None and not self.run.has_text:
            # A plain value is its own only piece of text.
            self._take_text(output, events)
            output = None
        short = (self.run.is_again and self._length) or self.run.blobs_seen < len(self._blobs)
        if short and frame.error is None:
            self._diverge(self._own_text(), events)
        self.finished = True
        self.state = frame.state
        if output is None:
            output = "".join(self.text)
        result = ToolResult(
            success=error is None,
            output=output or None if error is not None else output,
            data=data,
            error=error,
            content=tuple(self._blobs),
            meta=ResultMeta(attempts=frame.attempt, worker=self.worker, restarted=frame.restarted),
        )
        events.append(Finished(result))


def _ends_without_them(frame: Frame) -> bool:
    """Return whether a frame says that those before it, which are missing, will not come."""
    return frame.end_of_stream and frame.error is not None and frame.error.code == FRAMES_REFUSED


# Bytes that an event takes beside its text.
_EACH = 100


class EventBuffer(msgspec.Struct, eq=False):
    """Events in the order in which they are to be read.

    Attributes:
        events: appended to by the call itself, which then calls ``wake``.
        size: about how many bytes the events have.
        is_awaited: whether a reader waits.
    """

    events: deque[Event] = msgspec.field(default_factory=deque)
    size: int = 0
    is_awaited: bool = False
    _arrived: asyncio.Event | None = None

    def is_over(self, limit: int) -> bool:
        """Return whether more bytes than ``limit`` wait beside the newest event: one alone may be of any size, and is read next."""
        return self.size > limit and self.size - size_of(self.events[-1]) > limit

    @property
    def held(self) -> int:
        """About how many bytes of memory the events take, which may be small and many."""
        return self.size + _EACH * len(self.events)

    def put(self, event: Event) -> None:
        """Append one event, and wake the reader."""
        self.events.append(event)
        self.size += size_of(event)
        self.wake()

    def take(self) -> Event:
        """Remove and return the first event.

        Raises:
            IndexError: there is none.
        """
        event = self.events.popleft()
        self.size -= len(event.text) if type(event) is Text else size_of(event)
        return event

    def clear(self) -> None:
        """Drop every event, and wake the reader."""
        self.events.clear()
        self.size = 0
        self.wake()

    def wake(self) -> None:
        """Let the reader look again."""
        if self._arrived is not None:
            self._arrived.set()

    async def arrival(self) -> None:
        """Wait until ``wake`` is called.

        Raises:
            RuntimeError: another task waits.
        """
        if self._arrived is None:
            self._arrived = asyncio.Event()
        if self.is_awaited:
            raise RuntimeError("somebody else waits for this call's events")
        self.is_awaited = True
        self._arrived.clear()
        try:
            await self._arrived.wait()
        finally:
            self.is_awaited = False
