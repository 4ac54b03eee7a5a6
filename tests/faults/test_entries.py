"""Entries of the keys that live: bounded, however many services, workers, agents and sessions have come and gone."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
import redis

from tests.contract import Place
from tests.faults.programs import LEASE, place_of, programs
from tests.forking import ForkServer
from tests.servers import BOUNDS, entries, eventually, family
from toolbus import Session, ToolService, tool

pytestmark = pytest.mark.anyio

_ROUNDS = 100
_KILLED = 4
# By what is alive at the end: one service, one worker and one agent.
_ALIVE = {
    "q": 1,
    "fence": 8,
    "cancelled": 0,
    "rsp": 2,
    "live": 1,
    "reg:services": 1,
    "reg:s": 8,
    # One has the services that went within a day.
    "reg:meta": 3,
    # Four names are looked at for each that is written, and 64 at a time.
    "reg:names": 80,
    # Of two hours.
    "order": _ROUNDS + _KILLED + 1,
    # Each has a time to live of its own, and the reply and record of one call.
    "call": 2,
    "key": 6,
}


class Stays(ToolService):
    """A service that lasts."""

    id = "stays"
    sticky_sessions = True

    @tool("stay", effect="idempotent")
    async def stay(self, text: str) -> str:
        """Return a text."""
        return text

    async def cleanup(self, session: Session | None = None) -> None:  # type: ignore[override]
        """Have nothing to clean up."""


def passing(number: int) -> ToolService:
    """A service that another one takes the place of."""

    class Passing(ToolService):
        """Comes and goes."""

        id = f"passing-{number}"

        @tool(f"pass-{number}", effect="idempotent")
        async def go(self, text: str) -> str:
            """Return a text."""
            return text

    return Passing()


async def come_and_go(place: Place, number: int) -> None:
    """Be a service, another worker of the one that stays, and an agent with a user, a session and keys of their own."""
    async with place.worker(passing(number)), place.worker(Stays()), place.bus() as bus:
        view = bus.bind(user=f"u{number}", session=f"s{number}")
        for name in (f"pass-{number}", "stay"):
            await bus.wait_for_tool(name)
            result = await view.call(name, {"text": "x"}, idempotency_key=f"{name}-{number}")
            assert result.success, result.error


@pytest.mark.usefixtures("slow")
async def test_what_came_and_went_leaves_no_entries(server: str, namespace: str, forks: ForkServer, tmp_path: Path) -> None:
    """After services, workers, agents and sessions have come and gone, also by SIGKILL, each key has what is alive and no more."""
    place = place_of(server, namespace)
    place.settings = place.with_(cooldown=0.2)
    with programs(forks) as start, redis.Redis.from_url(server, decode_responses=True) as client:
        async with place.worker(Stays()), place.bus() as bus:
            for first in range(0, _ROUNDS, 5):
                await asyncio.gather(*(come_and_go(place, number) for number in range(first, first + 5)))
            for number in range(_KILLED):
                agent = start("tests.faults.notes", "agent", server, namespace, str(LEASE), f"s{number}")
                worker = start("tests.faults.notes", "worker", server, namespace, str(LEASE), str(tmp_path / "ends"))
                assert agent.stdout is not None
                await asyncio.to_thread(agent.stdout.readline)
                for process in (worker, agent):
                    process.send_signal(signal.SIGKILL)
            await bus.wait_for_tool("stay")
            assert (await bus.call("stay", {"text": "x"}, session="last")).success
            try:
                # The killed workers and agents are noticed when their leases end.
                await eventually(lambda: not too_many(client, namespace), timeout=30.0, interval=0.2)
            finally:
                assert too_many(client, namespace) == {}


def too_many(client: redis.Redis, namespace: str) -> dict[str, int]:
    """The keys that have more entries than is stated, and how many."""
    prefix = f"tb:{{{namespace}}}:"
    sizes = entries(client, list(client.scan_iter(f"{prefix}*", count=1000)))
    assert sizes
    bounds = BOUNDS | _ALIVE
    return {name: number for key, number in sizes.items() if number > bounds.get(family(name := key.removeprefix(prefix)), -1)}
