"""The service that is called to try a deployment."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

from toolbus.results import ToolError
from toolbus.worker.definition.service import ToolService
from toolbus.worker.run.invocation import invocation

SERVICE = "TOOLBUS_DIAGNOSIS_SERVICE"
"""The variable that tells a worker process the service's id."""

KINDS = ("echo", "count", "wait", "die")


class Diagnosis(ToolService):
    """Tools that answer at once, stream, wait, or kill their first worker.

    Args:
        id: the service's id, which begins the names of its tools; each run has one of its own.
    """

    effect = "idempotent"

    def __init__(self, id: str) -> None:
        parameters = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}}
        documents = tuple({"name": f"{id}-{kind}", "description": f"Try {kind}.", "parameters": parameters} for kind in KINDS)
        # Class variables of services that are written down.
        self.__dict__.update(id=id, description="tries this deployment, and is gone in a moment", tools=documents)
        self.owner_label = id
        self.cancelled = asyncio.Event()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str]:
        """Run one of the tools.

        Raises:
            ToolError: it has no such tool.
        """
        call = invocation()
        match call.tool.removeprefix(f"{self.id}-"):
            case "echo":
                yield str(arguments.get("n", 0))
            case "count":
                for number in range(arguments.get("n", 0)):
                    yield f"{number} "
            case "wait":
                try:
                    yield "waiting"
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            case "die":
                if call.attempt == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield f"attempt {call.attempt}"
            case other:
                raise ToolError(f"there is no {other!r}", type="not_found")


def __getattr__(name: str) -> Diagnosis:
    """Return the service for a worker process, which is started with ``toolbus.diagnosis.service:service``."""
    if name == "service":
        return Diagnosis(os.environ[SERVICE])
    raise AttributeError(name)
