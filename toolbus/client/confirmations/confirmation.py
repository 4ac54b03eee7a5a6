"""``Confirmation``: one call that waits for a confirmation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from toolbus.client.tools.tool import Tool
from toolbus.confirmations import MOST_NAME, ConfirmationRequest, denied, digest_of, plain, shown
from toolbus.display import shortened
from toolbus.results import EnvelopeError, ErrorInfo, ToolError


class Confirmation:
    """One call that waits for a confirmation; ``str()`` is the text that is shown.

    The text and the arguments that may run are both copies from when it was made: changing the originals changes neither.

    Attributes:
        id: the id that an answer names, in this process or another.
        call: the model's id of the call.
        tool, description, effect, external: the tool, as its publisher describes it.
        user, session: on whose behalf.
        timeout: seconds after which it expires.
        question: the question of a running handler; empty when the tool needs a confirmation before it runs.
        request: the request as other processes see it; the handler's own when a running handler asks.
        shared: whether other processes are asked, too.
        reason: why it was denied in this process.

    Args:
        limit: most bytes of the arguments.

    Raises:
        ToolError: ``invalid_arguments``: JSON can't express the arguments, or they are too large to be shown.
    """

    def __init__(
        self,
        id: str,
        call: str,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        user: str,
        session: str,
        timeout: float,
        question: str = "",
        limit: int = 262_144,
    ) -> None:
        try:
            sent, self._document = plain(arguments)
        except EnvelopeError as error:
            raise ToolError(str(error), type="invalid_arguments") from None
        self.id = id
        self.call = call
        self.tool = tool.name
        self.description = tool.description
        self.effect = tool.descriptor.effect
        self.external = tool.descriptor.external
        self.user = user
        self.session = session
        self.timeout = timeout
        self.question = question
        self.shared = False
        self.reason = ""
        self._answer: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()
        self.request = self._request(tool, sent, limit)

    @property
    def digest(self) -> str:
        """Digest of what a permission is for; empty when a running handler asks."""
        return self.request.digest

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call; a new object each time, so that no reader changes what another one sees."""
        made: dict[str, Any] = msgspec.json.decode(self._document)
        return made

    @property
    def answered(self) -> bool:
        """True when it was allowed or denied, or has expired."""
        return self._answer.done()

    def allow(self) -> bool:
        """Let the call run; False when it was answered before."""
        return self._settle(None)

    def deny(self, reason: str = "") -> bool:
        """End the call as ``forbidden``; False when it was answered before."""
        if not self.answered:
            self.reason = reason
        return self._settle(denied(f"this call of {self.tool!r}", reason))

    async def answer(self) -> ErrorInfo | None:
        """Wait for the answer: None when the call may run."""
        return await self._answer

    def _request(self, tool: Tool, sent: Any, limit: int) -> ConfirmationRequest:
        service = tool.resolution.service
        digest = "" if self.question else digest_of("agent", service, self.tool, self.user, self.session, "", sent)
        behalf = f" for {shortened(self.user, MOST_NAME)}" if self.user else ""
        return ConfirmationRequest(
            self.id,
            self.call,
            self.tool,
            self.question or f"Allow {self.tool}{behalf}?",
            asker="worker" if self.question else "agent",
            service=service,
            owner=tool.owner,
            user=self.user,
            session=self.session,
            digest=digest,
            description=self.description,
            effect=self.effect,
            external=self.external,
            **({} if self.question else shown(sent, self._document, limit)),
        ).bounded()

    def __str__(self) -> str:
        return str(self.request)

    def __repr__(self) -> str:
        return f"<confirmation {self.id}: {self.tool!r}>"

    def _settle(self, answer: ErrorInfo | None) -> bool:
        if self._answer.done():
            return False
        self._answer.set_result(answer)
        return True


Confirmer = Callable[[Confirmation], "Awaitable[bool | None] | bool | None"]
"""A function that returns True or False, or None and answers later by ``allow()`` or ``deny()``."""
