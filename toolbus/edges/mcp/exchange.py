"""``SessionExchange``: a call of a tool in a session, whose answer its client may come back for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, cast

import msgspec
from mcp_types import INVALID_REQUEST
from starlette.types import Message, Receive, Send

from toolbus.bus import telemetry
from toolbus.bus.broker.held.mcp import McpRequest, McpSession
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.encoding import DECODE_ERRORS, encode_data
from toolbus.bus.values.events import Event
from toolbus.bus.values.results import BrokerError
from toolbus.edges.gateway.calls import Position, Replay, named_event
from toolbus.edges.gateway.guards import disconnected
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.client import Client, Exchange, form

PATIENCE = 2.0
"""Seconds that the server has to answer before a client learns that it is away."""

PING = 15.0
"""Seconds of silence after which a connection is shown to live, as the SDK does."""

PRIMED = "2025-11-25"
"""The first revision whose clients understand an event without a message."""

CANCELLED = -32800
"""The code of the error with which a request ends that was cancelled, as the SDK's."""

END = "end "
"""The prefix of the id of a stream's last event."""

STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
"""The headers of a stream of events."""

COMMENT = b": ping\r\n\r\n"
"""A line that clients leave out: it shows that the connection lives."""

# Seconds between two looks at whether a call that takes long was cancelled at another gateway.
_LOOK = 1.0
_RETRY_MS = 1_000
_MOST_PROGRESS = 1e15
_MOST_NAME = 100
_JSON = (b"content-type", b"application/json")
_PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,12})\.([0-9]{1,9})\.([0-9]{1,16}(?:\.[0-9]{1,12})?) ([\x20-\x7e]{1,100}?)(\??)").fullmatch


class RefusalError(Exception):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, message: str, code: int = INVALID_REQUEST) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SessionCaller(NamedTuple):
    """The sender of a request in a session."""

    principal: Principal
    digest: str
    session: McpSession


class Place(NamedTuple):
    """The place of a client in the events of a call, as the id of each event says it."""

    position: Position
    progress: float
    request: int | str
    asked: bool

    @classmethod
    def read(cls, shown: str) -> Place:
        """Return the place that an id stands for.

        Raises:
            RefusalError: it is no such id.
        """
        found = _PLACE(shown)
        with contextlib.suppress(*DECODE_ERRORS):
            if found is not None:
                request = msgspec.json.decode(found[5], type=int | str)
                return cls(Position(int(found[1]), int(found[2]), int(found[3])), float(found[4]), request, bool(found[6]))
        raise RefusalError(400, "Bad Request: Last-Event-ID is not the id of an event of this server")


class SessionExchange(Exchange):
    """One call of a tool in a session, and the stream of events that its answer becomes when it takes long.

    A client that loses the stream comes back, perhaps to another gateway, with the id of the last event that it has. It stands for the
    request and a position in the events of its call, which has an idempotency key: so the request is made again, joins the call, and
    what the client has is left out.
    """

    def __init__(
        self,
        bus: ToolBus,
        closing: asyncio.Event,
        caller: SessionCaller,
        id: int | str,
        request: McpRequest,
        receive: Receive,
        send: Send,
    ) -> None:
        self._bus = bus
        self._caller = caller
        self._closing = closing
        self._receive = receive
        self._send = send
        self.id = id
        self.request = request
        self.client = Client(False, caller.session.forms, False, request.token is not None)
        self.tool: Tool | None = None
        self.cancelled = self.parted = False
        self.task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._position = Position()
        self._replay: Replay | None = None
        self._asked = False
        self._call: Call | None = None
        self._opened: asyncio.Future[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        # Whether the request is kept, and whether its client has an id with which it can come back.
        self._kept = self._named = False
        self._gone = False
        self._leaving: asyncio.Future[None] | None = None
        self._finished = False

    @property
    def own_key(self) -> str:
        """The idempotency key that stands for this request of this session."""
        return f"mcp {self._own_digest}"

    @cached_property
    def _own_digest(self) -> str:
        return request_digest(self._caller, self.id)

    @cached_property
    def _name(self) -> str:
        """The request's id as it stands in the ids of events; empty when it can't."""
        shown = msgspec.json.encode(self.id).decode()
        return shown if len(shown) <= _MOST_NAME and shown.isascii() and shown.isprintable() else ""

    def come_back(self, place: Place) -> None:
        """Leave out the events that the client has."""
        self._kept = self._named = True
        self._replay = Replay(msgspec.structs.replace(place.position))
        self._position, self.progress, self._asked = place.position, place.progress, place.asked

    # -- what a call's events become --------------------------------------------------------------

    def unseen(self, event: Event) -> Iterable[Event]:
        """Return what the client does not have of an event of the call."""
        events = (event,) if self._replay is None else tuple(self._replay.unseen(event))
        for each in events:
            self._position.pass_(each)
        return events

    def place(self, *, asked: bool = False) -> str:
        """Return what stands for the events until now, and for whether the client's user is asked."""
        if not self._name:
            return ""
        return self._position.id(f"{min(self.progress, _MOST_PROGRESS):f} {self._name}{'?' if asked else ''}")

    async def report(self, done: float, total: float | None, message: str | None, place: str) -> None:
        """Send progress."""
        params: dict[str, Any] = {"progressToken": self.request.token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self._tell({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}, place)

    async def ask(self, id: str, text: str) -> bool | None:
        """Ask the client's user, whose answer may come to any gateway and is taken in there; the question has the confirmation's id."""
        if self._asked and id == self.question:
            # The client had the question before it came back.
            return None
        request = form(text)
        if self._caller.session.version < PRIMED:
            request["params"] = {name: value for name, value in request["params"].items() if name != "mode"}
        await self._begun()
        if self._kept:
            await self._bus.mcp_sessions.ask(self._own_digest, id)
        await self._tell({"jsonrpc": "2.0", "id": id, **request}, self.place(asked=True))
        return None

    async def withdraw(self, id: str) -> None:
        """Tell the client that a question has its answer, or waits no longer."""
        params = {"requestId": id, "reason": "it was answered, or waits no longer"}
        await self._tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}, self.place())

    async def permitted(self) -> None:
        """Take note that a person has allowed the call, so that nobody is asked again when the client comes back."""
        self.allowed = True
        if self._kept:
            await self._bus.mcp_sessions.permit(self._own_digest)

    def making(self, call: Call) -> None:
        """Take note of the call, which goes on without this gateway once its client can come back to another one."""
        self._call = call
        call.lasting = self._named and bool(self.key)

    def _name_sent(self) -> None:
        self._named = True
        if self._call is not None and self.key and not self.cancelled:
            self._call.lasting = True

    # -- the answer -------------------------------------------------------------------------------

    def cancel(self) -> None:
        """End the call as its client wants."""
        if not (self._finished or self.cancelled):
            self.cancelled = True
            if self._call is not None:
                self._call.lasting = False
            self.task.cancel()

    def _part(self) -> None:
        """Leave the rest to the gateway to which the client comes back."""
        if not (self._finished or self.cancelled):
            self.parted = True
            self.task.cancel()

    async def finish(self, answer: dict[str, Any]) -> bool:
        """Send the answer, and keep it while the client may come back for it; False when the client has left before.

        A client that has left comes back for more than the answer: it joins the call, which keeps all that has happened.
        """
        self._finished = True
        if self._opened is None and not self.cancelled:
            await send_json(self._send, answer)
            return True
        if self._opened is None:
            # Clients read a stream to its end when they have closed meanwhile, but not every one reads JSON then.
            await self.end(answer)
            return True
        await asyncio.shield(self._opened)
        left = self._gone or (self._leaving is not None and self._leaving.done())
        # The key of a call that failed may be free by now, so that the call would run again.
        delivered = not (left and self.key) or self.cancelled or "error" in answer or bool(answer["result"].get("isError"))
        body = encode_data(answer)
        if self._kept and delivered:
            store = self._bus.mcp_sessions
            with contextlib.suppress(BrokerError, TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await (store.drop(self._own_digest) if self.cancelled else store.answer(self._own_digest, body))
        await self._write(named_event(b"message", body, f"{END}{self._own_digest}"), last=True)
        return delivered

    async def end(self, answer: dict[str, Any] | bytes) -> None:
        """Send a stream of one answer, which is known."""
        body = answer if isinstance(answer, bytes) else encode_data(answer)
        await self._send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await self._write(named_event(b"message", body, f"{END}{self._own_digest}"), last=True)

    def close(self) -> None:
        """Look after the stream no longer."""
        if self._keeping is not None:
            self._keeping.cancel()

    def begin(self) -> None:
        """Begin the stream, unless it has begun or is not needed any more."""
        if self._opened is None and not self._finished:
            loop = asyncio.get_running_loop()
            self._opened = loop.create_future()
            self._keeping = loop.create_task(self._keep())

    async def _keep(self) -> None:
        """Keep the request and open the stream; then look after both until the end of the call."""
        opened = cast("asyncio.Future[None]", self._opened)
        try:
            await self._keep_request()
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM})
            if self._kept and self._caller.session.version >= PRIMED:
                await self._write(priming(self.place()))
                self._name_sent()
        except (OSError, RuntimeError):
            self._gone = True
        finally:
            if not opened.done():
                opened.set_result(None)
        leaving = self._leaving = asyncio.ensure_future(disconnected(self._receive))
        closing = asyncio.ensure_future(self._closing.wait())
        # The last one is never done, so that there is something to wait for.
        waits: set[asyncio.Future[Any]] = {leaving, closing, asyncio.get_running_loop().create_future()}
        told = loop_time()
        try:
            while True:
                done, waits = await asyncio.wait(waits, timeout=_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if closing in done and self._named:
                    await self._write(b"", last=True)
                    self._part()
                self._gone = self._gone or leaving in done
                if self._kept:
                    told = await self._look(told)
                if not self._gone and loop_time() - told >= PING:
                    await self._write(COMMENT)
                    told = loop_time()
        finally:
            leaving.cancel()
            closing.cancel()

    async def _keep_request(self) -> None:
        if self._kept or not self.place():
            return
        try:
            async with asyncio.timeout(PATIENCE):
                self._kept = True
                wanted = await self._bus.mcp_sessions.keep(self._own_digest, self.request)
        except (BrokerError, TimeoutError) as error:
            self._kept = False
            telemetry.log.warning("mcp.request_unkept", error=str(error))
            return
        if self.allowed:
            await self._bus.mcp_sessions.permit(self._own_digest)
        if not wanted:
            self.cancel()

    async def _look(self, told: float) -> float:
        """Keep the request for longer, and end the call if it was cancelled at another gateway."""
        store = self._bus.mcp_sessions
        with contextlib.suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if await store.is_cancelled(self._own_digest):
                    self.cancel()
                elif loop_time() - told >= PING:
                    await store.renew(self._own_digest)
                    if self._gone:
                        return loop_time()
        return told

    async def _begun(self) -> None:
        self.begin()
        if self._opened is not None:
            await asyncio.shield(self._opened)

    async def _tell(self, message: dict[str, Any], place: str) -> None:
        await self._begun()
        if not self._finished:
            await self._write(named_event(b"message", encode_data(message), place if self._kept else ""))
            if self._kept:
                self._name_sent()

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        if self._gone:
            return
        self._gone = last
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        except (OSError, RuntimeError):
            # uvloop raises the second when the client has just closed the connection.
            self._gone = True


def loop_time() -> float:
    """Return the time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


def request_digest(caller: SessionCaller, id: int | str) -> str:
    """Return what stands for a request of a session."""
    return session_digest(caller.digest, msgspec.json.encode(id).decode())


def priming(id: str) -> bytes:
    """Return an event without a message: its id is what the client comes back with, after so many milliseconds."""
    return b"retry: %d\nid: %b\ndata:\n\n" % (_RETRY_MS, id.encode("ascii"))


def failure(id: object, code: int, message: str, data: object = None) -> dict[str, Any]:
    """Return the answer to a request that has no result."""
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return {"jsonrpc": "2.0", "id": id, "error": error}


async def read_body(receive: Receive, most: int, read: list[Message]) -> bytes | None:
    """Return the body of a request, and put the messages that had it into ``read``; None when it is longer, or its client has gone."""
    size = 0
    while True:
        message = await receive()
        read.append(message)
        size += len(message.get("body", b""))
        if message["type"] != "http.request" or size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(each.get("body", b"") for each in read)


async def send_json(send: Send, message: dict[str, Any], *headers: tuple[bytes, bytes], status: int = 200) -> None:
    """Send a message as the whole answer."""
    body = encode_data(message)
    listed = [_JSON, (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
