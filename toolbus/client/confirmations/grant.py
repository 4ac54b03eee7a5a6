"""``Grant``: the permit under which a model's call is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from toolbus.client.tools.tool import Tool
from toolbus.confirmations import digest_of, plain
from toolbus.results import EnvelopeError, ErrorInfo


class Awaited(Protocol):
    """The place of a call, which others wait for."""

    def published(self) -> None:
        """Let the next call be published."""


class Grant(msgspec.Struct, eq=False):
    """A permit to publish one call, once; without one a program calls on its own account.

    Attributes:
        tool: the revision for which the arguments were prepared and confirmed.
        digest: of the call that was confirmed, see ``digest_of``; empty without a confirmation.
        superseded: whether the call was not published because the tool is another one by now.
        published: whether the call was published, which uses a permission up.
        place: told of the publication.
    """

    tool: Tool
    digest: str = ""
    superseded: bool = False
    published: bool = False
    place: Awaited | None = None

    def publish(self) -> None:
        """Take note that the call is published."""
        self.published = True
        if self.place is not None:
            self.place.published()

    def problem(self, tool: Tool, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> ErrorInfo | None:
        """Return why a call of a tool with these arguments may not be published, or None."""
        if tool is not self.tool and tool != self.tool:
            self.superseded = True
            return ErrorInfo("unavailable", "revised", f"the tool {tool.name!r} has changed since the call was prepared", retryable=True)
        if not tool.descriptor.confirm:
            return None
        if self.published:
            message = f"the permission for this call of {tool.name!r} was used when it was published; another call needs another one"
            return ErrorInfo("forbidden", "unconfirmed", message)
        if not self.digest:
            return ErrorInfo("forbidden", "unconfirmed", f"{tool.name!r} needs a person's permission, and nobody was asked")
        try:
            sent, _ = plain(arguments)
        except EnvelopeError as error:
            return ErrorInfo("invalid_arguments", message=str(error))
        user, session = options.get("user", ""), options.get("session", "")
        if digest_of("agent", tool.resolution.service, tool.name, user, session, "", sent) != self.digest:
            message = f"a person allowed another call of {tool.name!r} than the one that was to be sent"
            return ErrorInfo("forbidden", "unconfirmed", message)
        return None
