"""``EventStream``: the answer that sends a call's events as they happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from toolbus.bus.client.calls.call import Call
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Started, Text
from toolbus.bus.values.results import Blob, ConfigurationError, ErrorInfo, Progress
from toolbus.edges.gateway.bodies import EVENTS, Problem, is_answer
from toolbus.edges.gateway.calls import is_resumable, problem_of, trace_headers, traced
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.permissions import Permission
from toolbus.edges.gateway.positions import Position, Replay

COMMENT = b":\n\n"
"""A line that clients leave out: it shows that the connection lives."""

_RETRY = 1000
_NAMES: dict[type[Any], bytes] = {
    Started: b"started",
    Text: b"text",
    Progress: b"progress",
    Blob: b"blob",
    Asked: b"confirm",
    Answered: b"answered",
    Reset: b"reset",
    Finished: b"end",
}
_SEPARATORS = tuple((each.encode(), f"\\u{ord(each):04x}".encode()) for each in "\x85\u2028\u2029")
_encode = msgspec.json.Encoder().encode


def opening() -> bytes:
    """Return the line that says when to come back after a lost connection (milliseconds)."""
    return b"retry: %d\n\n" % _RETRY


def event_bytes(event: Event, id: str = "") -> bytes:
    """Return an event of a call, with its id if it has one."""
    return named_event(_NAMES[type(event)], _encode(event.result if type(event) is Finished else event), id)


def named_event(name: bytes, data: bytes, id: str = "") -> bytes:
    """Return an event with JSON data, in one line: an encoder of JSON escapes line ends, so that no text can begin a line of its own."""
    if not data.isascii():
        # Some clients take these for line ends, too.
        for character, escaped in _SEPARATORS:
            data = data.replace(character, escaped)
    if id:
        return b"event: %b\nid: %b\ndata: %b\n\n" % (name, id.encode("ascii"), data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


# Seconds within which a call that fails is answered with its status, and after which an answer begins in any case.
_OPENING = 1.0


async def event_stream(
    request: Request, gateway: Gateway, call: Call, name: str, had: Position | None = None, permission: Permission | None = None
) -> Response:
    """Publish a call, once it is permitted, and return the stream of its events, after ``had`` if the client has some of them.

    Raises:
        Problem: it failed before anything happened, or an option is wrong.
    """
    gateway.measures.in_flight += 1
    stream = EventStream(request, gateway, call, name, had, permission)
    try:
        await stream.begin()
    except BaseException:
        stream.close()
        raise
    return stream


class EventStream(Response):
    """Sends the events of one call; when the client leaves, the call is cancelled, or kept for it to come back."""

    def __init__(
        self, request: Request, gateway: Gateway, call: Call, name: str, had: Position | None, permission: Permission | None
    ) -> None:
        self.background = None
        self._request = request
        self._gateway = gateway
        self._call = call
        self._name = name
        self._key = call.options.get("idempotency_key", "")
        self._position = had or Position()
        self._replay = None if had is None else Replay(Position(had.resets, had.characters, had.others))
        self._permission = permission
        self._events: AsyncIterator[Event] = call.events() if permission is None else permission.events()
        self._first: asyncio.Future[Event] | None = None
        self._error: ErrorInfo | None = ErrorInfo("cancelled")
        self._began = time.monotonic()
        self._gone = False
        self._closed = False
        self._wrote = 0.0
        self._beats: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Publish the call, and wait a moment for its first event.

        Raises:
            Problem: it failed before anything happened, or an option is wrong.
        """
        with traced(self._request):
            self._first = asyncio.ensure_future(anext(self._events))
        await asyncio.wait({self._first}, timeout=_OPENING)
        if not self._first.done():
            return
        try:
            event = self._first.result()
        except ConfigurationError as error:
            raise Problem(422, "invalid_request", str(error)) from None
        if type(event) is Finished and not is_answer(event.result.error):
            self._error = event.result.error
            raise problem_of(event.result, trace_headers(self._request, self._call))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the call ends."""
        self._gateway.measures.streams += 1
        self._gateway.buffers.add(self._call)
        try:
            await self._send_all(send)
        finally:
            self._gateway.measures.streams -= 1
            self._gateway.buffers.remove(self._call)
            self.close()

    def close(self) -> None:
        """End the call, if it has not ended, and count it."""
        if self._closed:
            return
        self._closed = True
        self._cancel()
        if self._beats is not None:
            self._beats.cancel()
        for task in (*self._tasks, self._beating):
            if task is not None:
                task.cancel()
        if self._first is not None and not self._first.done():
            self._first.cancel()
        measures = self._gateway.measures
        measures.in_flight -= 1
        measures.ended(self._name, time.monotonic() - self._began, self._error, known=self._call.request is not None)

    # -- inside -----------------------------------------------------------------------------------

    async def _send_all(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._watch()))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", **trace_headers(self._request, self._call)}
        listed = [(b"content-type", EVENTS.encode()), *((name.encode(), value.encode()) for name, value in headers.items())]
        await send({"type": "http.response.start", "status": 200, "headers": listed})
        await self._write(send, opening() if self._key else COMMENT)
        self._beats = loop.call_later(self._gateway.options.heartbeat, self._beat, send)
        if self._key:
            self._tasks.append(loop.create_task(self._part(send)))
        if self._first is not None:
            await self._tell(await self._first, send)
        async for event in self._events:
            await self._tell(event, send)
        if not self._gone:
            self._gone = True
            await send({"type": "http.response.body", "body": b""})

    async def _tell(self, event: Event, send: Send) -> None:
        if type(event) is Finished:
            self._error = event.result.error
        elif self._permission is not None and isinstance(event, (Asked, Answered)) and event.id == self._permission.id:
            # It is no event of the call, which another stream of the same key would have at the same position.
            await self._write(send, event_bytes(event))
            return
        if self._replay is None:
            await self._tell_one(event, send)
            return
        for unseen in self._replay.unseen(event):
            await self._tell_one(unseen, send)

    async def _tell_one(self, event: Event, send: Send) -> None:
        if self._key:
            self._position.pass_(event)
            await self._write(send, event_bytes(event, self._position.id(self._key)))
        else:
            await self._write(send, event_bytes(event))

    async def _write(self, send: Send, data: bytes) -> None:
        if self._gone:
            return
        self._wrote = time.monotonic()
        try:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        except (OSError, RuntimeError):
            # uvloop raises the second when the client has just closed the connection.
            self._gone = True

    def _beat(self, send: Send) -> None:
        """Write a heartbeat if nothing was written for long, and look again later."""
        pause = self._gateway.options.heartbeat
        idle = time.monotonic() - self._wrote
        if idle >= pause and not self._gone and (self._beating is None or self._beating.done()):
            self._beating = asyncio.get_running_loop().create_task(self._write(send, COMMENT))
            idle = 0.0
        self._beats = asyncio.get_running_loop().call_later(max(0.01, pause - idle), self._beat, send)

    async def _watch(self) -> None:
        """End the call when the client has gone; one with an idempotency key after the time that it has to come back."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if is_resumable(self._call):
            await asyncio.sleep(self._gateway.options.resume)
        self._cancel()

    def _cancel(self) -> None:
        if self._permission is not None:
            self._permission.withdraw()
        self._call.cancel()

    async def _part(self, send: Send) -> None:
        """End the stream, but not its call, when the gateway stops: the client goes on at another replica."""
        await self._gateway.stopping.wait()
        if not self._gone:
            self._gone = True
            await send({"type": "http.response.body", "body": b""})
            await asyncio.sleep(self._gateway.options.resume)
            self._cancel()
