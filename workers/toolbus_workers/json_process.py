"""``json_process``: common operations on a JSON document in one tool; ``toolbus_workers.json_query`` has separate tools.

``toolbus worker json_process`` serves it. Documents and results have the same limits as there.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from toolbus import ToolError, ToolResult, tool
from toolbus_workers.json_query import MAX_RESULT, Document, Meter, formatted, load, query

MAX_PATHS = 10_000

Operation = Literal["validate", "format", "minify", "sort", "keys", "flatten", "query"]


@tool(category="data", groups=["json"], effect="read", timeout=30.0)
def json_process(document: Document, operation: Operation, expression: str = "") -> ToolResult:
    """Check, format, list, flatten or query a JSON document.

    Operations: validate (its type and size), format (with line breaks), minify (on one line), sort (format, with the
    keys in order), keys (of an object, or of the objects in an array), flatten (every value with its path), query
    (what a JMESPath expression picks).

    Args:
        document: the document, as JSON text or as an object or array
        operation: what to do with it
        expression: for query, the JMESPath expression, e.g. "items[?price > `10`].name"
    """
    value = load(document)
    if operation in {"format", "minify", "sort"}:
        text = "".join(formatted(value, 0 if operation == "minify" else 2, sort_keys=operation == "sort"))
        return ToolResult.ok({"operation": operation, "result": text}, output=text)
    if operation == "validate":
        result: Any = {"valid": True, "type": _type(value), "items": len(value) if isinstance(value, (dict, list)) else None}
    elif operation == "keys":
        result = _keys(value)
    elif operation == "flatten":
        result = _flat(value)
    elif expression:
        result = query(value, expression)
    else:
        raise ToolError("query needs a JMESPath expression, e.g. items[0].name", type="invalid_arguments", code="bad_expression")
    if Meter("result").weigh(result) > MAX_RESULT:
        message = f"the result is longer than {MAX_RESULT:,} characters; pick a part of the document with query first"
        raise ToolError(message, type="invalid_arguments", code="output_too_large")
    return ToolResult.ok({"operation": operation, "result": result}, output="".join(formatted(result, 2)))


def _keys(value: Any) -> list[str]:
    objects = value if isinstance(value, list) else [value]
    found = dict.fromkeys(key for each in objects if isinstance(each, dict) for key in each)
    if not found and not any(isinstance(each, dict) for each in objects):
        message = f"the document is {_type(value)} without objects, which have no keys; use flatten or query"
        raise ToolError(message, type="invalid_arguments", code="no_keys")
    return list(found)


def _flat(value: Any) -> dict[str, Any]:
    """Return every value that is no container, or an empty one, by its path."""
    found: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, each = pending.pop()
        if isinstance(each, dict) and each:
            pending.extend((f"{path}.{key}" if path else key, inner) for key, inner in reversed(each.items()))
        elif isinstance(each, list) and each:
            pending.extend((f"{path}[{at}]", each[at]) for at in range(len(each) - 1, -1, -1))
        else:
            found[path or "$"] = each
        if len(found) + len(pending) > MAX_PATHS or len(path) > MAX_RESULT // 10:
            message = f"the document has more than {MAX_PATHS:,} values; pick a part of it with query first"
            raise ToolError(message, type="invalid_arguments", code="too_large")
    return found


def _type(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, dict) else "an array"


OPERATIONS: tuple[str, ...] = get_args(Operation)
