"""Call APIs that others run: nothing is started, and their hosts must be public unless this host allows them by name."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from yarl import URL

from toolbus.bus.outbound import Guard
from toolbus.bus.values.results import ConfigurationError, ToolError, ToolResult
from toolbus.platform.backends.api import ApiSender, Authorization, Resolver, allows, not_allowed
from toolbus.platform.backends.http import Endpoint, HttpCalls, pairs
from toolbus.platform.backends.runner import CannotStart, Instance, Line, Output, Runner, impossible
from toolbus.platform.checks import check_url
from toolbus.platform.records import RecordedTool, ToolSource

_READY_WITHIN = 10.0


class RemoteInstance(Instance):
    """One API; it has no process."""

    def __init__(self, calls: HttpCalls, sender: ApiSender, authorization: Authorization, health: str) -> None:
        self._calls = calls
        self._sender = sender
        self._authorization = authorization
        self._health = health

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call."""
        try:
            await self._prepare(deadline)
            return await self._calls.call(arguments, output, user=user, deadline=deadline)
        except ToolError as error:
            if error.error.code == "http_401":
                self._authorization.forget()
            raise

    async def health(self, *, answered: bool = False) -> str:
        """Return why it is not well; an API is, as far as is known, unless its record names a path for that."""
        if not self._health:
            return ""
        try:
            await self._prepare(0.0)
        except ToolError as error:
            return error.error.message
        return await self._calls.get(self._health, _READY_WITHIN)

    async def stop(self, within: float) -> None:
        """Close all connections."""
        await self._calls.aclose()

    async def _prepare(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline or None):
                await self._authorization.prepare(self._sender.session)
        except TimeoutError:
            message = "the API's place of tokens did not answer within the time of the call, so it was not made"
            raise ToolError(message, type="unavailable", code="no_token", retryable=True) from None
        except ConfigurationError as error:
            raise ToolError(str(error), type="unavailable", code="no_secret") from None


class RemoteRunner(Runner):
    """Makes instances of APIs.

    Args:
        allowed: hosts that may have any address, as ``host`` or ``host:port``.
        guard: decides which addresses are public.
    """

    def __init__(self, allowed: Collection[str] = (), guard: Guard | None = None) -> None:
        self._allowed = {host.lower() for host in allowed}
        self._guard = guard or Guard()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> RemoteInstance:
        """Check that an API can be called, and return it."""
        kind, _, path = source.ready.partition(":")
        base, endpoint_path = source.api
        try:
            authorization = Authorization(source.auth)
            check_url(base, "$.url")
            for url in (base, *filter(None, [authorization.token_url])):
                self._check_address(url)
            headers, query = pairs(source.headers, authorization.headers), pairs(source.query, authorization.query)
            headers(), query()
        except (ConfigurationError, ToolError) as error:
            raise impossible(str(error)) from None
        endpoint = Endpoint(
            base=base,
            method=source.http_method.upper(),
            path=endpoint_path,
            shown=urlsplit(base).hostname or "",
            streams=tool.meta.stream_support,
            once=tool.running.effect == "once",
            headers=headers,
            query=query,
        )
        resolver = Resolver(self._allowed, self._guard)
        sender = ApiSender(base, resolver, resolver.check)
        calls = HttpCalls(endpoint, sender)
        instance = RemoteInstance(calls, sender, authorization, path if kind == "path" else "")
        try:
            reason = await instance.health()
        except BaseException:
            await calls.aclose()
            raise
        if reason:
            await calls.aclose()
            raise CannotStart(reason, permanent=resolver.has_refused)
        return instance

    def _check_address(self, url: str) -> None:
        """Refuse an address that is a number of a private one, which no resolver is asked about."""
        # The host is the one that the client connects to.
        host = URL(url).host or ""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return
        port = urlsplit(url).port or (443 if urlsplit(url).scheme == "https" else 80)
        if not allows(self._allowed, host, port) and not self._guard.permits(host):
            raise ConfigurationError(not_allowed(host))
