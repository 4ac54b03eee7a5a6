"""Imports run downwards, and only the broker speaks Redis."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import FrameType

import grimp
import pytest

import toolbus
from toolbus import Settings, ToolBus, Worker, tool

PACKAGE = Path(toolbus.__path__[0])


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports when it is loaded."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_run_downwards() -> None:
    """The layers of pyproject.toml hold; `make lint` says the same with more words."""
    done = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_imports_form_no_cycles() -> None:
    """No module imports itself by way of others, not even lazily or for its types."""
    graph = grimp.build_graph("toolbus", cache_dir=None)
    assert len(graph.modules) > 100
    graphlib.TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_only_the_broker_speaks_redis() -> None:
    """Only toolbus/bus/broker imports redis and hiredis."""
    for path in [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "workers").rglob("*.py")]:
        if "broker" not in path.relative_to(PACKAGE.parent).parts and "redis" in path.read_text("utf-8"):
            assert not {name.partition(".")[0] for name in imports_of(path)} & {"redis", "hiredis"}, path


MAKERS = {"Redis", "RedisCluster", "Sentinel", "ConnectionPool", "BlockingConnectionPool", "from_url", "from_pool"}
MAKERS |= {"Connection", "SSLConnection", "UnixDomainSocketConnection"}


def test_one_module_makes_redis_clients() -> None:
    """Only toolbus/bus/broker/transport/clients.py makes clients and connections, since others would get redis-py's ten retries."""
    found = []
    texts = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    named = re.compile(rf"\b({'|'.join(MAKERS)})\b")
    for path in filter(lambda path: named.search(texts[path]), texts):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in MAKERS:
                    found.append(f"{path.relative_to(PACKAGE)}: {name}")
    assert found == ["bus/broker/transport/clients.py: ConnectionPool", "bus/broker/transport/clients.py: Redis"]


def test_every_public_name_is_what_type_checkers_see() -> None:
    """The names that are imported when they are first asked for come from where the imports for type checkers say."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(seen) == sorted(toolbus.__all__)
    for name, module in seen.items():
        assert getattr(toolbus, name) is getattr(sys.modules[str(module)], name)
    with pytest.raises(AttributeError, match="'nonsense'"):
        toolbus.nonsense  # noqa: B018


def test_other_public_names_are_where_the_package_says() -> None:
    """Each submodule that the package's docstring lists has the names that stand beside it, and none of them is in ``toolbus`` itself."""
    listed = re.findall(r"^- ``(toolbus[\w.]+)``: (.*)$", str(toolbus.__doc__), re.MULTILINE)
    assert len(listed) > 5
    for module, text in listed:
        names = re.findall(r"``(\w+)``", text)
        assert names
        for name in names:
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"
            assert name not in toolbus.__all__


INDIRECT = re.compile(r"(What|Who|Whose|Whoever|Whatever|Whether|Those|How|Which|Where|That|These)\b")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("folder", ["toolbus", "workers", "tests", "benchmarks", "website"])
def test_docstrings_are_plain_sentences(folder: str) -> None:
    """A docstring begins with a statement, an imperative or a noun phrase, never with a word like "What" or "Whether"."""
    # The environments of a benchmark's peers hold the code of others.
    paths = [path for path in (PACKAGE.parent / folder).rglob("*.py") if ".venvs" not in path.parts]
    assert paths
    found = []
    # Few files have a text that begins so, and only they are parsed.
    begins = re.compile(rf"""["']\\?\s*{INDIRECT.pattern}""")
    for path in paths:
        text = path.read_text("utf-8")
        nodes = (node for node in ast.walk(ast.parse(text if begins.search(text) else "")) if isinstance(node, DOCUMENTED))
        texts = (ast.get_docstring(node) or "" for node in nodes)
        found += [f"{path.relative_to(PACKAGE.parent)}: {text}" for text in texts if INDIRECT.match(text)]
    assert found == []


@tool(service="path", effect="read")
async def echo_path(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="path", effect="read", confirm=True)
async def confirmed_path(text: str) -> str:
    """Give a text back, if a person allows it."""
    return text


MOST_FILES, MOST_CALLS = 16, 122
# What an executor adds to a call, with a confirmer, and a confirmation that it gives at once.
MOST_EXECUTED, MOST_CONFIRMED = 67, 113


@pytest.mark.anyio
async def test_a_call_is_short(server: str, namespace: str) -> None:
    """A reader who follows one warm call, from the caller and back, meets no more files and calls than docs/adr/0034 counts.

    Counted is what runs in this process until the result is there: caller, broker and worker. Each function of the package counts as often
    as it is entered; a coroutine that goes on, a comprehension and a lambda count as well, as they do for sys.setprofile.
    """
    (called, executed, confirmed), sent = await shortest_paths(server, namespace)
    files = {call.partition(" ")[0] for call in called}
    assert len(files) <= MOST_FILES, "\n".join(sorted(files))
    assert len(called) <= MOST_CALLS, "\n".join(called)
    assert len(files) > 10, "the call was not followed"
    assert len(executed) <= MOST_CALLS + MOST_EXECUTED, "\n".join(executed)
    assert len(confirmed) <= MOST_CALLS + MOST_CONFIRMED, "\n".join(confirmed)
    assert sent[1:] == sent[:1] * 2, "an executor says no more to the server than a call, and neither does its own process's confirmation"


async def shortest_paths(server: str, namespace: str) -> tuple[list[list[str]], list[int]]:
    """Return the functions that one call enters, and how often it usually writes to the server.

    Of a program's call, an executor's, and an executor's with a confirmation.
    """
    settings = Settings.load({}, url=server, namespace=namespace)
    runs: list[list[str]] = []

    async def allow(_: object) -> bool:
        return True

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            runs[-1].append(f"{frame.f_code.co_filename} {frame.f_code.co_name}")

    async with Worker([echo_path, confirmed_path], settings=settings), ToolBus(settings=settings) as bus:
        executor = bus.executor(user="alice", confirmer=allow, confirm_anywhere=False)
        shortest: list[list[str]] = []
        writes: list[int] = []
        for make, name in ((bus.call, "echo_path"), (executor.execute, "echo_path"), (executor.execute, "confirmed_path")):
            await bus.wait_for_tool(name)
            for _ in range(20):
                await make(name, {"text": "warm"})
            # Beats and turns of the upkeep fall into some of the calls.
            runs.clear()
            for _ in range(20):
                runs.append([])
                before = sys.getprofile()
                sys.setprofile(note)
                try:
                    assert (await make(name, {"text": "x"})).success
                finally:
                    sys.setprofile(before)
            shortest.append(min(runs, key=len))
            # Any single call may share a write with what else is due.
            writes.append(statistics.mode(sum(call.endswith("wire.py send") for call in run) for run in runs))
    return shortest, writes
