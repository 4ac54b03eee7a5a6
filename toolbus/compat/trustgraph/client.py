"""The caller's side with TrustGraph's names: a client of one service's queues, the tool that an agent holds, and filters of tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.schema.documents import unique
from toolbus.bus.values.events import Finished, Reset, Text
from toolbus.bus.values.results import ErrorInfo
from toolbus.bus.values.settings import Settings
from toolbus.compat.trustgraph.messages import DEFAULT_USER, Error, ToolServiceRequest, ToolServiceResponse, request_of, text_of

_Object = Mapping[str, Any] | None
_Callback = Callable[[str], Awaitable[None]]

TIMED_OUT = "deadline_exceeded"

# Seconds that a call waits for a service to appear.
_WAIT = 10.0


class ToolServiceTimeout(RuntimeError, TimeoutError):
    """The service did not answer in time."""


class ToolServiceClient:
    """Calls the service of a request queue. Concurrent first use is safe.

    Args:
        request_topic: the request queue, as the tool-service descriptor names it.
        response_topic: kept for compatibility; answers come to this process's own stream.
        bus: an open bus; without one the client opens its own at the first call, with ``settings``.
    """

    def __init__(
        self, request_topic: str, response_topic: str = "", *, bus: ToolBus | None = None, settings: Settings | None = None
    ) -> None:
        self.request_topic = request_topic
        self.response_topic = response_topic
        self._own = bus is None
        self._bus = ToolBus(settings=settings) if bus is None else bus

    async def start(self) -> None:
        """Connect; do nothing when connected."""
        if self._own:
            await self._bus.open()

    async def stop(self) -> None:
        """Disconnect; running calls end with an error."""
        if self._own:
            await self._bus.aclose()

    @overload
    async def call(self, config: _Object, arguments: _Object, timeout: float = 600) -> str: ...
    @overload
    async def call(self, user: str | None, config: _Object, arguments: _Object, timeout: float = 600) -> str: ...
    async def call(self, *values: Any, **named: Any) -> str:
        """Call the service and return its whole observation; the user may come first, as before April 2026.

        Raises:
            RuntimeError: the service failed; it carries the service's message, and is also a ``TimeoutError`` after a timeout.
        """
        request, timeout, _ = request_of("call", values, named)
        response = await self.request(request, timeout=timeout)
        if response.error:
            raise _exception(response.error)
        return response.response

    @overload
    async def call_streaming(self, config: _Object, arguments: _Object, callback: _Callback, timeout: float = 600) -> str: ...
    @overload
    async def call_streaming(
        self, user: str | None, config: _Object, arguments: _Object, callback: _Callback, timeout: float = 600
    ) -> str: ...
    async def call_streaming(self, *values: Any, **named: Any) -> str:
        """Call the service, and pass each piece to ``callback`` as it arrives; the user may come first, as before April 2026.

        Raises:
            RuntimeError: as for ``call``, and when another attempt produced different text than was passed on.
        """
        request, timeout, callback = request_of("call_streaming", values, named, callback=True)
        pieces: list[str] = []

        async def recipient(response: ToolServiceResponse) -> bool:
            if response.error:
                raise _exception(response.error)
            if response.response:
                pieces.append(response.response)
                await callback(response.response)
            return response.end_of_stream

        await self.request(request, timeout=timeout, recipient=recipient)
        return "".join(pieces)

    async def request(
        self,
        request: ToolServiceRequest,
        timeout: float = 600,
        recipient: Callable[[ToolServiceResponse], Awaitable[bool]] | None = None,
    ) -> ToolServiceResponse:
        """Send a request; pass every response to ``recipient`` until it returns true, and return the last one.

        Without a recipient the one response carries everything.
        """
        await self.start()
        config, arguments = (json.loads(text or "{}", object_pairs_hook=unique) for text in (request.config, request.arguments))
        service = self._bus.service(self.request_topic)
        response = ToolServiceResponse()
        async with service.stream(request.user, config, arguments, timeout=timeout, wait=min(timeout, _WAIT)) as call:
            if recipient is None:
                return _last(await call.result())
            async for event in call.events():
                if isinstance(event, Text):
                    response = ToolServiceResponse(response=event.text)
                elif isinstance(event, Reset):
                    response = ToolServiceResponse(Error("stream-reset", "another attempt produced different text"), end_of_stream=True)
                elif isinstance(event, Finished):
                    # Its text was already passed on piece by piece.
                    response = ToolServiceResponse(_error(event.result.error), end_of_stream=True)
                else:
                    continue
                if await recipient(response) or response.end_of_stream:
                    break
        return response


class ToolServiceImpl:
    """A configured tool of a tool service, as an agent holds it.

    Args:
        context: its ``_user`` is the user that calls are made for; ``trustgraph`` without one.
        request_queue, response_queue: queues of the tool-service descriptor.
        config_values: values of the tool descriptor.
        arguments: arguments as shown to the model.
        processor: the agent's processor; its ``tool_service_clients`` and ``bus`` are shared, if it has them.
    """

    def __init__(
        self,
        context: Any,
        request_queue: str,
        response_queue: str,
        config_values: Mapping[str, Any] | None = None,
        arguments: Sequence[Any] | None = None,
        processor: Any = None,
    ) -> None:
        self.context = context
        self.request_queue = request_queue
        self.response_queue = response_queue
        self.config_values = dict(config_values or {})
        self.arguments = list(arguments or [])
        self.processor = processor
        self._client: ToolServiceClient | None = None
        self._lock = asyncio.Lock()

    def get_arguments(self) -> list[Any]:
        """Return the arguments as shown to the model."""
        return self.arguments

    async def invoke(self, **arguments: Any) -> str:
        """Call the service.

        Raises:
            RuntimeError: the service failed; it carries the service's message.
        """
        client = await self._get_or_create_client()
        user = getattr(self.context, "_user", None) or DEFAULT_USER
        return text_of(await client.call(user, self.config_values, arguments))

    async def aclose(self) -> None:
        """Disconnect the client, if this tool created it and does not share it."""
        if self._client is not None and self.request_queue not in self._shared():
            await self._client.stop()
        self._client = None

    async def _get_or_create_client(self) -> ToolServiceClient:
        async with self._lock:
            if self._client is None:
                bus = getattr(self.processor, "bus", None)
                client = ToolServiceClient(self.request_queue, self.response_queue, bus=bus if isinstance(bus, ToolBus) else None)
                # Another tool may have been first; a client that was not started needs no closing.
                client = self._shared().setdefault(self.request_queue, client)
                await client.start()
                self._client = client
            return self._client

    def _shared(self) -> dict[str, ToolServiceClient]:
        clients = getattr(self.processor, "tool_service_clients", None)
        return clients if isinstance(clients, dict) else {}


def _exception(error: Error) -> RuntimeError:
    kind = ToolServiceTimeout if error.type == TIMED_OUT else RuntimeError
    return kind(error.message or error.type)


def _error(error: ErrorInfo | None) -> Error | None:
    if error is None:
        return None
    kind = error.type if error.type == TIMED_OUT else error.code or error.type
    return Error(kind, error.message or str(error))


def _last(result: Any) -> ToolServiceResponse:
    text = "" if result.error is not None else result.observation
    return ToolServiceResponse(_error(result.error), text, end_of_stream=True)


T = TypeVar("T")

DEFAULT_GROUP = "default"
FIRST_STATE = "undefined"
EVERY = "*"


def filter_tools_by_group_and_state(
    tools: Mapping[str, T], requested_groups: Iterable[str] | None = None, current_state: str | None = None
) -> dict[str, T]:
    """Return the tools that are in one of the groups and are offered in the state.

    Args:
        tools: by name: tools of a bus (``bus.tools``), or objects whose ``config`` is the tool's document.
        requested_groups: ``default`` when None.
        current_state: ``undefined`` when empty.
    """
    groups = [DEFAULT_GROUP] if requested_groups is None else list(requested_groups)
    return {name: tool for name, tool in tools.items() if _is_tool_available(tool, groups, current_state or FIRST_STATE)}


def get_next_state(tool: object, current_state: str) -> str:
    """Return the state after a tool has run: its ``state``, or the current one when it has none."""
    return str(_config(tool).get("state") or current_state)


def validate_tool_config(config: Mapping[str, Any]) -> None:
    """Check ``group``, ``state`` and ``applicable-states`` of a tool's document.

    Raises:
        ValueError: one of them has another type.
    """
    for key in ("group", "applicable-states"):
        if key in config and not isinstance(config[key], list):
            raise ValueError(f"a tool's {key!r} field must be a list of strings")
        if not all(isinstance(each, str) for each in config.get(key, ())):
            raise ValueError(f"{'All group names' if key == 'group' else 'All state names'} must be strings")
    if "state" in config and not isinstance(config["state"], str):
        raise ValueError("a tool's 'state' field must be a string")


def _is_tool_available(tool: object, requested_groups: Iterable[str], current_state: str) -> bool:
    config, wanted = _config(tool), set(requested_groups)
    groups, states = _listed(config.get("group", [DEFAULT_GROUP])), _listed(config.get("applicable-states", [EVERY]))
    return (EVERY in wanted or not wanted.isdisjoint(groups)) and (EVERY in states or current_state in states)


def _config(tool: object) -> Mapping[str, Any]:
    if not isinstance(tool, Tool):
        return getattr(tool, "config", None) or {}
    return {**({"group": list(tool.groups)} if tool.groups else {}), **tool.descriptor.extensions}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
