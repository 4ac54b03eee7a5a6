"""A worker and an agent that answer calls of every kind all the time, while a test breaks what is between them."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable

import pytest
import redis

from tests.faults import hostile
from tests.servers import eventually
from toolbus import Settings, ToolBus, ToolService, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.values.envelope import Request, new_id, share_digest
from toolbus.bus.values.results import BrokerError

SERVICE = "canary"
# Whatever gets as far as these was not stopped by a reader.
SAFETY_NETS = {"task.failed", "task.given_up", "listener.failed", "link.callback_failed", "run.bug", "worker.failed"}


class Sung(ToolService):
    """Tools of every kind; calls of a session go to one worker."""

    id = SERVICE
    sticky_sessions = True

    @tool(effect="read")
    async def canary_echo(self, text: str, seconds: float = 0.0) -> str:
        """Give a text back."""
        await asyncio.sleep(seconds)
        return text

    @tool(effect="once")
    async def canary_pay(self, text: str) -> str:
        """Have an effect."""
        return text


class Canary:
    """A worker and an agent in a namespace, and who puts things between them."""

    def __init__(self, settings: Settings, worker: Worker, bus: ToolBus, caplog: pytest.LogCaptureFixture) -> None:
        self.settings = settings
        self.worker = worker
        self.bus = bus
        self.keys = Keys(settings.namespace)
        self.client = redis.Redis.from_url(settings.url)
        self._caplog = caplog
        shared = Request("c1", "a1", SERVICE, "canary_echo", idempotency_key="k1")
        # What an earlier caller with the key would have made.
        self.names = hostile.Names(
            SERVICE, bus.agent, worker.instance, new_id(), share_digest(shared), datetime.datetime.now(datetime.UTC).date().isoformat()
        )

    def place(self, name: str) -> hostile.Place:
        """Return the place of a key of ``Keys``."""
        found = hostile.places(self.keys, self.names)[name]
        digest = session_digest("ann", "s1")
        if name in {"session", "snapshot"}:
            return found._replace(key=getattr(self.keys, name)(SERVICE, digest))
        return found._replace(fields=(digest,)) if name == "order" else found

    def cut(self) -> None:
        """Cut every connection of this namespace's processes, so that everything is read anew."""
        for row in self.client.client_list():
            if str(row["id"]) != str(self.client.client_id()):
                self.client.client_kill_filter(_id=row["id"])

    async def sings(self, bus: ToolBus | None = None) -> None:
        """Wait until calls of every kind are answered, five times in a row; a wrong answer fails at once."""
        bus, row = bus or self.bus, 0

        async def right() -> bool:
            nonlocal row
            text = new_id()
            answers = await asyncio.gather(
                bus.call("canary_echo", {"text": text}, timeout=3.0, wait=1.0),
                bus.call("canary_pay", {"text": text}, timeout=3.0, wait=1.0),
                bus.call("canary_echo", {"text": text}, timeout=3.0, wait=1.0, user="ann", session="s1"),
                bus.call("canary_echo", {"text": text}, timeout=3.0, wait=1.0, idempotency_key=text),
            )
            assert {answer.output for answer in answers if answer.success} <= {text}
            row = row + 1 if all(answer.success for answer in answers) else 0
            return row >= 5

        await eventually(right, timeout=45.0)

    async def is_well(self) -> None:
        """Everything goes on: calls, the worker, a new agent, and what operators look at."""
        await self.sings()
        async with ToolBus(settings=self.settings) as another:
            await self.sings(another)
            await eventually(lambda: _answers(another.shared_confirmations.pending()))
            await eventually(lambda: _answers(another.tallies.usage()))
            await another.tallies.spend("canary", 10, 1.0)
            await another.tallies.use("canary", 10, 1.0)
        async with Admin(self.settings) as admin:
            assert SERVICE in {each.publication.service.id for each in await admin.services()}
            await admin.items()
            await admin.health()
            for queue in await admin.dead_letters.queues():
                await eventually(lambda queue=queue: _answers(admin.dead_letters.newest(queue, 1)))
                for letter in await admin.dead_letters.newest(queue, 100):
                    assert datetime.datetime.fromtimestamp(letter.at, datetime.UTC).year >= 1970
        assert self.worker.healthy
        assert self.worker.statistics()["held"] <= 1
        live = self.client.zscore(self.keys.live, f"{SERVICE}/{self.worker.instance}")
        assert live is not None

    def forget(self, place: hostile.Place) -> None:
        """Delete what was put somewhere where nobody else would remove it."""
        if place.kind != "channel":
            self.client.delete(place.key)

    def said(self) -> Counter[str]:
        """Count the lines that were logged of each event."""
        return Counter(getattr(line, FIELDS)["event"] for line in self._caplog.records if hasattr(line, FIELDS))

    def is_quiet(self) -> None:
        """Nothing got past the readers, and nothing filled the log."""
        said = self.said()
        assert not SAFETY_NETS & set(said), [line.exc_text or line.getMessage() for line in self._caplog.records if line.exc_info]
        assert all(lines <= 100 for event, lines in said.items() if event != "call.finished"), said


@pytest.fixture
async def canary(server: str, namespace: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Canary]:
    """A canary that sings."""
    caplog.set_level(logging.INFO, "toolbus")
    settings = Settings.load({}, url=server, namespace=namespace, lease=1.0, grace=2.0)
    async with Worker(Sung, settings=settings) as worker, ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("canary_pay")
        made = Canary(settings, worker, bus, caplog)
        await made.sings()
        yield made
        made.client.close()


async def _answers(asking: Awaitable[object]) -> bool:
    """Return whether the server answers a question, which it may not before keys of a wrong type are deleted."""
    try:
        await asking
    except BrokerError:
        return False
    return True
