"""pytest fixtures: ``pytest_plugins = ["toolbus.testing.fixtures"]`` in a ``conftest.py``.

``toolbus_namespace`` is new for each test, ``toolbus_bus`` serves tools in process or on a server, and
``toolbus_server`` is a real server for the whole session. They work with every plugin for async tests.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.middleware import Middleware
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.worker import Worker

# A failing test should not wait half a minute for running calls.
_GRACE = 5.0


Serving = Callable[..., AbstractAsyncContextManager[ToolBus]]
"""The type of the fixture ``toolbus_bus``, which is called with services, and with ``url``, ``settings`` and ``middleware``."""


@pytest.fixture(scope="session")
def toolbus_server() -> Iterator[EmbeddedServer]:
    """Start a real server for the session, on a free port; its address is ``toolbus_server.url``."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def toolbus_namespace() -> str:
    """Return a namespace for one test."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def toolbus_bus(toolbus_namespace: str) -> Serving:
    """Return a function that serves tools in the test's namespace.

    Use it as ``async with toolbus_bus(service, function) as bus``. It serves in process unless ``url=toolbus_server.url`` is
    given. ``middleware`` goes around the handlers.
    """

    @asynccontextmanager
    async def serving(
        *services: object, url: str = "memory://", settings: Settings | None = None, middleware: Sequence[Middleware] = ()
    ) -> AsyncIterator[ToolBus]:
        base = Settings(grace=_GRACE) if settings is None else settings
        chosen = Settings.load(base=base, url=url, namespace=toolbus_namespace)
        # The bus is opened second, so that the registry it loads has the worker's tools.
        async with Worker(list(services), settings=chosen, middleware=middleware), ToolBus(settings=chosen) as bus:
            yield bus

    return serving
