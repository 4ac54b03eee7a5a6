"""``ServerConnection``: one client of an MCP server that all calls share, made again when the server ends or hangs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import mcp_types
import msgspec
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import reason_of, type_name
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.bus.worker.invocation import Invocation
from toolbus.edges.mounts.answers import bad_answer, error_of, is_over, left_out_of, sifted
from toolbus.edges.mounts.mount import _MOST_PAGES
from toolbus.edges.mounts.options import Command, InProcess, Options, Target
from toolbus.edges.mounts.stdio import StderrLog

# A server that has run for so many seconds is started again at once.
_STABLE = 30.0
# Seconds within which a server that works answers when it is asked for a sign of life; calls go on meanwhile.
_QUICK = 1.0
_CHANGES = (mcp_types.ToolListChangedNotification, mcp_types.ResourceListChangedNotification, mcp_types.PromptListChangedNotification)


class ServerConnection:
    """Keeps a client connected while ``run`` runs.

    Args:
        mount: the name of the mount.
        target: the server.
        options: its limits.
        on_listing: called with what the server lists, at the start and after each change.

    Attributes:
        starts: how often the server was started.
        calls_running: how many calls it runs.
    """

    def __init__(self, mount: str, target: Target, options: Options, on_listing: Callable[[Listing], Awaitable[None]]) -> None:
        self._mount = mount
        self._target = target
        self._options = options
        self._on_listing = on_listing
        self._client: Client | None = None
        # Set while calls may be sent; not while the server starts, or may hang.
        self._ready = asyncio.Event()
        self.calls_running = 0
        self._suspected = asyncio.Event()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason = ""
        self._legacy = False
        self._late = False
        self._next_start = 0.0
        self.starts = 0

    async def run(self) -> None:
        """Stay connected until cancelled; the first start is given up when it fails.

        Raises:
            ConfigurationError: the server can't be started at all; says why.
        """
        delay = self._options.first_delay
        while True:
            began = time.monotonic()
            reason = await self._live()
            if not self.starts and (self._legacy or self._late or isinstance(self._target, InProcess)):
                raise ConfigurationError(f"{self._target.shown} could not be mounted: {reason}")
            if not self.starts:
                # Servers of long ago end at a request that they do not know, such as the newest protocol's first.
                self._legacy = True
                continue
            delay = self._options.first_delay if time.monotonic() - began > _STABLE else min(2 * delay, self._options.longest_delay)
            wait = delay * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
            self._next_start = time.monotonic() + wait
            telemetry.log.warning("mount.restarting", mount=self._mount, reason=reason, after=round(wait, 2))
            await asyncio.sleep(wait)

    def restart(self, reason: str) -> None:
        """End the server; it is started again."""
        if not self._ended.is_set():
            self._reason = reason
            self._ended.set()
            # Calls that come now wait for the next start.
            self._ready.clear()

    @asynccontextmanager
    async def calling(self, call: Invocation, effect: str) -> AsyncIterator[Client]:
        """Provide the connected client for one call; a call that is cancelled makes the server suspected to hang.

        Raises:
            ToolError: ``unavailable`` when the server is not there in the time that the call has, or within ``options.patience`` seconds
                if that is less; or the server or the connection to it failed.
        """
        client = await self._connected(min(call.remaining, self._options.patience))
        self.calls_running += 1
        try:
            yield client
        except asyncio.CancelledError:
            self._suspected.set()
            raise
        except MCPError as error:
            if is_over(error):
                self.restart("it has forgotten the session")
            raise error_of(error, effect) from None
        except ToolError:
            raise
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            # What the SDK says of answers that no server may give.
            raise bad_answer(str(error)) from None
        finally:
            self.calls_running -= 1

    async def _connected(self, patience: float) -> Client:
        if not self._ready.is_set():
            await at_most(patience, self._ready.wait())
        if not self._ready.is_set():
            wait = max(0.0, self._next_start - time.monotonic())
            message = f"the mounted server {self._mount!r} is not running now ({self._reason or 'it starts'})"
            raise ToolError(message, type="unavailable", code="mount_down", retryable=True, retry_after=round(wait, 2) or None)
        if self._client is None:
            raise ToolError(f"the mounted server {self._mount!r} has just ended", type="unavailable", code="mount_down", retryable=True)
        return self._client

    # -- one life ---------------------------------------------------------------------------------

    async def _live(self) -> str:
        """Start the server, keep to it until it ends, and return why it did."""
        self._reason = ""
        for event in (self._ended, self._suspected, self._changed):
            event.clear()
        stderr = StderrLog(self._mount)
        try:
            await self._serve(stderr)
        except ConfigurationError as error:
            if not self.starts:
                raise
            self._reason = str(error)
        except TimeoutError:
            self._late = not self._reason
            self._reason = self._reason or f"it did not answer within {self._options.start:g} s"
        except Exception as error:  # noqa: BLE001 - whatever a server or the SDK does, the mount goes on
            self._reason = self._reason or _innermost(error)
        finally:
            self._client = None
            self._ready.clear()
        return f"{self._reason}; its last words: {stderr.last_words}" if stderr.last_words else self._reason

    async def _serve(self, stderr: StderrLog) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._options.start) as limit:
                watching = asyncio.create_task(self._expire(limit))
                try:
                    client = await stack.enter_async_context(await self._new_client(stack, stderr))
                    await self._on_listing(await list_server(client, self._mount, self._options.most_tools))
                finally:
                    watching.cancel()
            self._client = client
            self.starts += 1
            telemetry.log.info("mount.connected", mount=self._mount, protocol=client.protocol_version, start=self.starts)
            self._ready.set()
            async with anyio.create_task_group() as tasks:
                for watch in (self._watch_changes, self._listen, self._watch_life):
                    tasks.start_soon(watch, client)
                await self._ended.wait()
                tasks.cancel_scope.cancel()

    async def _expire(self, limit: asyncio.Timeout) -> None:
        """End the start of a server that has ended meanwhile."""
        await self._ended.wait()
        limit.reschedule(asyncio.get_running_loop().time())

    async def _new_client(self, stack: AsyncExitStack, stderr: StderrLog) -> Client:
        target, most, legacy = self._target, self._options.most_bytes, self._legacy
        server: Any
        if isinstance(target, Command):
            from toolbus.edges.mounts.stdio import stdio  # noqa: PLC0415 - each kind of target loads its own

            server = stdio(target, most, stderr, self.restart)
        elif isinstance(target, InProcess):
            server = await stack.enter_async_context(_entered(target.server))
            # FastMCP's Context tells progress to those only who have sent a token, as over streams.
            legacy = legacy or server is not target.server
        else:
            from toolbus.edges.mounts.http import http  # noqa: PLC0415 - as above

            server = http(target, most)
        mode = "legacy" if legacy else "auto"
        if not isinstance(target, InProcess):
            server = sifted(server, lambda: client.protocol_version)
        info = mcp_types.Implementation(name="toolbus", version="1")
        client = Client(server, message_handler=self._on_message, client_info=info, mode=mode)
        return client

    async def _on_message(self, message: object) -> None:
        if isinstance(message, _CHANGES):
            self._changed.set()

    async def _listen(self, client: Client) -> None:
        """Hear of changes from a server of the newest protocol, which tells only those who ask."""
        capabilities = client.server_capabilities
        listed = (capabilities.tools, capabilities.resources, capabilities.prompts)
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not any(each is not None and each.list_changed for each in listed):
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True, resources_list_changed=True, prompts_list_changed=True) as heard:
                    # What changed since it was listed was told to nobody.
                    self._changed.set()
                    async for _ in heard:
                        self._changed.set()
            except (ListenNotSupportedError, MCPError):
                return
            except SubscriptionLost:
                pass
            await asyncio.sleep(self._options.between)

    async def _watch_changes(self, client: Client) -> None:
        """List again after changes, when it has been quiet for a moment, but not too often."""
        options = self._options
        while True:
            await self._changed.wait()
            latest = time.monotonic() + options.between
            while self._changed.is_set() and time.monotonic() < latest:
                self._changed.clear()
                await asyncio.sleep(options.quiet)
            self._changed.clear()
            try:
                async with asyncio.timeout(options.start):
                    await self._on_listing(await list_server(client, self._mount, options.most_tools))
            except (MCPError, ValueError, TimeoutError) as error:
                telemetry.log.warning("mount.list_failed", mount=self._mount, error=reason_of(error))
            await asyncio.sleep(options.between)

    async def _watch_life(self, client: Client) -> None:
        """Ask a server that left a call unanswered for a sign of life; without one it is started anew, once no call could still end."""
        while True:
            await self._suspected.wait()
            self._suspected.clear()
            if await _answers(client, _QUICK):
                continue
            # Calls that come now wait, so that those that run come to an end.
            self._ready.clear()
            while not await _answers(client, self._options.patience):
                if not self.calls_running:
                    self.restart(f"it left a call unanswered, and gave no sign of life for {self._options.patience:g} s")
                if self._ended.is_set():
                    return
                await asyncio.sleep(_QUICK)
            if not self._ended.is_set():
                self._ready.set()


async def _answers(client: Client, seconds: float) -> bool:
    """Return whether a server answers anything at all."""
    with anyio.move_on_after(seconds):
        try:
            if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                await client.session.send_discover(client.protocol_version)
            else:
                await client.session.send_ping()
        except MCPError as error:
            # A refusal is a sign of life, too.
            return error.code not in {mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT}
        return True
    return False


@asynccontextmanager
async def _entered(server: Any) -> AsyncIterator[Any]:
    """Provide the SDK's server within a server object, whose life has begun."""
    begun = getattr(server, "_lifespan_manager", None)
    if begun is None:
        yield server
        return
    # FastMCP has no public name for either; its own in-memory client uses them.
    async with begun():
        yield server._mcp_server


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return reason_of(error) or type_name(error)


class Listing(msgspec.Struct, frozen=True):
    """The tools of a server, and whether it has more than tools.

    Attributes:
        tools: in its own order, each name once.
        resources, prompts: whether it has any.
        left_out: tools that can't be read, and why.
    """

    tools: tuple[mcp_types.Tool, ...] = ()
    resources: bool = False
    prompts: bool = False
    left_out: Mapping[str, str] = {}


async def list_server(client: Client, mount: str, most: int) -> Listing:
    """Ask a server what it has.

    Args:
        client: a connection to it.
        mount: the name of the mount, for the log.
        most: tools that are read; more are left out, which is logged.
    """
    capabilities = client.server_capabilities
    found: dict[str, mcp_types.Tool] = {}
    left_out: dict[str, str] = {}
    if capabilities.tools is not None:
        async for page in pages(lambda cursor: client.list_tools(cursor=cursor, cache_mode="refresh")):
            left_out.update(left_out_of(page))
            for tool in page.tools:
                if tool.name in found:
                    telemetry.log.warning("mount.tool_left_out", mount=mount, tool=tool.name, reason="the server lists that name twice")
                elif len(found) < most:
                    found[tool.name] = tool
                else:
                    telemetry.log.warning("mount.tools_cut", mount=mount, most=most, advice="serve some of them: --include, --most-tools")
                    return _listing(found, capabilities, left_out)
    return _listing(found, capabilities, left_out)


def _listing(found: dict[str, mcp_types.Tool], capabilities: Any, left_out: dict[str, str]) -> Listing:
    return Listing(tuple(found.values()), capabilities.resources is not None, capabilities.prompts is not None, left_out)


async def pages(ask: Callable[[str | None], Awaitable[Any]]) -> Any:
    """Yield the pages of a list; one that does not come to an end is given up."""
    cursor, seen = None, set[str]()
    for _ in range(_MOST_PAGES):
        page = await ask(cursor)
        yield page
        cursor = page.next_cursor
        if not cursor or cursor in seen:
            return
        seen.add(cursor)
