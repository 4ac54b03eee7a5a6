"""Guard an application: request ids, limits of bodies and headers, requests of other sites, and headers for browsers."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolbus.bus import telemetry
from toolbus.bus.support.waiting import either
from toolbus.bus.values.results import ConfigurationError
from toolbus.edges.gateway.bodies import EVENTS, Problem
from toolbus.edges.gateway.options import ADMITTED, Authenticator, Principal

_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,128}\Z")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]{1,255}\Z")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_ASKED = b"Authorization, Content-Type, Accept, Idempotency-Key, Last-Event-ID, Traceparent, Toolbus-Session, Toolbus-Timeout, X-Request-Id"
_TOLD = b"X-Request-Id, Retry-After, Traceparent, ETag, Link, WWW-Authenticate, Mcp-Session-Id"
_MCP = b", Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name"


RECHECK = 3.0
"""Seconds after which a stream of events looks again whether its sender's token still holds."""

_EVENTS = EVENTS.encode()


class GuardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of requests.

    Attributes:
        origins: sites (``https://app.example``) whose pages may use the gateway; ``*`` for all, which only tokens then keep out.
        body: most bytes of a body.
        body_within: seconds within which a body must have arrived.
    """

    origins: tuple[str, ...] = ()
    body: int = 16_777_216
    body_within: float = 30.0

    def __post_init__(self) -> None:
        """Refuse what is no origin.

        Raises:
            ConfigurationError: names it.
        """
        for origin in self.origins:
            if origin != "*" and _ORIGIN.match(origin) is None:
                raise ConfigurationError(f"a site is named like https://app.example, without a path, not {origin[:100]!r}")


def origin_of(url: str) -> str:
    """Return the origin of the pages at a URL, as browsers write it.

    Raises:
        ConfigurationError: it is no URL of http or https.
    """
    try:
        parts = urlsplit(url)
        found = f"{parts.scheme}://{parts.netloc}".lower()
    except ValueError:
        found = ""
    if _ORIGIN.match(found) is None:
        raise ConfigurationError(f"the gateway's URL is like https://tools.example, not {url[:100]!r}")
    return found


class Guards:
    """Refuses requests that are too large, too slow or of other sites."""

    def __init__(self, app: ASGIApp, options: GuardOptions | None = None) -> None:
        self._app = app
        self._options = options = options or GuardOptions()
        self._origins: Collection[bytes] = frozenset(origin.encode().lower() for origin in options.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Guarded(scope, receive, send, self._options, self._origins)
        refused = request.refusal()
        if refused is not None:
            await refused.response()(scope, receive, request.send)
        elif request.is_preflight:
            await request.answer_preflight()
        else:
            try:
                await self._app(scope, request.receive, request.send)
            finally:
                request.close()


class _Guarded:
    """One request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, options: GuardOptions, origins: Collection[bytes]) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._options, self._origins = options, origins
        self._seen, self._whole, self._deadline = 0, False, 0.0
        self._looking: asyncio.Task[None] | None = None
        self._over = False
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = headers.get(b"x-request-id", b"")
        self.origin = headers.get(b"origin", b"").lower()
        self.host = headers.get(b"host", b"").lower()
        self.wants = headers.get(b"access-control-request-method", b"")
        self._length = headers.get(b"content-length", b"")
        self._encoding = headers.get(b"content-encoding", b"").lower()
        self._hosts = sum(name == b"host" for name, _ in scope["headers"])
        if _ID.match(self.id) is None:
            self.id = secrets.token_hex(8).encode()
        scope["request_id"] = self.id.decode()

    @property
    def _is_allowed(self) -> bool:
        return b"*" in self._origins or self.origin in self._origins

    @property
    def is_preflight(self) -> bool:
        """True if a browser asks whether a page of another site may send a request."""
        return bool(self._scope["method"] == "OPTIONS" and self.origin and self.wants and self._is_allowed)

    def refusal(self) -> Problem | None:
        """Return why the request is not even looked at, or None."""
        if self._hosts > 1 or (self._scope["http_version"] != "1.0" and not self.host):
            return Problem(400, "invalid_host", "a request names one host, by its Host header")
        if self._encoding not in {b"", b"identity"}:
            detail = "the body is compressed (Content-Encoding); send it as it is"
            return Problem(415, "unsupported_media_type", detail, {"Accept-Encoding": "identity"})
        if self._length and (not self._length.isdigit() or len(self._length) > 15 or int(self._length) > self._options.body):
            return Problem(413, "body_too_large", f"the body has more than {self._options.body:,} bytes")
        own = self.origin.partition(b"://")[2] == self.host
        if self.origin and self._scope["method"] not in _READING and not own and not self._is_allowed:
            # A browser sends some requests of a foreign page without asking first.
            return Problem(403, "foreign_origin", "pages of other sites may not use this gateway; `--cors` names those that may")
        return None

    async def answer_preflight(self) -> None:
        """Answer a browser that the request may be sent."""
        headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _ASKED + _MCP),
            (b"access-control-max-age", b"600"),
            (b"content-length", b"0"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    async def receive(self) -> Message:
        """Return a part of the body, within its limits; after the body whatever comes.

        Raises:
            Problem: 408 or 413.
        """
        if self._whole:
            return await self._receive()
        if not self._deadline:
            self._deadline = time.monotonic() + self._options.body_within
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            detail = f"the body did not arrive within {self._options.body_within:g} s"
            raise Problem(408, "body_too_slow", detail, {"Connection": "close"}) from None
        if message["type"] != "http.request":
            self._whole = True
            return message
        self._seen += len(message.get("body", b""))
        if self._seen > self._options.body:
            raise Problem(413, "body_too_large", f"the body has more than {self._options.body:,} bytes")
        self._whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that every answer has; nothing after the end of the sender's token."""
        if self._over:
            return
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += [each for each in _ALWAYS if each[0] not in names]
            headers.append((b"x-request-id", self.id))
            if self._origins:
                headers.append((b"vary", b"Origin"))
                if self.origin and self._is_allowed:
                    headers += [(b"access-control-allow-origin", self.origin), (b"access-control-expose-headers", _TOLD)]
            message = {**message, "headers": headers}
            if telemetry.logs(logging.DEBUG) or message["status"] >= 500:
                self._log(message["status"])
            if ADMITTED in self._scope and any(name == b"content-type" and value.startswith(_EVENTS) for name, value in headers):
                self._looking = asyncio.create_task(self._look(*self._scope[ADMITTED]))
        await self._send(message)

    def close(self) -> None:
        """Look after the request no longer."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self, principal: Principal, authenticator: Authenticator) -> None:
        """End a stream of events soon after the sender's token has ended; its application then sees a client that has gone."""
        connection = HTTPConnection(self._scope)
        while True:
            await asyncio.sleep(RECHECK)
            if not await authenticator.holds(connection, principal):
                break
        telemetry.log.warning("gateway.refused", reason="the token of a stream has ended", path=self._scope["path"][:200])
        self._over = True
        with contextlib.suppress(OSError, RuntimeError):
            await self._send({"type": "http.response.body", "body": b""})

    def _log(self, status: int) -> None:
        about = {"request": self.id.decode(), "method": self._scope["method"], "path": self._scope["path"][:200], "status": status}
        if status >= 500:
            telemetry.log.warning("gateway.failed", **about)
        else:
            telemetry.log.debug("gateway.answered", **about)


LOOPBACK = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class KnownHosts:
    """Answers 421 to requests for other hosts: a page may give its own name this machine's address, and then read what it likes.

    Args:
        app: takes the other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # Most requests come to the same place, which is known with its port.
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "lifespan":
            for name, value in scope["headers"]:
                if name == b"host" and value not in self._known:
                    if _name_of(value) not in LOOPBACK:
                        detail = "this gateway is open to programs on its own machine, which reach it as localhost; others need tokens"
                        await Problem(421, "unknown_host", detail).response()(scope, receive, send)
                        return
                    if len(self._known) < 100:
                        self._known.add(value)
        await self._app(scope, receive, send)


def _name_of(host: bytes) -> bytes:
    name, _, port = host.lower().rpartition(b":")
    return name if name and port.isdigit() else host.lower()


T = TypeVar("T")


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled when the client disconnects; the body must have been read.

    Raises:
        Problem: 499, which nobody reads.
    """
    running, _ = await either(work, disconnected(request.receive))
    if running.cancelled():
        raise Problem(499, "disconnected", "the client has gone")
    return running.result()


async def disconnected(receive: Receive) -> None:
    """Wait until the client of a request disconnects; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
