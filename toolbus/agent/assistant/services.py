"""Answers a chat about the tools of the bus, and has missing ones made.

``toolbus worker service-agent`` (needs ``toolbus[platform]``). A chat's memory is kept on the server, so any number of these workers
serve any number of chats. Beside the tool ``chat`` there are the tools by which its model looks things up, for other agents, too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from toolbus import Progress, ToolResult, ToolService, invocation, tool
from toolbus.agent.assistant.turns import Catalogue, Limits, Turns
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import ConfigurationError, ToolError

SETTINGS = {
    "OPENAI_API_KEY": "the endpoint's key, any word for one that needs none; required",
    "OPENAI_MODEL": "the model's name; required",
    "OPENAI_BASE_URL": "the endpoint; OpenAI's own when left out",
    "TOOLBUS_CHAT_MEMORY": "tokens of a chat that the model is told as they were; older questions are summed up (24000)",
    "TOOLBUS_CHAT_TURNS": "most requests to the model for one message (12)",
}

_LONGEST = 600.0

Keyword = Annotated[str, Meta(max_length=200, description="words that all have to be in the name, description or category")]


class ServiceAgent(ToolService):
    """The service agent: one conversation for each chat, one turn at a time in each.

    Calls that are made in the session of the chat's id run in the order in which they were published. Those that are made in no session
    wait for each other, too, but not in an order.
    """

    id = "service-agent"
    description = "Chats about the tools, and has missing ones made"
    sticky_sessions = True

    def __init__(self) -> None:
        self._turns: Turns | None = None

    async def startup(self) -> None:
        """Check the settings, so that a worker without an endpoint says so at its start."""
        self._turns = Turns(limits_of(os.environ))

    @tool(timeout=_LONGEST, effect="idempotent", category="platform")
    async def chat(
        self,
        message: Annotated[str, Meta(min_length=1, max_length=100_000)],
        chat_id: Annotated[str, Meta(max_length=255)] = "",
    ) -> AsyncIterator[str | Progress | ToolResult]:
        """Talk with the service agent, which finds tools, explains them, and has missing ones made.

        Args:
            message: what you say.
            chat_id: continues a conversation; a new one begins without it.
        """
        if self._turns is None:
            raise ToolError("the service agent has not started", type="unavailable", retryable=True)
        call = invocation()
        bus = await call.caller()
        if not isinstance(bus, ToolBus):
            raise ToolError("the service agent runs in a worker only", type="unavailable")
        chosen = chat_id or call.session or new_id()
        async for each in self._turns.answered(bus, call, message, chosen):
            yield each

    async def cleanup(self) -> None:
        """Close the connections."""
        if self._turns is not None:
            await self._turns.aclose()


class Platform(ToolService):
    """Tools that look up tools, groups and runtimes."""

    id = "platform"
    description = "Looks up tools, their groups and what runs them"
    effect = "read"

    @tool(category="platform")
    async def list_tools(
        self,
        keyword: Keyword = "",
        category: Annotated[str, Meta(max_length=200, description="only of this category")] = "",
        backend_runtime: Annotated[str, Meta(max_length=200, description="only with this runtime")] = "",
        group_id: Annotated[str, Meta(max_length=200, description="only in this group")] = "",
    ) -> dict[str, Any]:
        """List the tools of the platform, one line each."""
        return (await _catalogue()).list_tools(keyword, category, backend_runtime, group_id)

    @tool(category="platform")
    async def get_tool_details(self, tool_id: Annotated[str, Meta(max_length=200)]) -> dict[str, Any]:
        """Show how a tool is called: its arguments, what it answers, and which tools are used before and after it."""
        return (await _catalogue()).get_tool_details(tool_id)

    @tool(category="platform")
    async def list_groups(self, keyword: Keyword = "") -> dict[str, Any]:
        """List the groups of tools that are used together, in which order, with an example."""
        return (await _catalogue()).list_groups(keyword)

    @tool(category="platform")
    async def list_backend_runtimes(self) -> dict[str, Any]:
        """List what runs the tools (workers, local programs, containers, APIs), and how many tools each."""
        return (await _catalogue()).list_backend_runtimes()


async def _catalogue() -> Catalogue:
    call = invocation()
    bus = await call.caller()
    if not isinstance(bus, ToolBus):
        raise ToolError("the tools of the platform run in a worker only", type="unavailable")
    return Catalogue(bus, call.user)


def limits_of(environ: Any) -> Limits:
    """Return the limits that the environment sets.

    Raises:
        ConfigurationError: one is no number, or too small.
    """
    given = {
        field: environ[f"TOOLBUS_CHAT_{field.upper()}"]
        for field in Limits.__struct_fields__
        if environ.get(f"TOOLBUS_CHAT_{field.upper()}")
    }
    try:
        return msgspec.convert(given, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a setting TOOLBUS_CHAT_… is wrong: {error}") from None
