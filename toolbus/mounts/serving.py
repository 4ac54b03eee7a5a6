"""Serve mounted servers with a worker for as long as both live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from toolbus.middleware.chain import Middleware
from toolbus.mounts.mount import Mount
from toolbus.settings import Settings
from toolbus.worker.definition.service import ToolService
from toolbus.worker.worker import Worker


@asynccontextmanager
async def mounted(services: Sequence[object]) -> AsyncIterator[Callable[[Worker], None]]:
    """Start mounted servers, and end them at the exit; call what is provided with the worker that is to serve them.

    Raises:
        ConfigurationError: one can't be started, or does not answer; says why.
    """
    servers = [service for service in services if isinstance(service, Mount)]

    def serve_with(worker: Worker) -> None:
        for server in servers:
            server.republish = worker.republish

    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        try:
            yield serve_with
        finally:
            for server in servers:
                server.republish = None


@asynccontextmanager
async def serve(
    *services: ToolService, settings: Settings | None = None, middleware: Sequence[Middleware] = (), **options: Any
) -> AsyncIterator[Worker]:
    """Start mounted servers and a worker that serves them; both end at the exit.

    Args:
        services: mounted servers, and any other services.
        settings: as for ``Worker``.
        middleware: as for ``Worker``, and so are further options.

    Raises:
        ConfigurationError: a server can't be started, or does not answer; says why.
        ToolbusError: the worker can't serve.
    """
    async with mounted(services) as serve_with:
        worker = Worker(list(services), settings=settings, middleware=middleware, **options)
        serve_with(worker)
        async with worker:
            yield worker
