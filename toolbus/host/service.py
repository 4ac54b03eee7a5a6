"""``RecordedService``: a recorded tool as a service of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from toolbus.backends.runner import Output
from toolbus.host.pool import Pool
from toolbus.host.pool.losses import CLOSED
from toolbus.host.relay import Item, Relay
from toolbus.platform.described import document_of
from toolbus.platform.records import RecordedTool
from toolbus.results import ToolError, ToolResult
from toolbus.worker.definition.service import ToolService
from toolbus.worker.run.invocation import invocation

# A call's own deadline ends everything; a little before it, its caller can still be told what it waited for.
_MOST_MARGIN, _MARGIN = 0.2, 0.05


class RecordedService(ToolService):
    """Passes the calls of one tool to its pool, which whoever made it opens and closes.

    Args:
        record: the tool; the service's id and the tool's name are its id.
        pool: its instances.
    """

    def __init__(self, record: RecordedTool, pool: Pool) -> None:
        self.revise(record, pool)
        # Every host may serve it, and no other program may take its name.
        self.owner_label = f"recorded:{record.tool_id}"

    def revise(self, record: RecordedTool, pool: Pool) -> None:
        """Be the tool as it is recorded now; calls that run go on at the pool that they have."""
        self.pool = pool
        # Class variables of services that are written down.
        self.__dict__.update(id=record.tool_id, description=f"recorded: {record.meta.name or record.tool_id}", tools=(document_of(record),))

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Item]:
        """Run one call at an instance."""
        left = invocation().remaining
        deadline = asyncio.get_running_loop().time() + left - min(_MOST_MARGIN, _MARGIN * left)
        async for item in Relay().run(lambda output: self._call(arguments, output, user, deadline)):
            yield item

    async def _call(self, arguments: dict[str, Any], output: Output, user: str, deadline: float) -> ToolResult:
        """Run one call, at the newest pool: one that waited for an instance goes on waiting there when its tool is revised."""
        while True:
            pool = self.pool
            try:
                return await pool.call(arguments, output, user=user, deadline=deadline)
            except ToolError as error:
                if error.error.code != CLOSED or self.pool is pool:
                    raise
