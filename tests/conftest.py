"""Fixtures for every test: real servers, a namespace per test with a leak check, and asyncio as the loop.

``server`` (and ``url``, the same) is the URL of the server of this pytest process; ``fresh_server`` makes servers that
a test may stop, kill and start again. TOOLBUS_TEST_SERVER names their program for a whole run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import secrets
import signal
import ssl
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import redis.utils
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from tests.contract import Place
from tests.examples import load_profile
from tests.forking import ForkServer, nothing_left
from tests.servers import leaks, new_server
from tests.tiers import spread
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry import metrics
from toolbus.bus.telemetry.logger import repeats

_UVLOOP = "TOOLBUS_TEST_UVLOOP"

# Tests that import something dear (SDKs, the schemas of Kubernetes) by their beginning: they are slow, and one process of pytest-xdist
# runs a group.
_GROUPS = {
    "tests/adapters/": "adapters",
    "tests/deploy/": "kubernetes",
    "tests/examples_run/test_kubernetes.py": "kubernetes",
    "tests/toolkit/test_draw.py": "draw",
}

# Of characters or bytes, in what a test is called by pytest.
_LONGEST_ID = 80

# What a test of `make test` may take, in seconds; the end of a run lists those that took more.
_MOST_SECONDS = 3.0

# The fork server of a run.
_FORKS = pytest.StashKey[ForkServer]()

load_profile()

# A script that starts the suite with & or nohup ignores these signals, and a child would inherit that. It does not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


class Scheduling(LoadGroupScheduling):
    """Forget what is done; otherwise all that a process has run would be counted after each test, for seconds in a whole run."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Take a test as run, and give its process another one."""
        test = self.registered_collections[node][item_index]
        scope = self._split_scope(test)
        unit = self.assigned_work[node][scope]
        unit[test] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Return the scheduler of a run whose tests have groups."""
    return Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Give the processes of pytest-xdist one fork server, which imports what programs need once."""
    if _FORKS not in node.config.stash:
        running = node.config.stash[_FORKS] = ForkServer()
        running.__enter__()
        node.config.add_cleanup(running.__exit__)
    node.workerinput["forks"] = str(node.config.stash[_FORKS].path)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Look for no garbage while tests are collected: what is made then lives to the end."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            _import_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_share(config: pytest.Config) -> None:
    """Import this process's share of the modules, so that in a fresh clone each is compiled by one process and not by all."""
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    modules = sorted(path.relative_to(config.rootpath) for each in config.args for path in Path(each).absolute().rglob("test_*.py"))
    for module in modules[number::count]:
        # What can't be imported is told when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(module.with_suffix("").parts))


# Before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and what is run best by one process."""
    alike: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "slow" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if "shared_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)
        if isinstance(item, pytest.Function) and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
            if group in _GROUPS.values():
                item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            alike[item.nodeid.partition("[")[0]].append(item)
    for found in alike.values():
        few = next(found[0].iter_markers("few")).args[0]
        for place in set(range(len(found))) - spread(few, len(found)):
            found[place].add_marker(pytest.mark.slow)


def _group(item: pytest.Function) -> str:
    """Return which tests share something dear with one, so that one process of pytest-xdist runs them all; empty for none."""
    if group := next((_GROUPS[each] for each in _GROUPS if item.nodeid.startswith(each)), ""):
        return group
    fixtures = item._fixtureinfo.name2fixturedefs
    shared = any(each[-1].scope == "module" for name, each in fixtures.items() if name != "frozen")
    return item.nodeid.partition("::")[0] if shared else ""


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long text by its beginning and its length: pytest would send megabytes between its processes."""
    if not isinstance(val, str | bytes) or len(val) <= _LONGEST_ID:
        return None
    return f"{val[:20]!a}..{len(val)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave out of the report of what passed all that nobody reads: sending it to pytest's main process takes a twentieth of the time."""
    report = yield
    if report.passed and hasattr(item.config, "workerinput"):
        report.sections = []
        report.keywords = {"slow": 1} if "slow" in report.keywords else {}
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List why tests were skipped, a line for each reason, and which tests without the fixture ``slow`` took long by themselves."""
    skipped = [each.longrepr for each in terminalreporter.stats.get("skipped", ())]
    reasons = Counter(each[2].removeprefix("Skipped: ") for each in skipped if isinstance(each, tuple))
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED [{number}] {reason}")
    reports = [each for found in terminalreporter.stats.values() for each in found if isinstance(each, pytest.TestReport)]
    # Without what their fixtures start for others, too.
    calls = [each for each in reports if each.when == "call" and each.duration > _MOST_SECONDS and "slow" not in each.keywords]
    if calls:
        terminalreporter.section(f"over {_MOST_SECONDS:g} s: wait less, or use the fixture `slow`")
        for each in sorted(calls, key=lambda each: -each.duration):
            terminalreporter.write_line(f"{each.duration:7.1f} s {each.nodeid}")


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


@pytest.fixture(autouse=True, scope="session")
def looked_up() -> Iterator[None]:
    """Look up once what each client would for milliseconds: the certificates of public authorities (30) and redis-py's version (3)."""
    make, public = ssl.create_default_context, {certifi.where(), os.environ.get("SSL_CERT_FILE")} - {None}
    kept = functools.cache(make)

    def context(purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH, **options: Any) -> ssl.SSLContext:
        return (kept if options.get("cafile") in public and len(options) == 1 else make)(purpose, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", context)
        patch.setattr(redis.utils, "get_lib_version", functools.cache(redis.utils.get_lib_version))
        yield


@pytest.fixture(autouse=True)
def unsaid() -> None:
    """Every test begins as if nothing had been logged or measured yet."""
    repeats.forget()
    metrics._names.clear()


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
def shared_server() -> Iterator[EmbeddedServer]:
    """The server of this pytest process, on its own port and folder."""
    running = new_server()
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def forks(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """The process from which toolbus commands and other programs are forked, which has imported what they need."""
    shared = getattr(request.config, "workerinput", {}).get("forks")
    with contextlib.nullcontext(ForkServer(Path(shared))) if shared else ForkServer() as running:
        running.run("-c", "", folder=Path.cwd(), environment=os.environ)
        yield running


@pytest.fixture
def server(shared_server: EmbeddedServer) -> str:
    """The URL of a running server; started again when a test left it dead."""
    shared_server.start()
    return shared_server.url


@pytest.fixture
def url(server: str) -> str:
    """The same as ``server``."""
    return server


@pytest.fixture
def fresh_server() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts servers of the test's own: ``fresh_server(**options of EmbeddedServer)``."""
    started: list[EmbeddedServer] = []

    def start(**options: object) -> EmbeddedServer:
        made = new_server(**options)
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.stop()


@pytest.fixture
def namespace(shared_server: EmbeddedServer) -> Iterator[str]:
    """A namespace of the test's own; afterwards every key in it must have a TTL, or the test fails."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    found = leaks(shared_server.url, name) if shared_server.running else []
    if found:
        pytest.fail(f"keys left without a TTL: {', '.join(found)}", pytrace=False)


def _has_roles(request: pytest.FixtureRequest) -> bool:
    """Return whether a test is one of the contract's, in which nobody has a right that its role does not need."""
    return request.module.__name__.startswith("tests.test_contract_")


@pytest.fixture
def place(request: pytest.FixtureRequest, server: str, namespace: str) -> Iterator[Place]:
    """A namespace of the test's own."""
    made = Place(server, namespace, roles=_has_roles(request))
    yield made
    made.close()
