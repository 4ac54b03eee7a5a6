"""A browser for all tests, a gateway on a real server, and workers as processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.gateway.page.browser import PROGRAM, Browser, Page, running
from tests.gateway.page.serving import gateway
from toolbus import Settings, ToolBus

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser of this pytest process."""
    if PROGRAM is None:
        pytest.skip("no Chromium on PATH (Debian: chromium), so nothing was run in a browser")
    with running() as found:
        yield found


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, valkey_server: str, namespace: str) -> Iterator[Shell]:
    """Commands in a folder of their own, on the test's namespace, with a short lease."""
    made = Shell(forks, tmp_path, valkey_server, namespace)
    made.environment["TOOLBUS_LEASE"] = "1"
    yield made
    made.close()


@pytest.fixture
async def bus(valkey_server: str, namespace: str) -> AsyncIterator[ToolBus]:
    """The gateway's bus."""
    async with ToolBus(settings=Settings(url=valkey_server, namespace=namespace, lease=1.0)) as found:
        yield found


@pytest.fixture
async def address(bus: ToolBus) -> AsyncIterator[str]:
    """The address of a gateway that takes everybody for its operator."""
    async with gateway(bus) as url:
        yield url


@pytest.fixture
async def page(browser: Browser, address: str) -> AsyncIterator[Page]:
    """The page of the gateway, live; afterwards nothing may have been complained of."""
    async with browser.page(f"{address}/") as found:
        await found.wait("globalThis.toolbusPage?.connection === 'live'")
        yield found
        assert found.errors == []
        assert {url for url in found.requests if not url.startswith((address, "blob:", "about:"))} == set()
