"""Resources and prompts of an MCP server as tools that read."""

from __future__ import annotations

from typing import Any

from toolbus.mounts.answers import contents_of, messages_of
from toolbus.mounts.described import Described
from toolbus.mounts.listing import Listing, pages
from toolbus.mounts.naming import words_of
from toolbus.mounts.session import Session
from toolbus.results import ToolError, ToolResult
from toolbus.worker.run.invocation import Invocation

_MOST_LISTED = 1_000
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_URI: dict[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "the resource's URI, or a template's with its parts filled in"}},
    "required": ["uri"],
}
_PROMPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "the prompt's name"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}, "description": "the prompt's arguments"},
    },
    "required": ["name"],
}


class Extras:
    """The part that a mount serves of its server's resources and prompts.

    Args:
        mount: the name of the mount, with which the tools' names begin.
        session: runs calls on the server.
    """

    def __init__(self, mount: str, session: Session) -> None:
        self._mount = mount
        self._session = session

    def describe(self, listing: Listing, into: Described) -> None:
        """Add the tools that the server's kinds of content need."""
        start = words_of(self._mount)
        about = {"mount": self._mount}
        if listing.resources:
            into.add(f"{start}_list_resources", f"List the resources of {self._mount}.", _NOTHING, "read", self.list_resources, about)
            into.add(f"{start}_read_resource", f"Read a resource of {self._mount}.", _URI, "read", self.read_resource, about)
        if listing.prompts:
            into.add(f"{start}_list_prompts", f"List the prompts of {self._mount}.", _NOTHING, "read", self.list_prompts, about)
            into.add(f"{start}_get_prompt", f"Get the messages of a prompt of {self._mount}.", _PROMPT, "read", self.get_prompt, about)

    async def list_resources(self, _: dict[str, Any], call: Invocation) -> ToolResult:
        """List resources and templates."""
        found: list[dict[str, Any]] = []
        async with self._session.calling(call, "read") as client:
            async for page in pages(lambda cursor: client.list_resources(cursor=cursor, cache_mode="bypass")):
                found += [_named(each, uri=each.uri, mime_type=each.mime_type) for each in page.resources]
                if len(found) >= _MOST_LISTED:
                    break
            async for page in pages(lambda cursor: client.list_resource_templates(cursor=cursor, cache_mode="bypass")):
                found += [_named(each, uri_template=each.uri_template, mime_type=each.mime_type) for each in page.resource_templates]
                if len(found) >= 2 * _MOST_LISTED:
                    break
        return ToolResult.ok({"resources": found})

    async def read_resource(self, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Read one resource."""
        async with self._session.calling(call, "read") as client:
            return contents_of(await client.read_resource(arguments["uri"], cache_mode="bypass"))

    async def list_prompts(self, _: dict[str, Any], call: Invocation) -> ToolResult:
        """List prompts with their arguments."""
        found: list[dict[str, Any]] = []
        async with self._session.calling(call, "read") as client:
            async for page in pages(lambda cursor: client.list_prompts(cursor=cursor, cache_mode="bypass")):
                found += [_named(each, arguments=[_argument(one) for one in each.arguments or ()]) for each in page.prompts]
                if len(found) >= _MOST_LISTED:
                    break
        return ToolResult.ok({"prompts": found})

    async def get_prompt(self, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        """Return the messages of one prompt."""
        given = arguments.get("arguments") or {}
        if not isinstance(given, dict):
            raise ToolError("arguments is an object of texts", type="invalid_arguments")
        texts = {name: value if isinstance(value, str) else str(value) for name, value in given.items()}
        async with self._session.calling(call, "read") as client:
            return messages_of(await client.get_prompt(arguments["name"], texts))


def _named(each: Any, **more: Any) -> dict[str, Any]:
    fields = {"name": each.name, "title": each.title, "description": each.description, **more}
    return {name: value for name, value in fields.items() if value}


def _argument(each: Any) -> dict[str, Any]:
    return {"name": each.name, "description": each.description or "", "required": bool(each.required)}
