"""A site with a worker and a gateway for the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.forking import ForkServer
from tests.gateway.served import Site
from tests.servers import eventually_sync, leaks
from toolbus.bus.broker.transport.embedded import EmbeddedServer


@pytest.fixture(scope="module")
def site(forks: ForkServer, shared_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A namespace of the module's own, with a worker and two gateways; afterwards every key in it has a TTL."""
    url = shared_server.url
    made = Site(forks, url, tmp_path_factory.mktemp("site"))
    try:
        made.worker()
        made.urls = [made.gateway("--heartbeat", "0.3", "--resume", "3")[1] for _ in range(2)]
        for each in made.urls:
            eventually_sync(lambda each=each: "echo" in httpx.get(f"{each}/tools").text)
        yield made
    finally:
        made.close()
    found = leaks(url, made.namespace)
    if found:
        pytest.fail(f"keys left without a TTL: {', '.join(found)}", pytrace=False)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the first gateway."""
    async with httpx.AsyncClient(base_url=site.urls[0], timeout=30) as made:
        yield made


@pytest.fixture
async def other(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the second gateway."""
    async with httpx.AsyncClient(base_url=site.urls[1], timeout=30) as made:
        yield made


@pytest.fixture
def own_site(forks: ForkServer, server: str, namespace: str, tmp_path: Path) -> Iterator[Site]:
    """A site of the test's own, in which nothing runs."""
    made = Site(forks, server, tmp_path, namespace)
    yield made
    made.close()
