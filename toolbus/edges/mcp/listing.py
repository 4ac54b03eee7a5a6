"""List tools in pages, in the order of their names."""

from __future__ import annotations

import asyncio
import base64
import binascii
from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, SubscriptionsListenRequestParams

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.view import ToolView
from toolbus.edges.mcp.client import CallerOf, Client, Context, reached
from toolbus.edges.mcp.tasks import Send, TaskMethods

PAGE = 250
"""Most tools of one page."""

TTL_MS = 10_000
"""Milliseconds for which a client without a subscription may keep a list."""

_MOST_CURSOR = 256
_name = itemgetter("name")

Definition = Mapping[str, Any]


def definitions_of(tools: ToolView) -> list[dict[str, Any]]:
    """Return the definitions of the tools, sorted by the names that clients use."""
    return sorted(tools.definitions("mcp"), key=_name)


def page_of(tools: ToolView, cursor: str | None, *, modern: bool) -> dict[str, Any]:
    """Return one page of the list of tools.

    A cursor names the tool that its page comes after, so that it stays good when tools come and go, and at every replica.

    Args:
        modern: the client is of revision 2026-07-28 or later, so any schema of data is allowed.

    Raises:
        MCPError: the cursor is none of ours.
    """
    listed = definitions_of(tools)
    start = 0 if cursor is None else bisect_right(listed, _place(cursor), key=_name)
    page = listed[start : start + PAGE]
    shown = page if modern else list(map(_older, page))
    found: dict[str, Any] = {"resultType": "complete", "tools": shown, "ttlMs": TTL_MS, "cacheScope": "private"}
    if start + PAGE < len(listed):
        found["nextCursor"] = _cursor(page[-1]["name"])
    return found


def _older(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a definition for a client of a revision that knows only objects as data."""
    schema = definition.get("outputSchema")
    if schema is None or schema.get("type") == "object":
        return definition
    return {name: value for name, value in definition.items() if name != "outputSchema"}


def _cursor(name: str) -> str:
    return base64.urlsafe_b64encode(f"after {name}".encode()).decode()


def _place(cursor: str) -> str:
    try:
        word, _, name = base64.b64decode(cursor[:_MOST_CURSOR].encode(), altchars=b"-_", validate=True).decode().partition(" ")
    except (binascii.Error, UnicodeError):
        word, name = "", ""
    if word != "after" or not name:
        raise MCPError(INVALID_PARAMS, "the cursor is none of this server's; list again without one")
    return name


# Seconds in which further changes are gathered: a worker that starts publishes several tools.
_GATHERING = 0.01


class ListWatch:
    """One list of tools that is watched; ``changed`` is set when it is another one than before."""

    def __init__(self, tools: ToolView) -> None:
        self._tools = tools
        self._last = definitions_of(tools)
        self.changed = asyncio.Event()

    def look(self) -> None:
        """Compare the list with what it was."""
        now = definitions_of(self._tools)
        # Definitions are the same objects until their tool changes, so this compares little.
        if now != self._last:
            self._last = now
            self.changed.set()

    async def tell(self, send: Send) -> None:
        """Send a notification of each change, until cancelled."""
        while True:
            await self.changed.wait()
            self.changed.clear()
            await send("notifications/tools/list_changed", {})


class ListChanges:
    """Follows the catalogue for all who watch a list of tools."""

    def __init__(self, bus: ToolBus) -> None:
        self._bus = bus
        self._watches: set[ListWatch] = set()

    def watch(self, tools: ToolView) -> ListWatch:
        """Return a watch of these tools, until ``stop``."""
        watch = ListWatch(tools)
        self._watches.add(watch)
        return watch

    def stop(self, watch: ListWatch) -> None:
        """End a watch."""
        self._watches.discard(watch)

    async def run(self) -> None:
        """Follow the catalogue until the bus closes."""
        catalogue, seen = self._bus.tools.catalogue, -1
        with self._bus.tools.subscribe() as subscription:
            async for _ in subscription:
                if catalogue.version == seen:
                    # What has gathered was seen by the last look.
                    continue
                await asyncio.sleep(_GATHERING)
                seen = catalogue.version
                for watch in [*self._watches]:
                    watch.look()


MOST = 1_024
"""Most subscriptions of one process."""

MOST_TASKS = 64
"""Most tasks of one subscription."""

_LONGEST_WAIT = 1.0


class Subscriptions:
    """Answers ``subscriptions/listen``; each request is one stream."""

    def __init__(self, bus: ToolBus, caller_of: CallerOf, changes: ListChanges, tasks: TaskMethods) -> None:
        self._bus = bus
        self._caller_of = caller_of
        self._changes = changes
        self._tasks = tasks
        self._open = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream in order."""
        self._closing.set()

    async def listen(self, context: Context, params: SubscriptionsListenRequestParams) -> dict[str, Any]:
        """Send what the client wants to hear of until it leaves, or this process stops.

        Raises:
            MCPError: it wants too much, or news of tasks without knowing of them.
        """
        if self._open >= MOST:
            raise MCPError(INTERNAL_ERROR, f"this process has {MOST} subscriptions and takes no more")
        wanted = params.notifications
        ids = _task_ids(wanted.model_extra or {})
        if ids is not None:
            Client.of(context).must_have_tasks("subscriptions/listen with taskIds")
        self._open += 1
        try:
            with reached():
                return await self._serve(context, bool(wanted.tools_list_changed), ids)
        finally:
            self._open -= 1

    async def _serve(self, context: Context, lists: bool, ids: list[str] | None) -> dict[str, Any]:
        caller, client = self._caller_of(context), Client.of(context)
        meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}
        tasks = [task for each in ids or () if (task := await self._bus.tasks.find(each, caller.user)) is not None]
        honoured: dict[str, Any] = {"toolsListChanged": True} if lists else {}
        if ids is not None:
            honoured["taskIds"] = [task.id for task in tasks]
        one = asyncio.Lock()

        async def send(method: str, params: dict[str, Any]) -> None:
            whole = {**params, "_meta": {**params.get("_meta", {}), **meta}}
            async with one:
                # The SDK's models of notifications have none for tasks.
                await context.session._request_outbound.notify(method, whole)

        watch = self._changes.watch(caller.sees(self._bus)) if lists else None
        try:
            await send("notifications/subscriptions/acknowledged", {"notifications": honoured})
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._tasks.follow(task, caller, send, elicits=client.elicits)) for task in tasks]
                if watch is not None:
                    running.append(group.create_task(watch.tell(send)))
                await self._closing.wait()
                for each in running:
                    each.cancel()
        finally:
            if watch is not None:
                self._changes.stop(watch)
        return {"resultType": "complete", "_meta": meta}


def _task_ids(extra: dict[str, Any]) -> list[str] | None:
    """Return the ids of the tasks that a client wants to hear of; None when it asks for none.

    Raises:
        MCPError: they are no list of ids, or too many.
    """
    said = extra.get("taskIds")
    if said is None:
        return None
    if not isinstance(said, list) or not all(isinstance(each, str) for each in said):
        raise MCPError(INVALID_PARAMS, "taskIds is a list of texts")
    if len(said) > MOST_TASKS:
        raise MCPError(INVALID_PARAMS, f"one subscription has at most {MOST_TASKS} tasks")
    return list(dict.fromkeys(said))
