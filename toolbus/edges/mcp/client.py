"""Tell what the client of a request can do, and put results and questions into the form that it takes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CLIENT_CAPABILITIES_META_KEY, INTERNAL_ERROR, METHOD_NOT_FOUND, MISSING_REQUIRED_CLIENT_CAPABILITY, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolbus.bus import telemetry
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.calls.call import Call
from toolbus.bus.client.executor.observers import observe
from toolbus.bus.client.tools.definitions import output_schema
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.support.display import shortened
from toolbus.bus.support.latest import Latest
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.events import Event
from toolbus.bus.values.results import (
    Blob,
    BrokerError,
    ConfigurationError,
    ConfirmationClosed,
    DescriptorError,
    ErrorInfo,
    ToolError,
    ToolResult,
)
from toolbus.edges.gateway.options import Principal

SCOPE_KEY = "toolbus.caller"
"""The key of the caller in an HTTP request's ASGI scope."""

Context = ServerRequestContext[Any, Any]


CallerOf = Callable[[Context], Principal]
"""Returns who sent the request of a context."""


def caller_of_request(context: Context) -> Principal:
    """Return who sent an HTTP request, as the gateway found out."""
    request: Any = context.request
    return cast("Principal", request.scope[SCOPE_KEY])


TASKS = "io.modelcontextprotocol/tasks"
"""The identifier of the tasks extension."""


@contextmanager
def reached(what: str = "the server") -> Iterator[None]:
    """Turn what is raised when the bus can't be used into the answer to a request.

    Raises:
        MCPError: the bus can't be used now.
    """
    try:
        yield
    except (BrokerError, ConfigurationError, TimeoutError) as error:
        raise MCPError(INTERNAL_ERROR, f"{what} can't be reached now: {error}") from None


class Client(msgspec.Struct, frozen=True):
    """The abilities of the client of a request.

    Attributes:
        modern: it is of revision 2026-07-28 or later.
        elicits: it can ask its user.
        tasks: it takes tasks in place of results.
        progress: it wants to hear of progress.
    """

    modern: bool
    elicits: bool
    tasks: bool
    progress: bool

    @classmethod
    def of(cls, context: Context) -> Client:
        """Return what the client of this request can do."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        meta: Mapping[str, Any] = context.meta or {}
        progress = (context.params or {}).get("_meta", {}).get("progressToken") is not None
        if modern:
            capabilities = meta.get(CLIENT_CAPABILITIES_META_KEY) or {}
            elicitation = _part(capabilities, "elicitation")
            extensions = _part(capabilities, "extensions")
            return cls(True, asks_in_forms(elicitation), _part(extensions, TASKS) is not None, progress)
        known = context.session.client_capabilities
        asks = known is not None and known.elicitation is not None and context.session.can_send_request
        return cls(False, asks, False, progress)

    def must_have_tasks(self, method: str) -> None:
        """Refuse a request that only clients with the tasks extension may send.

        Raises:
            MCPError: the client has not said that it has it.
        """
        if not self.modern:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        if not self.tasks:
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"{method} needs a client with the tasks extension", needed)


class Exchange:
    """One request of a client, and what goes to and fro until its answer. Unless a subclass says otherwise, nobody comes back to it.

    Attributes:
        client: who sent it.
        key: the idempotency key of the call that it makes; empty without one.
        question: id of the confirmation for which its client's user was asked before; empty when nobody was.
        allowed: whether a person has allowed the call before.
        progress: the last measure of progress that the client has been sent, or will be.
    """

    client: Client
    key = question = ""
    allowed = False
    progress = 0.0

    def unseen(self, event: Event) -> Iterable[Event]:
        """Return what the client does not have of an event of the call."""
        return (event,)

    def place(self) -> str:
        """Return what stands for the events until now, for a client that comes back; empty for one that can't."""
        return ""

    async def report(self, done: float, total: float | None, message: str | None, place: str) -> None:
        """Send progress; ``place`` is that of the events that it tells of."""
        raise NotImplementedError

    async def ask(self, id: str, text: str) -> bool | None:
        """Ask the client's user; None when there is no answer, or it comes by the open confirmation ``id``."""
        raise NotImplementedError

    async def withdraw(self, id: str) -> None:
        """Ask a question no longer, unless the end of ``ask`` has withdrawn it."""

    async def permitted(self) -> None:
        """Take note that a person has allowed the call."""

    def making(self, call: Call) -> None:
        """Take note of the call that is about to be published."""


class SdkExchange(Exchange):
    """A request that the SDK has received."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.client = Client.of(context)

    async def report(self, done: float, total: float | None, message: str | None, place: str) -> None:
        """Send progress."""
        await self._context.session.report_progress(done, total, message)

    async def ask(self, id: str, text: str) -> bool | None:
        """Ask the user of a client that is connected; None when the client can't. What is no answer to the form allows nothing."""
        context = self._context
        try:
            return allowed(await context.session.elicit_form(shortened(text, _MOST_MESSAGE), _SCHEMA, context.request_id)) is True
        except (MCPError, NoBackChannelError, ValueError) as error:
            # Others may answer meanwhile, so the call goes on.
            telemetry.log.warning("mcp.elicitation_failed", error=str(error))
            return None


def _part(value: object, name: str) -> Mapping[str, Any] | None:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else None


def asks_in_forms(elicitation: Mapping[str, Any] | None) -> bool:
    """Return whether a client with such an elicitation capability can show forms."""
    # Without a mode it is forms, as before there were others.
    return elicitation is not None and (not elicitation or "form" in elicitation)


ERROR_KEY = "toolbus/error"
"""The key of a failure's type, code and details in a result's ``_meta``."""

# Clients cut what is too long for their model; a tool may say a limit of its own.
_WHOLE = 1_000_000_000
_TEXTS = ("text/", "application/json", "application/xml")


def content_of(result: ToolResult, tool: Tool | None, *, modern: bool) -> dict[str, Any]:
    """Return a ``CallToolResult`` as JSON.

    Args:
        result: the end of the call.
        tool: what was called; None when it is gone.
        modern: the client is of revision 2026-07-28 or later, where structured content may be any value.
    """
    result = _checked(result, tool)
    content = [block_of(each, f"toolbus:///results/{result.meta.id or 'call'}/{at}") for at, each in enumerate(result.content)]
    if not content or result.error is not None or result.observation:
        content.insert(0, {"type": "text", "text": observe(msgspec.structs.replace(result, content=()), tool, limit=_WHOLE)})
    found: dict[str, Any] = {"resultType": "complete", "content": content}
    if result.error is not None:
        found["isError"] = True
        found["_meta"] = {ERROR_KEY: msgspec.to_builtins(result.error)}
        return found
    data = _structured(result, tool)
    if data is not None and (modern or isinstance(data, dict)):
        found["structuredContent"] = data
    return found


def failure_of(error: ErrorInfo, tool: Tool) -> dict[str, Any]:
    """Return a ``CallToolResult`` of a call that failed before it was published."""
    return content_of(ToolResult.fail(error), tool, modern=True)


def block_of(blob: Blob, uri: str) -> dict[str, Any]:
    """Return an image, a sound or a file as a block of content."""
    kind = blob.media_type or "application/octet-stream"
    family = kind.partition("/")[0]
    if family in {"image", "audio"}:
        return {"type": family, "data": base64.b64encode(blob.data).decode(), "mimeType": kind}
    resource: dict[str, Any] = {"uri": uri, "mimeType": kind}
    text = _text_of(blob) if kind.startswith(_TEXTS) else None
    if text is None:
        resource["blob"] = base64.b64encode(blob.data).decode()
    else:
        resource["text"] = text
    return {"type": "resource", "resource": resource}


def _text_of(blob: Blob) -> str | None:
    try:
        return blob.data.decode()
    except UnicodeDecodeError:
        return None


# -- structured content -----------------------------------------------------------------------------

_MOST_VALIDATORS = 5_000
_validators: Latest[str, tuple[Tool, Validator | None]] = Latest(_MOST_VALIDATORS)


def _structured(result: ToolResult, tool: Tool | None) -> Any:
    if tool is not None and result.data is None and output_schema(tool.descriptor) is not None:
        # The schema may be that of a text.
        return result.output
    return result.data


def _checked(result: ToolResult, tool: Tool | None) -> ToolResult:
    """Return the result, or the failure that data of another form than the tool promises is."""
    validator = _validator(tool) if tool is not None and result.error is None else None
    if tool is None or validator is None:
        return result
    try:
        validator.check({"data": _structured(result, tool)})
    except ToolError as error:
        message = f"what {tool.name!r} returned does not fit its output schema: {error.error.message}"
        return msgspec.structs.replace(result, success=False, data=None, error=ErrorInfo("tool_error", "bad_data", message))
    return result


def _validator(tool: Tool) -> Validator | None:
    """Return what checks the tool's data, made when it is first needed, or None."""
    schema = output_schema(tool.descriptor)
    if schema is None:
        return None
    known = _validators.get(tool.name)
    if known is None or known[0] is not tool:
        known = _validators[tool.name] = (tool, _compiled(schema))
    return known[1]


def _compiled(schema: dict[str, Any]) -> Validator | None:
    # References begin at the root, and arguments are objects.
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    whole = {"type": "object", "properties": {"data": inner}, "required": ["data"], "$defs": schema.get("$defs", {})}
    try:
        return Validator(whole)
    except DescriptorError:
        return None


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


class OpenQuestions:
    """The questions of running handlers that wait for a person."""

    def __init__(self, bus: ToolBus, caller: Principal) -> None:
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
