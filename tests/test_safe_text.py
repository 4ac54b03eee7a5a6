"""Exceptions that can't be told of: they become answers and log lines like others, and end nothing."""

from __future__ import annotations

import ast
import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

import toolbus
from tests.contract import Place
from tests.hostile_errors import HOSTILE, NAMES
from tests.test_log_lines import logger
from toolbus import ToolBus, Worker, tool
from toolbus.bus import telemetry
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.support import safe_text
from toolbus.bus.values.results import ToolResult

__all__ = ["logger"]

pytestmark = pytest.mark.anyio

PACKAGE = Path(toolbus.__path__[0])
EACH = pytest.mark.parametrize("kind", HOSTILE, ids=NAMES.get)
BROAD = {"Exception", "BaseException"}

to_raise: list[type[Exception]] = []


@tool(service="hostile", effect="read")
async def in_coroutine() -> str:
    """Raise."""
    raise to_raise[0]


@tool(service="hostile", effect="read")
def in_thread() -> str:
    """Raise."""
    raise to_raise[0]


@tool(service="hostile", effect="read")
async def in_stream():
    """Raise after a text."""
    yield "a"
    raise to_raise[0]


@tool(service="hostile", effect="read")
async def result() -> Any:
    """Return what raises when it is encoded."""

    class Unreadable:
        def to_dict(self) -> Any:
            raise to_raise[0]

        def __getattr__(self, name: str) -> Any:
            raise to_raise[0]

    return Unreadable()


@tool(service="hostile", effect="read")
async def well() -> str:
    """Go well."""
    return "well"


async def fails(call: ToolCall, next: Next) -> ToolResult:
    """Raise, but for one tool."""
    if call.tool != "well":
        raise to_raise[0]
    return await next(call)


@pytest.fixture(autouse=True)
def nothing_to_raise() -> Iterator[None]:
    """Begin with no exception."""
    to_raise.clear()
    yield
    to_raise.clear()


def raised(kind: type[Exception]) -> Exception:
    """Return an exception that was raised."""
    try:
        raise kind
    except Exception as error:
        return error


@EACH
def test_each_text_is_a_plain_text(kind: type[Exception]) -> None:
    """The class's true name is in it, and nothing is raised."""
    error = raised(kind)
    texts = [safe_text.described(error), safe_text.traceback_of(error), safe_text.reason_of(error), safe_text.text_of(error)]
    assert safe_text.type_name(error) == NAMES[kind]
    assert NAMES[kind] in texts[0]
    assert "raise kind" in texts[1]
    assert {type(each) for each in texts} == {str}


def test_ordinary_exceptions_are_told_as_usual() -> None:
    """The name and the text, or the name alone."""
    error = ValueError("wrong")
    assert (safe_text.described(error), safe_text.reason_of(error), safe_text.text_of(error)) == ("ValueError: wrong", "wrong", "wrong")
    assert (safe_text.described(KeyError()), safe_text.reason_of(KeyError()), safe_text.text_of(KeyError())) == ("KeyError", "KeyError", "")


@EACH
async def test_a_handler_that_raises_it_is_answered(place: Place, kind: type[Exception]) -> None:
    """Every kind of handler; the error has the class's name, and the worker goes on."""
    to_raise.append(kind)
    with telemetry.providers(tracer=TracerProvider(shutdown_on_exit=False)):
        async with (
            Worker([in_coroutine, in_thread, in_stream, result, well], settings=place.settings) as worker,
            ToolBus(settings=place.settings) as bus,
        ):
            await bus.wait_for_tool("well")
            for name in ("in_coroutine", "in_thread", "in_stream", "result"):
                answer = await bus.call(name, {}, timeout=10.0)
                assert answer.error is not None
                assert answer.error.type == "tool_error", (name, answer)
                if name != "result":
                    assert answer.error.code == NAMES[kind]
            assert (await bus.call("well", {})).output == "well"
            assert worker.statistics()["running"] == 0


@EACH
@pytest.mark.parametrize("side", ["bus", "worker"])
async def test_middleware_that_raises_it_fails_the_call(place: Place, kind: type[Exception], side: str) -> None:
    """On either side of the bus, and no other call."""
    to_raise.append(kind)
    within = {side: [fails]}
    async with (
        Worker([in_coroutine, well], settings=place.settings, middleware=within.get("worker", ())),
        ToolBus(settings=place.settings, middleware=within.get("bus", ())) as bus,
    ):
        await bus.wait_for_tool("well")
        answer = await bus.call("in_coroutine", {}, timeout=10.0)
        assert answer.error is not None
        assert (answer.error.type, answer.error.code) == ("tool_error", NAMES[kind])
        assert (await bus.call("well", {})).output == "well"


@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt])
async def test_middleware_that_exits_fails_the_call(place: Place, exits: Any) -> None:
    """At the caller, whose event loop goes on."""
    to_raise.append(exits)
    async with Worker([in_coroutine, well], settings=place.settings), ToolBus(settings=place.settings, middleware=[fails]) as bus:
        await bus.wait_for_tool("well")
        answer = await bus.call("in_coroutine", {}, timeout=10.0)
        assert answer.error is not None
        assert (answer.error.type, answer.error.code) == ("tool_error", exits.__name__)
        assert (await bus.call("well", {})).output == "well"


@EACH
async def test_it_is_logged_with_its_traceback(logger: Any, kind: type[Exception]) -> None:
    """As an event and as a field's value, in both formats."""
    for name in ("json", "text"):
        stream, error = io.StringIO(), raised(kind)
        telemetry.configure_logging(format=name, stream=stream)
        await asyncio.to_thread(telemetry.log.error, "middleware.failed", exc_info=error, error=error)
        text = stream.getvalue()
        assert "raise kind" in text
        assert NAMES[kind] in text
        assert name == "text" or json.loads(text)["event"] == "middleware.failed"


def _names(kind: ast.expr | None) -> set[str]:
    if isinstance(kind, ast.Tuple):
        return set().union(*map(_names, kind.elts))
    return {"BaseException"} if kind is None else {ast.unparse(kind)}


def _asks(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FormattedValue):
        return ast.unparse(node.value) == name
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"str", "repr"} and name in map(ast.unparse, node.args)


@pytest.mark.usefixtures("slow")
def test_nothing_asks_a_users_class_directly() -> None:
    """Outside of the broker's own errors: where anything may have been raised its text comes from ``safe_text``, and so do class names."""
    found = []
    paths = [path for path in PACKAGE.rglob("*.py") if "transport" not in path.parts and path.name != "safe_text.py"]
    assert len(paths) > 100
    texts = {path: path.read_text("utf-8") for path in paths}
    # Only files that have such a name are parsed.
    for path in [path for path, text in texts.items() if any(name in text for name in {"__name__", *BROAD})]:
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Attribute) and node.attr == "__name__" and ast.unparse(node.value).startswith("type("):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.ExceptHandler) and node.name and _names(node.type) & BROAD:
                found += [f"{path.relative_to(PACKAGE)}:{each.lineno}: {node.name}" for each in ast.walk(node) if _asks(each, node.name)]
    assert found == []
