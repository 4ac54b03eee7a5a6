"""``Toolbox``: the tools of one task, served to its model alone, in this process."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from toolbus.client.bus import ToolBus
from toolbus.client.executor.executor import ToolExecutor
from toolbus.middleware.chain import Middleware
from toolbus.settings import Settings
from toolbus.worker.definition.function import held
from toolbus.worker.definition.service import ToolService
from toolbus.worker.worker import Worker

# Results that a task's model has seen are of no other task's concern.
_SESSION = "task"


@asynccontextmanager
async def toolbox(
    functions: Mapping[str, Callable[..., Any]], around: Middleware, *, model: str, seconds: float
) -> AsyncIterator[ToolExecutor]:
    """Provide an executor of these functions, for ``async with``.

    Args:
        functions: objects' methods, by name.
        around: middleware around each of them.
        model: the executor's.
        seconds: that a call may take.
    """
    settings = Settings.load(base=Settings.load(), url="memory://", namespace=f"task-{secrets.token_hex(8)}", require_approval=False)
    members: dict[str, Any] = {name: staticmethod(held(function)) for name, function in functions.items()}
    service = type("TaskTools", (ToolService,), {"id": "task", "__module__": __name__, "__doc__": "The tools of a task.", **members})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Worker(service, settings=settings, middleware=[around]))
        bus = await stack.enter_async_context(ToolBus(settings=settings))
        for name in functions:
            await bus.wait_for_tool(name)
        yield bus.executor(model=model, session=_SESSION, timeout=seconds, sequential=[*functions])
