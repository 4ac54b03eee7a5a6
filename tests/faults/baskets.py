"""A worker process for the fault tests of lost sessions: ``python -m tests.faults.baskets URL NAMESPACE LEASE POLICY``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from toolbus import Session, Settings, ToolService, Worker, invocation, tool


class Baskets(ToolService):
    """A list for each session."""

    id = "baskets"

    async def open_session(self, session: Session, initial: dict[str, Any]) -> list[str]:
        """Begin with what the caller has."""
        return list(initial.get("has", []))

    @tool(effect="idempotent")
    async def put(self, what: str, seconds: float = 0.0) -> str:
        """Put something in; answers what is there."""
        state = invocation().state
        state.append(what)
        await asyncio.sleep(seconds)
        return " ".join(state)

    @tool(effect="read", sequential=False)
    async def home(self) -> str:
        """Say which process this is."""
        return str(os.getpid())

    async def save_session(self, session: Session, state: list[str]) -> Any:
        """Write down what is in it."""
        return state

    async def load_session(self, session: Session, saved: Any) -> list[str]:
        """Fill a basket."""
        return list(saved)


if __name__ == "__main__":
    url, namespace, lease, policy = sys.argv[1:5]
    Baskets.session_lost = policy
    chosen = Settings.load({}, url=url, namespace=namespace, lease=lease, grace=1.0, concurrency=8)
    asyncio.run(Worker(Baskets(), settings=chosen).run())
