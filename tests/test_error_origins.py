"""The places that decide by an error's type know whether the bus or the tool said it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.contract import Place
from toolbus import ToolError, ToolResult, tool
from toolbus.bus.values import results
from toolbus.bus.values.results import ERROR_TYPES, ErrorInfo

pytestmark = pytest.mark.anyio

SETS = {name for name, value in vars(results).items() if isinstance(value, frozenset)}
SOURCES = [path for folder in ("toolbus", "workers") for path in Path(folder).rglob("*.py")]

EITHER = {
    # What a result means to its caller is the same, whoever says it.
    "toolbus/bus/client/executor/observers.py", "toolbus/bus/client/executor/turn.py", "toolbus/middleware/cache.py",
    "toolbus/edges/mcp/tasks.py", "toolbus/bus/worker/run.py", "toolbus/bus/worker/slots.py",
    "toolbus/compat/trustgraph/client.py",
    # Arguments are not shown in records and statistics, whoever refused them.
    "toolbus/bus/broker/statistics/recent.py", "toolbus/bus/worker/statistics.py",
    # Errors that these places have made themselves.
    "toolbus/platform/backends/api.py", "toolbus/bus/broker/worker.py", "toolbus/bus/client/calls/connection.py",
    "toolbus/bus/client/calls/call.py", "toolbus/bus/client/confirmations.py", "toolbus/edges/gateway/calls.py",
    "toolbus/platform/host/members.py", "workers/toolbus_workers/web/weather.py",
}  # fmt: skip
"""Files that look at types where the origin makes no difference; each other one looks at the origin, too."""


def looks_at(tree: ast.AST) -> bool:
    """Return whether code compares the ``type`` of something with an error type, or with a set of them."""
    sets = {
        target.id
        for each in ast.walk(tree)
        if isinstance(each, (ast.Assign, ast.AnnAssign))
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name) and each.value is not None and names_types(each.value)
    }
    return any(
        isinstance(each, ast.Compare)
        and isinstance(each.left, ast.Attribute)
        and each.left.attr == "type"
        and any(names_types(other) or (isinstance(other, ast.Name) and other.id in sets | SETS) for other in each.comparators)
        for each in ast.walk(tree)
    )


def names_types(node: ast.AST) -> bool:
    """Return whether an expression names error types."""
    return any(isinstance(each, ast.Constant) and each.value in ERROR_TYPES for each in ast.walk(node))


def test_whoever_decides_by_a_type_has_thought_of_its_origin() -> None:
    """A new place that looks at types looks at the origin, or stands in the table."""
    found = {str(path): path.read_text() for path in SOURCES}
    looking = {path for path, text in found.items() if re.search(r"\.type (==|!=|in|not in) ", text) and looks_at(ast.parse(text))}
    assert {path for path in looking if ".origin" not in found[path]} == EITHER & looking
    assert looking >= EITHER


@pytest.mark.parametrize("way", ["raised", "returned"])
async def test_a_result_says_who_failed(place: Place, way: str) -> None:
    """A tool may fail with every type, and what the bus says of a tool that is not there is told apart."""

    @tool(service="origins", effect="read", replace=True)
    async def get_order(order: int) -> ToolResult:
        """Get an order."""
        error = ErrorInfo("not_found", message=f"no order Z{order}")
        if way == "raised":
            raise ToolError(error)
        return ToolResult.fail(error)

    async with place.serving(get_order) as bus:
        await bus.wait_for_tool("get_order")
        of_tool = (await bus.call("get_order", {"order": 9})).error
        of_bus = (await bus.call("get_orders", {"order": 9})).error
        refused = (await bus.call("get_order", {"order": "many"})).error
    assert of_tool is not None
    assert of_bus is not None
    assert refused is not None
    assert [(each.type, each.origin) for each in (of_tool, of_bus, refused)] == [
        ("not_found", "tool"),
        ("not_found", "bus"),
        ("invalid_arguments", "bus"),
    ]
