"""Every Python example of the documentation is run by a test; those that no other test runs are run here."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest

from tests.docs.accounts import PYTHON
from tests.docs.fences import PAGES, ROOT, fences
from toolbus import Retry, ToolBus, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.settings import Settings

RELIABILITY = "docs/explanation/reliability.md"
MCP = "docs/how-to/mcp.md"
PINS = "docs/how-to/pins.md"


def examples(page: str) -> list[str]:
    """Return the Python examples of a page."""
    return [fence.text for fence in fences(ROOT / page) if fence.kind == "python"]


def defined(example: str) -> dict[str, Any]:
    """Return the names that an example defines."""
    found: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "example", "exec"), found)
    return found


def test_every_example_is_accounted_for() -> None:
    """Each page with examples is in the table with their number: a new one has no test yet."""
    counted = Counter(fence.page for page in PAGES for fence in fences(page) if fence.kind == "python")
    assert {page: number for page, (number, _) in PYTHON.items()} == dict(counted)


@pytest.mark.parametrize("page", PYTHON)
def test_the_test_of_a_page_reads_it(page: str) -> None:
    """The test that the table names is there and names the page."""
    text = (ROOT / PYTHON[page][1]).read_text("utf-8")
    assert page in text or f'"{page.rpartition("/")[2]}"' in text


def test_a_service_with_retries_is_one() -> None:
    """The service of the page about reliability has the retries that it shows."""
    service = defined(examples(RELIABILITY)[0])["Prices"]
    assert service.retry == Retry(attempts=4, delay=0.5, most=20.0)


@pytest.mark.anyio
async def test_a_stream_is_resumed_as_it_is_shown() -> None:
    """The call of the page about reliability runs, and goes on after the characters that its caller has."""

    @tool(service="reports", effect="read")
    async def report(month: str):
        """Write a report."""
        yield month * 300

    code = compile(examples(RELIABILITY)[1].replace("...", "print(await call.result())"), "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with Worker([report], url="memory://"), ToolBus("memory://") as bus:
        printed: list[Any] = []
        await eval(code, {"bus": bus, "print": printed.append})
        assert printed[0].output == "March" * 300


@pytest.mark.anyio
async def test_a_tool_that_is_a_task_can_be_called() -> None:
    """The tool of the guide to MCP, whose calls become tasks, runs for other callers as well."""
    build = defined(examples(MCP)[0])["build"]
    async with Worker([build], url="memory://"), ToolBus("memory://") as bus:
        assert (await bus.call("build", {"branch": "main"})).output == "compiling\n"


@pytest.mark.anyio
async def test_what_is_there_is_approved(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of the guide to approvals approves every tool that is offered, under the name that it gives."""

    @tool(service="found", effect="read")
    async def search(query: str) -> str:
        """Search."""
        return query

    monkeypatch.setenv("TOOLBUS_URL", server)
    monkeypatch.setenv("TOOLBUS_NAMESPACE", namespace)
    async with Worker([search]), ToolBus() as bus:
        await bus.wait_for_tool("search", timeout=60)
        assert await defined(examples(PINS)[0])["approve_what_is_there"]() == ["search"]
        async with Admin(Settings.load()) as admin:
            assert [each.by for each in await admin.pins.all()] == ["set-up"]
            await admin.pins.remove("search")
