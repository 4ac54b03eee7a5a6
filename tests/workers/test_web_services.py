"""The tools of the Web as the guide presents them: what starts, what is configured, what is described."""

import asyncio
import importlib
import re
import sys
from pathlib import Path

import pytest
from toolbus_workers.fetch_page import FetchPage

from tests.tiers import some
from tests.workers.pages import answer, local, names, site
from toolbus import Settings, ToolBus, Worker
from toolbus.bus.worker.collect import collect

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2].joinpath("docs/reference/web-tools.md").read_text("utf-8")
MODULES = ["toolbus_workers.fetch_page", "toolbus_workers.crawl_batch", "toolbus_workers.web_search", "toolbus_workers.get_weather"]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_serves_its_one_tool_as_the_guide_says(name):
    """Its row names the module and every config param; the tool and its arguments are described, and their number is bounded."""
    (served,) = collect(importlib.import_module(name), Settings())
    (tool,) = served.publication.tools
    row = next(line for line in GUIDE.splitlines() if line.startswith(f"| `{tool.name}("))
    assert f"`{name}`" in row
    inherited = {"toolbus_workers.crawl_batch": {"hosts", "max_bytes", "max_seconds", "max_chars"}}.get(name, set())
    for param in served.publication.service.config_params:
        assert f"`{param.name}`" in row or param.name in inherited
    assert all(schema.get("description") for schema in tool.parameters["properties"].values())
    assert f"({', '.join(tool.parameters['properties'])})" in row
    assert tool.effect == "read"


@pytest.mark.parametrize("name", some(MODULES[:1], MODULES))
async def test_a_module_starts_with_one_command(name, valkey_server, namespace):
    """``toolbus worker`` and the module's name are enough; the tool answers, if only that the arguments are wrong."""
    command = [sys.executable, "-m", "toolbus", "--url", valkey_server, "--namespace", namespace, "worker", name]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with ToolBus(valkey_server, namespace=namespace) as bus:
            tool = name.rpartition(".")[2]
            await bus.wait_for_tool(tool, 30)
            result = await bus.call(tool, {})
    finally:
        process.terminate()
        async with asyncio.timeout(15):
            assert await process.wait() == 0
    assert result.error.type == "invalid_arguments"


def test_the_guide_shows_how_to_open_an_intranet():
    """The example runs, and opens what it says."""
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    made = {}
    exec(example, made)
    guard = made["intranet"]._fetching._guard
    assert guard.permits("10.20.1.1")
    assert not guard.permits("10.21.1.1")


async def test_the_guide_s_narrowed_tool_can_be_added_to_a_running_service(valkey_server, namespace, command):
    """A descriptor with config values makes another tool of the same service, which keeps to them."""
    (document,) = re.findall(r"echo '(\{.*?\})' \| toolbus operate items put", GUIDE, re.DOTALL)
    resolve = names(docs_python_org="127.0.0.1", elsewhere_test="127.0.0.1")
    async with (
        site(answer("<p>honey " * 10_000)) as there,
        Worker([FetchPage(local(resolve=resolve))], url=valkey_server, namespace=namespace),
        ToolBus(valkey_server, namespace=namespace) as bus,
    ):
        await command(valkey_server, namespace, "operate", "items", "put", "tool/read-docs", given=document)
        await bus.wait_for_tool("read-docs", 10)
        inside = await bus.call("read-docs", {"url": there.url(host="docs.python.org")})
        outside = await bus.call("read-docs", {"url": there.url(host="elsewhere.test")})
        await command(valkey_server, namespace, "operate", "items", "rm", "tool/read-docs")
    assert len(inside.data["text"]) == 20_000
    assert (outside.error.type, outside.error.code) == ("forbidden", "forbidden_host")
