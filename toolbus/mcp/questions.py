"""Ask the user of a client: forms with one yes or no, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import ElicitResult

from toolbus import telemetry
from toolbus.client.bus import ToolBus
from toolbus.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.display import shortened
from toolbus.mcp.caller import Caller, Context
from toolbus.results import BrokerError, ConfirmationClosed

_MOST_MESSAGE = 20_000
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"allow": {"type": "boolean", "title": "Allow", "description": "Whether this may happen."}},
    "required": ["allow"],
}


def form(text: str) -> dict[str, Any]:
    """Return the request for a form that asks whether something may happen."""
    params = {"mode": "form", "message": shortened(text, _MOST_MESSAGE), "requestedSchema": _SCHEMA}
    return {"method": "elicitation/create", "params": params}


def allowed(answer: object) -> bool | None:
    """Return what the user answered: None for what is no answer to the form. A form that was dismissed is a no."""
    if isinstance(answer, ElicitResult):
        answer = answer.model_dump(by_alias=True)
    action = answer.get("action") if isinstance(answer, Mapping) else None
    if action in {"decline", "cancel"}:
        return False
    if action != "accept" or not isinstance(answer, Mapping):
        return None
    content = answer.get("content")
    said = content.get("allow") if isinstance(content, Mapping) else None
    return said if isinstance(said, bool) else None


async def asked_by_client(context: Context, text: str) -> bool | None:
    """Ask the user of a client that is connected; None when the client can't. What is no answer to the form allows nothing."""
    try:
        return allowed(await context.session.elicit_form(shortened(text, _MOST_MESSAGE), _SCHEMA, context.request_id)) is True
    except (MCPError, NoBackChannelError, ValueError) as error:
        # Others may answer meanwhile, so the call goes on.
        telemetry.log.warning("mcp.elicitation_failed", error=str(error))
        return None


class OpenQuestions:
    """The questions of running handlers that wait for a person."""

    def __init__(self, bus: ToolBus, caller: Caller) -> None:
        self._bus = bus
        self._caller = caller

    async def open(self, id: str) -> ConfirmationRequest | None:
        """Return a question of a call of this caller's user, or None when it waits no longer."""
        try:
            request = await self._bus.confirmations.get(id)
        except (ConfirmationClosed, BrokerError):
            return None
        return request if request.user == self._caller.user else None

    async def answer(self, request: ConfirmationRequest, *, allow: bool) -> None:
        """Answer a question; of several answers the first one counts."""
        answer = ConfirmationAnswer(allow, "" if allow else "the client's user did not allow it", self._caller.name, request.digest)
        try:
            await self._bus.confirmations.answer(request.id, answer)
        except ConfirmationClosed as error:
            telemetry.log.info("mcp.answer_too_late", id=request.id, error=str(error))

    async def take(self, responses: Mapping[str, Any] | None, call: str) -> frozenset[str]:
        """Take in a client's answers to the questions of one call; return the questions that are answered now.

        Answers to what was never asked, or is answered, are ignored.

        Raises:
            BrokerError: the server can't be reached.
        """
        taken: set[str] = set()
        for name, response in (responses or {}).items():
            said = allowed(response)
            request = await self.open(name) if said is not None else None
            if request is not None and said is not None and request.call == call:
                await self.answer(request, allow=said)
                taken.add(name)
        return frozenset(taken)
