"""Fixtures for every test: real servers, a namespace per test with a leak check, and asyncio as the loop.

``server`` (and ``url``, the same) runs a test on every kind of server there is;
``valkey_server`` on Valkey alone; ``fresh_server`` makes servers that a test may
stop, kill and start again. All yield URLs but the last, which yields the server.
"""

from __future__ import annotations

import collections
import gc
import importlib.util
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract import Place
from tests.examples import load_profile
from tests.forking import ForkServer, nothing_left
from tests.servers import KINDS, Servers, leaks, new_server
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry.logger import repeats

_UVLOOP = "TOOLBUS_TEST_UVLOOP"

# Tests that share something dear (a cluster, the SDKs' imports), so that one process of pytest-xdist runs them all.
_GROUPS = ("tests/adapters/", "tests/faults/test_migrating.py", "tests/toolkit/test_draw.py")

# Of characters or bytes, in what a test is called by pytest.
_LONGEST_ID = 80

# What a test of `make test` may take, in seconds; the end of a run lists those that took more.
_MOST_SECONDS = 3.0

load_profile()

# A script that starts the suite with & or nohup ignores these signals, and a child would inherit that. It does not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and what is run best by one process."""
    for item in items:
        if "slow" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        for group in _GROUPS:
            if item.nodeid.startswith(group):
                item.add_marker(pytest.mark.xdist_group(group))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long text by its beginning and its length: pytest would send megabytes between its processes."""
    if not isinstance(val, str | bytes) or len(val) <= _LONGEST_ID:
        return None
    return f"{val[:20]!a}..{len(val)}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests without the fixture ``slow`` that took long."""
    took: dict[str, float] = collections.defaultdict(float)
    for report in [each for reports in terminalreporter.stats.values() for each in reports if isinstance(each, pytest.TestReport)]:
        if "slow" not in report.keywords:
            took[report.nodeid] += report.duration
    long = sorted(((seconds, name) for name, seconds in took.items() if seconds > _MOST_SECONDS), reverse=True)
    if long:
        terminalreporter.section(f"over {_MOST_SECONDS:g} s: wait less, or use the fixture `slow`")
        terminalreporter.write("".join(f"{seconds:7.1f} s {name}\n" for seconds, name in long))


@pytest.fixture(scope="session")
def slow() -> None:
    """Have a test run by ``make test-slow``; fixtures that take seconds ask for it, and so do tests of long stories and matrices."""


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


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Leave all that there is before a module's tests out of the collections that follow, which take less than a millisecond then."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collected(frozen: None) -> Iterator[None]:
    """Fail the test that leaves something running or unclosed, and not the one in which Python happens to notice."""
    with nothing_left():
        yield
    gc.collect()


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
