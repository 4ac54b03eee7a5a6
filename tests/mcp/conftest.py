"""A worker and two gateways for the tests of a module, or of one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.forking import ForkServer
from tests.mcp.site import Raw, Site
from tests.servers import eventually, leaks
from toolbus.bus.broker.transport.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def site(forks: ForkServer, shared_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A namespace of the module's own, with a worker; afterwards every key in it has a TTL."""
    url = shared_server.url
    made = Site(forks, tmp_path_factory.mktemp("mcp"), url)
    made.worker()
    yield made
    made.close()
    found = leaks(url, made.namespace)
    if found:
        pytest.fail(f"keys left without a TTL: {', '.join(found)}", pytrace=False)


@pytest.fixture(scope="module")
def urls(site: Site) -> list[str]:
    """The URLs of two gateways of the site."""
    return [site.gateway()[1] for _ in range(2)]


@pytest.fixture
async def url(urls: list[str]) -> str:
    """The URL of the first gateway, which has tools."""
    for each in urls:
        await listed(each, "echo")
    return urls[0]


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Raw]:
    """A client that has tasks."""
    async with Raw(url) as made:
        yield made


@pytest.fixture
async def other(url: str, urls: list[str]) -> AsyncIterator[Raw]:
    """The same at the second gateway."""
    async with Raw(urls[1]) as made:
        yield made


@pytest.fixture
def own_site(forks: ForkServer, tmp_path: Path, server: str, namespace: str) -> Iterator[Site]:
    """A site of the test's own, in which nothing runs."""
    made = Site(forks, tmp_path, server, namespace)
    yield made
    made.close()


async def listed(url: str, name: str, *, there: bool = True) -> None:
    """Wait until a gateway lists a tool, or does not."""
    async with Raw(url) as raw:

        async def found() -> bool:
            return (name in [tool["name"] for tool in (await raw.ask("tools/list"))["tools"]]) is there

        await eventually(found, timeout=30)
