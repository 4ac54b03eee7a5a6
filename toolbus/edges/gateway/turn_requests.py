"""Read what a client asks of ``POST /v1/tool_calls``: a model's message, and the options of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request

from toolbus.bus.client.executor.observers import ATTACHMENTS, LIMIT
from toolbus.bus.client.executor.toolcalls import ModelCall, tool_calls
from toolbus.bus.values.confirmations import CONFIRM_TIMEOUT
from toolbus.bus.values.results import ConfigurationError
from toolbus.edges.gateway import bodies
from toolbus.edges.gateway.bodies import Problem, call_options, line, require_json
from toolbus.edges.gateway.gateway import gateway_of

MOST_CALLS = 256
"""Most calls of one message."""

MOST_METADATA = 16_384
"""Most bytes of the metadata, as JSON."""

# A message of a provider has one of these; a wrapped one does not.
_OF_MESSAGES = frozenset({"role", "choices", "tool_calls", "output", "content", "name", "function"})


class TurnOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options that a client may give; see ``bus.executor``."""

    session: str = ""
    timeout: float | None = None
    idle_timeout: float | None = None
    wait: float | bool | None = None
    idempotency_key: str | None = None
    metadata: dict[str, str] | None = None
    initial: dict[str, Any] | None = None
    concurrent: bool = True
    sequential: tuple[str, ...] = ()
    output_limit: int = LIMIT
    attachment_limit: int = ATTACHMENTS
    confirm_timeout: float = CONFIRM_TIMEOUT
    confirm_anywhere: bool | None = None

    def of_the_executor(self) -> dict[str, Any]:
        """Return what ``executor`` takes, without what was not given."""
        given = msgspec.structs.asdict(self)
        del given["concurrent"]
        return {name: value for name, value in given.items() if value is not None and (name != "session" or value)}


class TurnRequest(msgspec.Struct, frozen=True):
    """The calls of a message and their options."""

    calls: list[ModelCall]
    options: TurnOptions


async def turn_request(request: Request) -> TurnRequest:
    """Return what a request asks for.

    The body is a model's message as its provider gave it, with options in headers; or ``{"message": …}`` with the options beside it.

    Raises:
        Problem: the body is no JSON or too large, or holds no message, or an option is wrong.
    """
    require_json(request)
    found = await bodies.read(request, Any)
    given: dict[str, Any] = {}
    if isinstance(found, Mapping) and "message" in found and not _OF_MESSAGES & found.keys():
        given = {name: value for name, value in found.items() if name != "message"}
        found = found["message"]
    if "user" in given:
        raise Problem(422, "invalid_options", "the user is whom the token names; a body can't choose one")
    if found is None:
        raise Problem(422, "invalid_message", "the body is null, which is no message of a model")
    try:
        calls = tool_calls(found)
        options = msgspec.convert({**call_options(request), **given}, TurnOptions)
    except ConfigurationError as error:
        raise Problem(422, "invalid_message", str(error)) from None
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_options", f"{error}; there are: {', '.join(TurnOptions.__struct_fields__)}") from None
    if len(calls) > MOST_CALLS:
        raise Problem(422, "invalid_message", f"a message has at most {MOST_CALLS} calls, not {len(calls):,}")
    _check(options, gateway_of(request).settings.max_timeout)
    return TurnRequest(calls, options)


def _check(options: TurnOptions, longest: float) -> None:
    """Check options of the body as if they stood in headers.

    Raises:
        Problem: 422.
    """
    for name, text in (("session", options.session), ("idempotency_key", options.idempotency_key)):
        # No session and the empty one are the same; an empty key is a mistake.
        if text or (text is not None and name != "session"):
            line(name, text)
    if options.timeout is not None and not 0 < options.timeout <= longest:
        detail = f"timeout is a number of seconds above 0 and at most {longest:g} (TOOLBUS_MAX_TIMEOUT), not {options.timeout:g}"
        raise Problem(422, "invalid_options", detail)
    if options.metadata is not None and len(msgspec.json.encode(options.metadata)) > MOST_METADATA:
        raise Problem(422, "invalid_options", f"metadata has more than {MOST_METADATA:,} bytes")
