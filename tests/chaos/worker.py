"""A worker process of a run; the fork server forks it, and ``python -m tests.chaos.worker ORDER`` starts one alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from tests.chaos import backlog
from tests.chaos.fork_server import Order
from tests.chaos.history import Journal, Serving
from tests.chaos.tools import define
from toolbus import BrokerError, Worker
from toolbus.bus import telemetry
from toolbus.bus.broker.transport.embedded import HOST
from toolbus.bus.worker.process.health import ProbedWorker, probes


def main(order: Order) -> None:
    """Serve until SIGTERM."""
    asyncio.run(_serve(order))


async def _serve(order: Order) -> None:
    journal = Journal(Path(order.history), order.name, order.pid)
    tools = define(journal, order.revision)
    if order.options.backlog:
        tools.append(backlog.define(Path(order.history), order.name))
    while True:
        try:
            worker = Worker(tools, settings=order.options.settings(order.url))
            async with _probed(worker, order) as started:

                def serving(started: Callable[[], None] = started) -> None:
                    journal.write(Serving(time.monotonic(), order.pid))
                    started()

                await worker.run(serving)
        except BrokerError as error:
            # A worker that starts while the server is down is started again, as any supervisor would.
            telemetry.log.warning("worker.start_failed", error=str(error))
            await asyncio.sleep(0.2)
        else:
            return


@contextlib.asynccontextmanager
async def _probed(worker: Worker, order: Order) -> AsyncIterator[Callable[[], None]]:
    """Answer the probes of its slot, if there are any; yield what says that it serves."""
    probed = ProbedWorker(worker)
    async with contextlib.AsyncExitStack() as stack:
        for port in order.options.health_ports[order.index : order.index + 1]:
            while True:
                try:
                    await stack.enter_async_context(probes(probed, HOST, port))
                    break
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    # The one before it in this slot still drains.
                    await asyncio.sleep(0.1)
        yield lambda: setattr(probed, "started", True)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Order))
