"""A worker process of a run; the fork server forks it, and ``python -m tests.chaos.worker ORDER`` starts one alone."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from tests.chaos import backlog
from tests.chaos.fork_server import Order
from tests.chaos.history import Journal
from tests.chaos.tools import define
from toolbus import BrokerError, Worker
from toolbus.bus import telemetry


def main(order: Order) -> None:
    """Serve until SIGTERM."""
    asyncio.run(_serve(order))


async def _serve(order: Order) -> None:
    journal = Journal(Path(order.history), order.name)
    tools = define(journal, order.revision)
    if order.options.backlog:
        tools.append(backlog.define(Path(order.history), order.name))
    while True:
        try:
            await Worker(tools, settings=order.options.settings(order.url)).run()
        except BrokerError as error:
            # A worker that starts while the server is down is started again, as any supervisor would.
            telemetry.log.warning("worker.start_failed", error=str(error))
            await asyncio.sleep(0.2)
        else:
            return


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Order))
