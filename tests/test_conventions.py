"""Names are of OpenTelemetry's published registry and of the field; tests wait for conditions."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating import attributes, metrics

from toolbus import ToolBus, Worker, tool
from toolbus.bus import telemetry
from toolbus.bus.values.encoding import DECODE_ERRORS

# Those of the conventions for GenAI are in a repository of their own now, which no package has yet:
# https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/gen-ai-metrics.md
_NEWER = {"gen_ai.execute_tool.duration"}
# Deprecated in this package only: they are stable now, or in that repository.
_ELSEWHERE = re.compile(r"Deprecated in favor of stable|Moved to the \[OpenTelemetry GenAI semantic conventions repository\]")
_CONSTANT = re.compile(r'^\w+: Final = "([^"]+)"\n"""\n(.*?)"""', re.MULTILINE | re.DOTALL)
_OURS = "toolbus."
# The SDK adds it to each exception by itself.
_OF_THE_SDK = {"exception.escaped"}


@tool(service="conventional", effect="read")
async def conventional(fail: bool = False) -> str:
    """Succeed, or fail."""
    if fail:
        raise ValueError("as asked")
    return "fine"


def published(package: object) -> dict[str, str]:
    """The names of a package of the registry, and what it says of each."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(package.__path__):  # type: ignore[attr-defined]
        source = importlib.import_module(f"{package.__name__}.{module.name}").__file__  # type: ignore[attr-defined]
        assert source
        found |= dict(_CONSTANT.findall(Path(source).read_text("utf-8")))
    return found


@pytest.mark.anyio
async def test_names_are_published_and_not_deprecated() -> None:
    """A call that succeeds and one that fails send only names of the registry that are in use, and our own."""
    spans, reader, provider = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with telemetry.providers(tracer=provider, meter=MeterProvider([reader])):
        async with Worker([conventional], url="memory://"), ToolBus("memory://") as bus:
            await bus.wait_for_tool("conventional")
            assert (await bus.call("conventional")).success
            assert not (await bus.call("conventional", {"fail": True})).success
        data = reader.get_metrics_data()
    assert data is not None
    sent = [each for scope in data.resource_metrics[0].scope_metrics for each in scope.metrics]
    points = {name for each in sent for point in each.data.data_points for name in (point.attributes or ())}
    finished = spans.get_finished_spans()
    assert len(finished) == 4
    in_spans = {name for span in finished for name in (span.attributes or ())}
    in_events = {name for span in finished for event in span.events for name in (event.attributes or ())} - _OF_THE_SDK
    for names, known in ((points | in_spans | in_events, published(attributes)), ({each.name for each in sent}, published(metrics))):
        assert len(known) > 20
        assert {name for name in names if not name.startswith(_OURS)} - _NEWER <= known.keys()
        said = {name: known.get(name, "") for name in names}
        assert [name for name, text in said.items() if "Deprecated" in text and not _ELSEWHERE.search(text)] == []
    assert {each.name: each.unit for each in sent}["messaging.process.duration"] == "s"


ROOT = Path(__file__).parents[1]

# Names with words that docs/reference/names.md replaces, from before its table. One that is renamed goes from here, and none comes.
_STILL_THERE = """
_given given given_up GivenUp _hear hear _heard is_left_to_others _left left left_out left_out_of mend _mend_strings
_mended mended mended_document remove_left _Said _said said _said_inside _say_nothing _says survives_callers_that_left _tell tell
_tell_dropped tell_failure _tell_lists tell_missing tell_time tells_errors tells_gaps _tells_its_language tells_starts
tells_them_apart thing _Told _told told told_within
"""


def identifiers(code: CodeType) -> Iterator[str]:
    """Yield the names of the functions, classes and parameters of a module's code, which takes half as long as its tree."""
    yield code.co_name
    parameters = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    yield from code.co_varnames[:parameters]
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from identifiers(part)


def words(name: str) -> set[str]:
    """Return the words of a name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_new_names_are_of_the_field() -> None:
    """No function, class, method or parameter has a word for which the table of names has a better one."""
    table = (ROOT / "docs/reference/names.md").read_text("utf-8").partition("| Instead of |")[2]
    replaced = {word for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for word in re.findall(r"`(\w+)`", cell)}
    assert {"told", "nonsense", "anew"} <= replaced
    found = {
        name
        for path in (ROOT / "toolbus").rglob("*.py")
        for name in identifiers(compile(path.read_text("utf-8"), path, "exec"))
        if words(name) & replaced
    }
    assert found - set(_STILL_THERE.split()) == set(), "see the table in docs/reference/names.md"
    assert set(_STILL_THERE.split()) <= found, "take names that are gone from the list"


# Their time passes at once.
_VIRTUAL = Path("worker/unit")


def sleeps(node: ast.AST) -> list[int]:
    """Return the lines of a function's own body in which it sleeps longer than a turn of its loop; tools defined inside may."""
    found: list[int] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            name = getattr(child.func, "attr", getattr(child.func, "id", ""))
            if name == "sleep" and not (isinstance(child.args[0], ast.Constant) and not child.args[0].value):
                found.append(child.lineno)
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            found += sleeps(child)
    return found


def test_no_test_sleeps() -> None:
    """A test waits for a condition with a bound; what must not happen is given time by ``elapse``, which says so."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "tests").rglob("test_*.py")
        if not path.is_relative_to(ROOT / "tests" / _VIRTUAL)
        if "sleep(" in (text := path.read_text("utf-8"))
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
        for line in sleeps(node)
    ]
    assert found == [], "use tests.servers.eventually, or elapse"


def test_servers_of_tests_leave_no_connection() -> None:
    """asyncio's own server forgets what it has accepted; ``Listening`` ends it."""
    found = {path.name for path in (ROOT / "tests").rglob("*.py") if ".start_server(" in path.read_text("utf-8")}
    assert found == {Path(__file__).name}


def test_no_exception_is_taken_for_empty() -> None:
    """An exception is true also when it has no text, so that what stands for its reason then would never be said."""
    caught = re.compile(r"except .+ as (\w+):")
    found = []
    for path in (each for folder in ("toolbus", "workers") for each in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        if not any(f"{name} or " in text for name in caught.findall(text)):
            continue
        for handler in ast.walk(ast.parse(text)):
            if isinstance(handler, ast.ExceptHandler):
                choices = [node.values[0] for node in ast.walk(handler) if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)]
                found += [
                    f"{path.relative_to(ROOT)}:{each.lineno}" for each in choices if isinstance(each, ast.Name) and each.id == handler.name
                ]
    assert found == [], "say `str(error) or …`, or reason_of(error)"


def test_every_error_of_a_decoder_has_one_name() -> None:
    """The errors of decoders are named in one place, since a text with bad UTF-8 raises none of msgspec's own."""
    for unreadable in (b"", b"{", b'"\xff"', b'"\\ud800"', b"[" * 100_000, "\ud800"):
        with pytest.raises(DECODE_ERRORS):
            msgspec.json.decode(unreadable)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("toolbus", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "toolbus/bus/values/encoding.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if "msgspec.DecodeError" in line or "msgspec.MsgspecError" in line
    ]
    assert found == [], "use toolbus.bus.values.encoding.DECODE_ERRORS"
