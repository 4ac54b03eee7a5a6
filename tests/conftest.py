"""Fixtures for every test: real servers, a namespace per test with a leak check, and asyncio as the loop.

``server`` (and ``url``, the same) runs a test on every kind of server there is;
``valkey_server`` on Valkey alone; ``fresh_server`` makes servers that a test may
stop, kill and start again. All yield URLs but the last, which yields the server.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract import Place
from tests.examples import load_profile
from tests.forking import ForkServer
from tests.servers import KINDS, Servers, leaks, new_server
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry.logger import repeats

_UVLOOP = "TOOLBUS_TEST_UVLOOP"

# Tests that share something dear (a cluster, the SDKs' imports), so that one process of pytest-xdist runs them all.
_GROUPS = ("tests/adapters/", "tests/faults/test_migrating.py", "tests/toolkit/test_draw.py")

# Those that take seconds each even on a quiet machine: `-m "not slow"` leaves them out while developing.
_SLOW = (
    "tests/agent/test_killed.py",
    "tests/chaos/test_run.py",
    "tests/faults/test_failover.py",
    "tests/faults/test_workers.py",
    "tests/testing/test_guide.py",
)

load_profile()

# A script that starts the suite with & or nohup ignores these signals, and a child would inherit that. It does not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and what is run best by one process."""
    for item in items:
        if item.nodeid.startswith(_SLOW):
            item.add_marker(pytest.mark.slow)
        for group in _GROUPS:
            if item.nodeid.startswith(group):
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def anyio_backend() -> Any:
    """asyncio; with TOOLBUS_TEST_UVLOOP=1 on uvloop."""
    if os.environ.get(_UVLOOP, "") in {"", "0"}:
        return "asyncio"
    if importlib.util.find_spec("uvloop") is None:
        pytest.exit(f"{_UVLOOP} is set, but uvloop is not installed", returncode=2)
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(autouse=True)
def unsaid() -> None:
    """Every test begins as if nothing had been logged yet."""
    repeats.forget()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this pytest process."""
    running = Servers()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """The process from which toolbus commands and other programs are forked."""
    with ForkServer() as running:
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


def _has_roles(request: pytest.FixtureRequest) -> bool:
    """Return whether a test is one of the contract's, in which nobody has a right that its role does not need."""
    return request.module.__name__.startswith("tests.test_contract_")


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, servers: Servers, namespace: str) -> Iterator[Place]:
    """A namespace of the test's own on every kind of server."""
    made = Place(servers.get(request.param).url, namespace, roles=_has_roles(request))
    yield made
    made.close()
