"""Fixtures for every test: real servers, a namespace per test with a leak check, and asyncio as the loop.

``server`` (and ``url``, the same) runs a test on every kind of server there is;
``valkey_server`` on Valkey alone; ``fresh_server`` makes servers that a test may
stop, kill and start again. All yield URLs but the last, which yields the server.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.cli.forking import CommandServer
from tests.contract import Place
from tests.servers import KINDS, Servers, leaks, new_server
from toolbus.broker.embedded import EmbeddedServer

_UVLOOP = "TOOLBUS_TEST_UVLOOP"

# A busy machine is no reason to fail.
settings.register_profile("toolbus", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("toolbus")


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    """asyncio; with TOOLBUS_TEST_UVLOOP=1 on uvloop."""
    if os.environ.get(_UVLOOP, "") in {"", "0"}:
        return "asyncio"
    if importlib.util.find_spec("uvloop") is None:
        pytest.exit(f"{_UVLOOP} is set, but uvloop is not installed", returncode=2)
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this pytest process."""
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def commands() -> Iterator[CommandServer]:
    """The process from which toolbus commands are forked."""
    with CommandServer() as running:
        yield running


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: Servers) -> str:
    """The URL of a running server, once per kind."""
    return servers.get(request.param).url


@pytest.fixture
def url(server: str) -> str:
    """The same as ``server``."""
    return server


@pytest.fixture
def valkey_server(servers: Servers) -> str:
    """The URL of a running Valkey, for tests that gain nothing from another kind."""
    return servers.get("valkey").url


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts servers of the test's own: ``fresh_server(kind="valkey", **options of EmbeddedServer)``."""
    started: list[EmbeddedServer] = []

    def start(kind: str = "valkey", **options: object) -> EmbeddedServer:
        made = new_server(kind, **options)
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.stop()


@pytest.fixture
def namespace(servers: Servers) -> Iterator[str]:
    """A namespace of the test's own; afterwards every key in it must have a TTL, or the test fails."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    found = [leak for url in servers.urls() for leak in leaks(url, name)]
    if found:
        pytest.fail(f"keys left without a TTL: {', '.join(found)}", pytrace=False)


@pytest.fixture(params=["memory", *KINDS])
def place(request: pytest.FixtureRequest, servers: Servers, namespace: str) -> Place:
    """A namespace of the test's own on each transport: in process, and on every kind of server."""
    return Place("memory://" if request.param == "memory" else servers.get(request.param).url, namespace)


@pytest.fixture(params=KINDS)
def redis_place(request: pytest.FixtureRequest, servers: Servers, namespace: str) -> Place:
    """A namespace of the test's own on every kind of server."""
    return Place(servers.get(request.param).url, namespace)
