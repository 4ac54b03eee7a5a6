"""``Permission``: the answer of a person that a call waits for before it is published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from starlette.requests import Request

from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.confirmations import Confirmation, Grant, PendingConfirmations
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.events import Answered, Asked, Event, Finished
from toolbus.bus.values.results import ErrorInfo, ToolError, ToolResult
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.guards import unless_disconnected


class Permission:
    """Asks for one call; any process of the namespace may answer.

    Args:
        confirmations: where people are asked.
        tool: the tool, which needs a confirmation.
        call: the call, which is not published yet.
        limit: most bytes of the arguments.

    Raises:
        ToolError: ``invalid_arguments``.
    """

    def __init__(self, confirmations: PendingConfirmations, tool: Tool, call: Call, limit: int) -> None:
        arguments = tool.prepare(call.arguments or {})
        given = call.options.get("timeout")
        user, session = call.options.get("user", ""), call.options.get("session", "")
        timeout = CONFIRM_TIMEOUT if given is None else min(CONFIRM_TIMEOUT, given)
        self._confirmations = confirmations
        self._call = call
        self._grant = Grant(tool)
        self._confirmation = Confirmation(new_run(), "", tool, arguments, user=user, session=session, timeout=timeout, limit=limit)
        self._asking: asyncio.Task[ErrorInfo | None] | None = None

    @property
    def id(self) -> str:
        """The id that an answer names."""
        return self._confirmation.id

    async def refusal(self) -> ErrorInfo | None:
        """Wait for the answer; return None when the call may be published, which has the rest of its time then."""
        began = time.monotonic()
        call, confirmation = self._call, self._confirmation
        call.grant = self._grant
        refused = await self._confirmations.settled(confirmation, None, shared=True)
        if refused is None:
            call.arguments, self._grant.digest = confirmation.arguments, confirmation.digest
            if call.options.get("timeout") is not None:
                call.options = {**call.options, "timeout": max(0.001, call.options["timeout"] - (time.monotonic() - began))}
        return refused

    async def events(self) -> AsyncIterator[Event]:
        """Yield that a person is asked and has answered, and then the events of the call."""
        confirmation = self._confirmation
        self._asking = asyncio.create_task(self.refusal())
        yield Asked(confirmation.id, confirmation.request.question, confirmation.timeout)
        await asyncio.wait({self._asking})
        if self._asking.cancelled():
            yield Finished(ToolResult.fail(ErrorInfo("cancelled")))
            return
        refused = self._asking.result()
        yield Answered(confirmation.id, refused is None if refused is None or refused.type == "forbidden" else None)
        if refused is not None:
            yield Finished(ToolResult.fail(refused))
            return
        async for event in self._call.events():
            yield event

    def withdraw(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()


def permission_of(gateway: Gateway, call: Call) -> Permission | None:
    """Return the permission that a call needs, or None.

    Raises:
        Problem: 422, the arguments are wrong.
    """
    tool = gateway.bus.tools.catalogue.tools.get(call.target.tool or "")
    if tool is None or not tool.descriptor.confirm or (tool.descriptor.tenants and not tool.is_for(call.options.get("user", ""))):
        return None
    if not tool.available:
        # Nobody is asked in vain; if a worker appears now, the grant without a permission publishes nothing.
        call.grant = Grant(tool)
        return None
    try:
        return Permission(gateway.bus.confirmations, tool, call, gateway.settings.max_request)
    except ToolError as error:
        raise Problem.of(error.error) from None


async def permitted(request: Request, gateway: Gateway, call: Call) -> None:
    """Return when a call may be published: at once, unless a person must allow it.

    Raises:
        Problem: nobody did, or the client has gone.
    """
    permission = permission_of(gateway, call)
    if permission is not None:
        refused = await unless_disconnected(request, permission.refusal())
        if refused is not None:
            raise Problem.of(refused)
