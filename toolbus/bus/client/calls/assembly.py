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


class Assembly:
    """The state of one call's response; ``feed`` turns a frame into events.

    Attributes:
        text: what was delivered so far, in parts.
        finished: whether the terminal frame was taken in; later frames are ignored.
        attempt: delivery number of the current run, 0 before the first.
        state: the token of the session's state that the terminal frame has.
        early_frames: how many frames came before others that they should follow.
    """

    __slots__ = (
        "_banned", "_blobs", "_blobs_seen", "_compared", "_data", "_early", "_early_bytes", "_epoch", "_is_again", "_joined", "_length",
        "_next", "_offset", "_output", "_partial", "_run", "_run_text", "attempt", "early_frames", "finished", "state", "text", "worker",
    )  # fmt: skip

    def __init__(self) -> None:
        self.text: list[str] = []
        self.finished = False
        self.attempt = self._epoch = 0
        self.worker = self.state = ""
        self._length = self._joined = 0
        self._run = ""
        self._next = 0
        self._early: dict[int, tuple[Frame, int]] = {}
        self._early_bytes = self.early_frames = 0
        self._banned: list[str] = []
        # True while the current run says again what was delivered: up to the offset in the part of the text with this number, until now.
        self._is_again = False
        self._compared = self._offset = 0
        self._run_text = False
        self._blobs: list[Blob] = []
        self._blobs_seen = 0
        self._partial: list[bytes] = []
        self._output: list[str] = []
        self._data: list[str] = []

    def feed(self, frame: Frame) -> list[Event]:
        """Take in a frame; returns what the caller may see of it, in order."""
        if self.finished or frame.run in self._banned:
            return []
        events: list[Event] = []
        if frame.run != self._run:
            if (frame.epoch, frame.attempt) < (self._epoch, self.attempt):
                return []
            self._begin(frame, events)
        if frame.seq < self._next or frame.seq in self._early:
            return events
        if frame.seq > self._next and not _ends_without_them(frame):
            return [*events, *self._hold_early(frame)]
        self._advance(frame, events)
        while self._early and not self.finished and self._next in self._early:
            early, size = self._early.pop(self._next)
            self._early_bytes -= size
            self._advance(early, events)
        return events

    @property
    def missing(self) -> tuple[str, int] | None:
        """The run and position of a frame that is missing while later ones are held back; None when there is none."""
        return (self._run, self._next) if self._early else None

    def lose(self) -> Finished:
        """End the call since frames are missing; only while there are such."""
        upto = min(self._early) - 1
        message = f"frames {self._next} to {upto} of attempt {self.attempt} are missing"
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
        if self._run:
            # A replaced run may still write: a paused worker does not know yet.
            self._banned.append(self._run)
            del self._banned[:-_MOST_BANNED]
        self._run = frame.run
        self._epoch, self.attempt = frame.epoch, frame.attempt
        self._next = 0
        self._early = {}
        self._early_bytes = 0
        self._run_text = False
        self._blobs_seen = 0
        self._partial = []
        self._output = []
        self._data = []
        self._is_again = bool(self._length or self._blobs)
        self._compared = self._offset = 0

    def _hold_early(self, frame: Frame) -> list[Event]:
        size = len(msgspec.json.encode(frame))
        self._early[frame.seq] = frame, size
        self._early_bytes += size
        self.early_frames += 1
        if len(self._early) > _MOST_EARLY or self._early_bytes > _MOST_EARLY_BYTES:
            return [self.lose()]
        return []

    def _advance(self, frame: Frame, events: list[Event]) -> None:
        self._next += 1
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
            case "progress":
                if frame.progress is not None and not self._is_again:
                    events.append(frame.progress)
            case "blob":
                self._take_blob(frame, events)
            case "confirm":
                self._take_confirm(frame, events)
            case "output":
                self._output.append(frame.response or "")
            case "data":
                self._data.append(frame.response or "")
            case "reset":
                self._is_again, self._blobs_seen, self._run_text = False, 0, False
                self._reset(events)

    def _take_confirm(self, frame: Frame, events: list[Event]) -> None:
        # Also of a run that says again what was delivered: it is about now, and no part of the answer.
        if frame.confirm is None:
            return
        if frame.confirm.timeout > 0:
            events.append(Asked(frame.confirm.id, frame.confirm.question, frame.confirm.timeout))
        else:
            events.append(Answered(frame.confirm.id, frame.confirm.allowed))

    @property
    def run(self) -> str:
        """The current run."""
        return self._run

    # -- text and blobs ---------------------------------------------------------------------------

    def _take_text(self, text: str, events: list[Event]) -> None:
        self._run_text = True
        if self._is_again:
            text = self._compare(text, events)
        self._deliver(text, events)

    def _take_texts(self, texts: list[str], events: list[Event]) -> None:
        if self._is_again:
            for text in texts:
                self._take_text(text, events)
            return
        self._run_text = True
        self._add(texts)
        events += map(Text, texts)

    def _add(self, texts: list[str]) -> None:
        self.text += texts
        self._length += sum(map(len, texts))
        if len(self.text) - self._joined >= _MOST_SMALL:
            # A string of its own for each word of a long stream takes ten times as much as the text.
            self.text[self._joined :] = ["".join(self.text[self._joined :])]
            self._joined += 1

    def _deliver(self, text: str, events: list[Event]) -> None:
        if text:
            self._add([text])
            events.append(Text(text))

    def _compare(self, text: str, events: list[Event]) -> str:
        """Return the part of a text that goes beyond what was delivered; a text that differs is delivered anew."""
        at = 0
        while self._compared < len(self.text):
            part = self.text[self._compared]
            size = min(len(part) - self._offset, len(text) - at)
            if not part.startswith(text[at : at + size], self._offset):
                self._diverge(self._own_text() + text[at:], events)
                return ""
            at += size
            self._offset += size
            if self._offset < len(part):
                return ""
            self._compared += 1
            self._offset = 0
        self._is_again = False
        return text[at:]

    def _own_text(self) -> str:
        """Return the text of the current run so far, which is equal to what was delivered."""
        if not self._is_again:
            return "".join(self.text)
        return "".join(self.text[: self._compared]) + "".join(self.text[self._compared : self._compared + 1])[: self._offset]

    def _diverge(self, text: str, events: list[Event]) -> None:
        self._is_again = False
        blobs = self._blobs[: self._blobs_seen]
        self._reset(events)
        self._deliver(text, events)
        self._blobs = blobs
        events.extend(blobs)

    def _take_blob(self, frame: Frame, events: list[Event]) -> None:
        if frame.blob is None:
            return
        self._partial.append(frame.blob.data)
        if frame.more:
            return
        blob = Blob(frame.blob.media_type, b"".join(self._partial))
        self._partial = []
        if self._blobs_seen < len(self._blobs) and self._blobs[self._blobs_seen] != blob:
            self._diverge(self._own_text(), events)
        self._blobs_seen += 1
        if self._blobs_seen > len(self._blobs):
            self._blobs.append(blob)
            events.append(blob)

    # -- the end ----------------------------------------------------------------------------------

    def _end(self, frame: Frame, events: list[Event]) -> None:
        output = "".join(self._output) if self._output else frame.response
        error, data = frame.error, frame.data
        if self._data:
            try:
                data = msgspec.json.decode("".join(self._data))
            except DECODE_ERRORS as problem:
                error = error or ErrorInfo("tool_error", "bad_data", f"the result's data can't be read: {problem}")
        if not output and not self._run_text and data is not None and error is None:
            output = "".join(self._data) or text_of(data)
        if output is not None and not self._run_text:
            # A plain value is its own only piece of text.
            self._take_text(output, events)
            output = None
        short = (self._is_again and self._length) or self._blobs_seen < len(self._blobs)
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


class EventBuffer:
    """Events in the order in which they are to be read.

    Attributes:
        events: appended to by the call itself, which then calls ``wake``.
        size: about how many bytes the events have.
        is_awaited: whether a reader waits.
    """

    __slots__ = ("_arrived", "events", "is_awaited", "size")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.size = 0
        self.is_awaited = False
        self._arrived: asyncio.Event | None = None

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
