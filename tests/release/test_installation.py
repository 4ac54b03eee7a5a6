"""The wheel, installed with what every installation needs and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.project import project
from tests.servers import eventually_sync

pytestmark = pytest.mark.timeout(600)

COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "agent": ("agent", ("toolbus", "agent", "hello")),
    "demo": ("demo", ("toolbus", "demo")),
    # Drawing comes with the toolkit, whose packages are asked for first.
    "draw": ("toolkit", ("toolbus", "toolkit", "draw", "graph.svg")),
    "embedded": ("embedded", ("toolbus", "dev")),
    "gateway": ("gateway", ("toolbus", "serve")),
    "im": ("im", ("toolbus", "platform", "im", "--server", "ws://127.0.0.1:9", "--contact", "tools")),
    "mcp": ("mcp", ("toolbus", "mcp")),
    "platform": ("platform", ("toolbus", "worker", "coding-agent")),
    "reload": ("reload", ("toolbus", "worker", "tools.py", "--reload")),
    "toolkit": ("toolkit", ("toolbus", "toolkit", "show")),
    "top": ("top", ("toolbus", "see", "top")),
    "web": ("web", ("toolbus", "worker", "web_search")),
}
"""A command that needs each extra, and the extra that it names."""

IMPORTS = {"langchain": "langchain", "langgraph": "langchain", "openai-agents": "openai_agents", "pydantic-ai": "pydantic_ai"}
"""The adapter that needs each extra; LangGraph's tools are LangChain's."""

CALLS = {
    "workers": ("json_query", ("json_query", "document={}", "expression=a")),
    "data": ("data_analysis", ("data_analysis", "sql=SELECT 1", "--session", "s")),
}
"""A service that starts without each extra, and a call of it that says what is missing."""

STARTS = {"graph": "graph_store"}
"""A service that needs each extra when it starts, and not before it has reached the server."""

NOTHING = {
    "all": "is made of the others",
    "anthropic": "the application brings the SDK's objects",
    "openai": "the application brings the SDK's objects",
    "otel": "a worker that should export goes on without, and says so",
    "uvloop": "asyncio's own loop takes its place",
}
"""Extras without which nothing fails, and why."""

TOOL = '''from toolbus import tool


@tool(effect="read")
async def echo(text: str):
    """Say it again."""
    return text
'''


def ran(core: Path, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, with no server to be found unless it is named."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "OTEL_", "PYTHON"))}
    environment = {**known, "PATH": f"{core}:/usr/bin:/bin", "TOOLBUS_URL": "redis://127.0.0.1:1", **more}
    return subprocess.run(
        [core / words[0], *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_every_extra_is_tried() -> None:
    """A new extra says here which command needs it, or why nothing does."""
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    tried = [*COMMANDS, *IMPORTS, *CALLS, *STARTS, *NOTHING]
    assert sorted(tried) == sorted(extras.keys() - {"dev", "docs", "mutants", "release"})


def test_the_core_alone_imports_and_helps(core: Path, tmp_path: Path) -> None:
    """Every public name can be imported, and the command shows its help and its version."""
    program = (
        "import toolbus; [getattr(toolbus, name) for name in toolbus.__all__]; import toolbus.sync, toolbus.testing, toolbus.middleware"
    )
    assert ran(core, tmp_path, "python", "-W", "error", "-c", program).stderr == ""
    assert "worker" in ran(core, tmp_path, "toolbus", "--help").stdout
    assert ran(core, tmp_path, "toolbus", "--version").stdout == f"toolbus, version {project()['version']}\n"


@pytest.mark.parametrize("extra", COMMANDS)
def test_a_command_names_the_extra_that_it_lacks(extra: str, core: Path, tmp_path: Path) -> None:
    """It fails with one line, which has the command that mends it."""
    (tmp_path / "tools.py").write_text(TOOL)
    named, words = COMMANDS[extra]
    done = ran(core, tmp_path, *words)
    assert done.returncode in {1, 2}
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'toolbus[{named}]'" in done.stderr


@pytest.mark.parametrize("extra", IMPORTS)
def test_an_adapter_names_the_extra_that_it_lacks(extra: str, core: Path, tmp_path: Path) -> None:
    """The import's error ends with the command that mends it."""
    adapter = IMPORTS[extra]
    done = ran(core, tmp_path, "python", "-c", f"import toolbus.adapters.{adapter}")
    assert f"pip install 'toolbus[{adapter.replace('_', '-')}]'" in done.stderr.splitlines()[-1]


def test_telemetry_without_its_extra_is_told(core: Path, tmp_path: Path) -> None:
    """A worker that should export says in one line of its log what is missing, and goes on."""
    (tmp_path / "tools.py").write_text(TOOL)
    done = ran(core, tmp_path, "toolbus", "worker", "tools.py", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert [line for line in done.stderr.splitlines() if "telemetry.no_exporter" in line and "pip install 'toolbus[otel]'" in line]
    assert "can't reach redis://127.0.0.1:1" in done.stderr.splitlines()[-1]


@pytest.fixture
def served(core: Path, tmp_path: Path, server: str, namespace: str) -> Iterator[dict[str, str]]:
    """Return the variables with which calls reach a worker that has the services of ``CALLS``."""
    about = {"TOOLBUS_URL": server, "TOOLBUS_NAMESPACE": namespace}
    environment = {**os.environ, **about, "PATH": f"{core}:/usr/bin:/bin"}
    services = [service for service, _ in CALLS.values()]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen([core / "toolbus", "worker", *services], cwd=tmp_path, env=environment, stderr=log, stdout=log)
        try:
            eventually_sync(lambda: "data_" in ran(core, tmp_path, "toolbus", "tools", **about).stdout, timeout=60)
            yield about
        finally:
            worker.terminate()
            worker.wait(60)


def test_a_call_names_the_extra_that_its_worker_lacks(core: Path, tmp_path: Path, served: dict[str, str]) -> None:
    """The worker serves on; the answer says what to install on it."""
    for extra, (_, words) in CALLS.items():
        done = ran(core, tmp_path, "toolbus", "call", *words, **served)
        assert done.returncode != 0, extra
        assert f"pip install 'toolbus[{extra}]'" in done.stderr + done.stdout, extra


@pytest.mark.parametrize("extra", STARTS)
def test_a_service_that_cannot_start_names_its_extra(extra: str, core: Path, tmp_path: Path, server: str, namespace: str) -> None:
    """The worker ends with one line."""
    about = {"TOOLBUS_URL": server, "TOOLBUS_NAMESPACE": namespace}
    done = ran(core, tmp_path, "toolbus", "worker", STARTS[extra], **about)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'toolbus[{extra}]'" in done.stderr
