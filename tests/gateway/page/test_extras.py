"""The page and the gateway work without the packages of other extras."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import sys

MISSING = sys.argv[1]


class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if (name + ".").startswith(MISSING + ".") else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Without(each) for each in sys.meta_path]

import httpx
from starlette.routing import Route

from tests.gateway.page.serving import gateway
from toolbus import ToolBus
from toolbus.edges.gateway.app import ROUTES
from toolbus.edges.gateway.page.files import files


async def main():
    paths = {each.path for each in ROUTES if isinstance(each, Route) and "GET" in (each.methods or {"GET"})}
    paths = {path.replace("{path:path}", "app.js") for path in paths}
    assert {"/", "/ui/static/app.js"} <= paths
    async with ToolBus("memory://", namespace="extras") as bus, gateway(bus) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
            for path in sorted(paths):
                async with client.stream("GET", path) as answer:
                    print(path, answer.status_code)


asyncio.run(main())
assert MISSING not in sys.modules
"""


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("missing", ["networkx", "mcp", "opentelemetry.sdk"])
def test_no_route_fails_without_a_package_of_another_extra(missing: str) -> None:
    """Each path that is read answers, the page itself with 200, and none with 500."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, missing], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answered = dict(line.split() for line in done.stdout.splitlines())
    assert (answered["/"], answered["/ui/static/app.js"]) == ("200", "200")
    assert [path for path, status in answered.items() if status == "500"] == []
