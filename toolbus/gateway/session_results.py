"""Carry the results of a session's calls from one replica of the gateway to the next, so that ``$from`` refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toolbus.broker.reading import document, skip
from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.references import Kept, kept_of, references
from toolbus.client.executor.toolcalls import ModelCall, said
from toolbus.results import EnvelopeError, ToolError, ToolResult

_MOST_DOCUMENT = 262_144
_TOO_LARGE = "is too large to be referred to in a later turn"


class _Shared(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """One result as the replicas share it."""

    call: str
    tool: str
    value: Any = None
    problem: str = ""


_decoder = msgspec.json.Decoder(_Shared)


async def recall(executor: ToolExecutor, calls: Sequence[ModelCall]) -> None:
    """Load the results of a session into the executor's memory, if any of these calls refers to one.

    Raises:
        BrokerError: the server could not be asked.
    """
    if not executor.session or not any(map(_refers, calls)):
        return
    for found in await executor.shared_results.read(executor.user, executor.session):
        try:
            shared = document(found, _decoder)
        except EnvelopeError as error:
            skip("results", error, field=executor.session)
            continue
        executor.memories.put(executor.user, executor.session, shared.call, Kept(shared.tool, shared.value, len(found), shared.problem))


async def share(executor: ToolExecutor, calls: Sequence[ModelCall], results: Sequence[ToolResult]) -> None:
    """Keep the results of a turn for whichever replica runs the session's next one."""
    if not executor.session:
        return
    made: list[bytes] = []
    for call, result in zip(calls, results, strict=True):
        tool = executor.find(call.name)
        name = call.name if tool is None else tool.name
        if name:
            made.append(_encoded(call.id, name, result))
    await executor.shared_results.keep(executor.user, executor.session, made)


def _refers(call: ModelCall) -> bool:
    try:
        arguments, _ = said(call.arguments)
    except ToolError:
        return False
    return any(True for _ in references(arguments))


def _encoded(call: str, tool: str, result: ToolResult) -> bytes:
    kept = kept_of(tool, result)
    made = msgspec.json.encode(_Shared(call, tool, kept.value, kept.problem))
    return made if len(made) <= _MOST_DOCUMENT else msgspec.json.encode(_Shared(call, tool, None, _TOO_LARGE))
