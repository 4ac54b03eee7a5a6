"""Turn what an API answers into results."""

from __future__ import annotations

import msgspec

from toolbus.mounts.openapi.operations import Operation
from toolbus.outbound import Answer, decoded, failure
from toolbus.results import Blob, ToolResult


def result_of(operation: Operation, answer: Answer) -> ToolResult:
    """Return the answer of an operation: JSON as data, texts as output, anything else as a blob; an error status as a tool_error."""
    if not 200 <= answer.status < 300:
        error = failure(f"{operation.method.upper()} {operation.path}", answer)
        return ToolResult(success=False, data=decoded(answer.body) if answer.is_json else None, error=error)
    if not answer.body:
        return ToolResult(output="")
    if answer.is_json:
        try:
            return ToolResult(data=msgspec.json.decode(answer.body))
        except (msgspec.DecodeError, RecursionError):
            return ToolResult(output=answer.text)
    if answer.is_text or not answer.media_type:
        return ToolResult(output=answer.text)
    return ToolResult(output="", content=(Blob(answer.media_type, answer.body),))
