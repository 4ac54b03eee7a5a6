"""Calls that wait for a person while processes and servers die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.contract import Place
from tests.forking import ForkServer, Program
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.confirmations import ConfirmationRequest
from toolbus.bus.values.results import ConfirmationClosed

pytestmark = pytest.mark.anyio

WORKER = """
import asyncio, sys
from toolbus import Settings, Worker, invocation, tool

@tool(service="dying", effect="idempotent")
async def risky() -> str:
    "Ask."
    answer = await invocation().confirm("Go on?")
    return f"went on, attempt {invocation().attempt}"

@tool(service="dying", effect="once")
async def risky_once() -> str:
    "Ask."
    await invocation().confirm("Go on?")
    return "went on"

asyncio.run(Worker([risky, risky_once], settings=Settings.load({}, url=sys.argv[1], namespace=sys.argv[2], lease=1.0)).run())
"""

AGENT = """
import asyncio, sys
from toolbus import ToolBus, Settings

async def main():
    async with ToolBus(settings=Settings.load({}, url=sys.argv[1], namespace=sys.argv[2], lease=1.0)) as bus:
        await bus.wait_for_tool("guarded")
        await bus.executor().execute("guarded", {})

asyncio.run(main())
"""


@tool(service="guarded-service", effect="once", confirm=True)
async def guarded() -> str:
    """Run when it is allowed."""
    return "ran"


class Processes:
    """Python programs on a test's namespace."""

    def __init__(self, place: Place, forks: ForkServer) -> None:
        self._place = place
        self._forks = forks
        self.started: list[Program] = []

    def start(self, program: str) -> Program:
        """Start one."""
        settings = self._place.settings
        process = self._forks.start("-c", program, settings.url, settings.namespace, stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process


@pytest.fixture
def processes(place: Place, forks: ForkServer) -> Iterator[Processes]:
    """Programs of the test's own, killed at its end."""
    made = Processes(place, forks)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


async def one_but(bus: ToolBus, *others: str) -> ConfirmationRequest:
    """The one open request that is none of these."""

    async def found() -> list[ConfirmationRequest]:
        return [request for request in await bus.confirmations.pending() if request.id not in others]

    [request] = await eventually(found, timeout=30)
    return request


@pytest.mark.usefixtures("slow")
async def test_the_request_of_a_dead_agent_disappears(place: Place, processes: Processes) -> None:
    """An agent that is killed while it waits leaves its request for ten seconds; who answers it meanwhile does no harm."""
    async with place.serving(guarded, lease=1.0) as bus:
        agent = processes.start(AGENT)
        await one_but(bus)
        agent.kill()
        killed = time.monotonic()

        async def gone() -> bool:
            return not await bus.confirmations.pending()

        await eventually(gone, timeout=15)
        assert time.monotonic() - killed < 15


@pytest.mark.usefixtures("slow")
async def test_a_dead_workers_question_is_asked_anew(place: Place, processes: Processes) -> None:
    """When the worker is killed in mid-wait the next one asks anew, and the call goes on, though its timeout is long over."""
    async with place.bus(lease=1.0) as bus:
        first = processes.start(WORKER)
        await bus.wait_for_tool("risky", timeout=20)
        call = asyncio.create_task(bus.call("risky", timeout=4.0))
        old = await one_but(bus)
        waited = time.monotonic()
        await eventually(lambda: time.monotonic() > waited + 4.1)
        first.kill()
        processes.start(WORKER)
        new = await one_but(bus, old.id)
        # Nobody is asked what the dead worker wanted to know.
        assert [request.id for request in await bus.confirmations.pending()] == [new.id]
        with pytest.raises(ConfirmationClosed):
            await bus.confirmations.allow(old.id)
        assert not call.done()
        await bus.confirmations.allow(new.id)
        result = await call
        assert result.output == "went on, attempt 2", result.error


@pytest.mark.usefixtures("slow")
async def test_once_work_that_asked_is_not_run_again(place: Place, processes: Processes) -> None:
    """A `once` handler whose worker is killed in mid-wait ends as outcome_unknown, and nobody is asked twice."""
    async with place.bus(lease=1.0) as bus:
        first = processes.start(WORKER)
        await bus.wait_for_tool("risky_once", timeout=20)
        call = asyncio.create_task(bus.call("risky_once", timeout=3.0))
        await one_but(bus)
        waited = time.monotonic()
        await eventually(lambda: time.monotonic() > waited + 3.1)
        first.send_signal(signal.SIGKILL)
        processes.start(WORKER)
        error = (await call).error
        assert error is not None
        assert error.type == "outcome_unknown"


@pytest.mark.parametrize("kept", [True, False])
async def test_a_server_restart_in_mid_wait(fresh_server: Callable[..., EmbeddedServer], kept: bool) -> None:
    """After a restart the request is there again, under its id, whether the server kept it or not, and can be answered."""
    server = fresh_server(appendonly=kept)
    settings = Settings.load({}, url=server.url, lease=1.0)
    async with Worker([guarded], settings=settings), ToolBus(settings=settings) as bus, ToolBus(settings=settings) as other:
        await bus.wait_for_tool("guarded")
        call = asyncio.create_task(bus.executor(wait=10.0).execute("guarded", {}))
        before = await one_but(other)
        server.kill()
        server.start()
        assert (await one_but(other)).id == before.id
        with redis.Redis.from_url(server.url) as client:
            services = Keys(settings.namespace).services
            await eventually(lambda: bool(client.hexists(services, "guarded-service")), timeout=30)
        await other.confirmations.allow(before.id)
        result = await call
        assert result.output == "ran", result.error


@pytest.mark.usefixtures("slow")
async def test_an_answer_that_was_not_heard_is_found(fresh_server: Callable[..., EmbeddedServer]) -> None:
    """An answer given while the asker is cut off reaches it when it is back: the connections are dropped just then."""
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=1.0)
    async with Worker([guarded], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("guarded")
        for _ in range(5):
            call = asyncio.create_task(bus.executor().execute("guarded", {}))
            request = await one_but(bus)
            async with ToolBus(settings=settings) as other:
                with redis.Redis.from_url(server.url) as client:
                    client.client_kill_filter(_type="normal", skipme=True)
                await other.confirmations.allow(request.id)
            async with asyncio.timeout(10):
                assert (await call).output == "ran"
