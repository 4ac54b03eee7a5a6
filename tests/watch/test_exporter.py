"""The exporter: its log of an outage, which nothing else in its process tells, and what it leaves at the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.servers import eventually
from toolbus import Settings, Worker, tool
from toolbus.bus.broker.server.access import rights
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.watch import exporter
from toolbus.operations.exporter import ProbedNamespace

pytestmark = pytest.mark.anyio


async def test_an_outage_is_logged_at_its_beginning_and_its_end(
    fresh_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that refuses writes, and one that is away, are each one line and another when it is over."""
    monkeypatch.setattr(exporter, "_KEPT", 0.0)
    monkeypatch.setattr(exporter, "_KEPT_AWAY", 0.0)
    caplog.set_level("INFO", "toolbus")
    server = fresh_server()
    watched = ProbedNamespace(Settings.load({}, url=server.url))
    watched.started = True

    async def logged(*events: str) -> bool:
        await watched.unready()
        await watched.metrics()
        return [getattr(record, FIELDS, {}).get("event") for record in caplog.records] == list(events)

    assert await logged()
    with redis.Redis.from_url(server.url) as client:
        client.config_set("min-replicas-to-write", 1)
        assert await logged("link.held_up")
        assert await logged("link.held_up")
        client.config_set("min-replicas-to-write", 0)
    assert await logged("link.held_up", "link.restored")
    server.kill()
    assert await logged("link.held_up", "link.restored", "link.lost")
    server.start()
    await eventually(lambda: logged("link.held_up", "link.restored", "link.lost", "link.restored"), timeout=20.0)


@tool(service="scraped", effect="read")
async def watched() -> None:
    """Do nothing."""


async def test_what_watches_tries_nothing_again_that_it_may_not(
    fresh_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's log of refusals is for people who look for an intruder: an exporter fills it once, and not at each scrape."""
    monkeypatch.setattr(exporter, "_KEPT", 0.0)
    server = fresh_server()
    settings = Settings.load({}, url=server.url)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "mon", "on", ">secret", *rights(["monitor"], settings.namespace).rules().split())
        async with Worker([watched], settings=settings):
            exported = ProbedNamespace(Settings.load({}, url=server.url.replace("redis://", "redis://mon:secret@")))
            exported.started = True
            assert "toolbus_workers{" in await exported.metrics()
            client.acl_log_reset()
            for _ in range(3):
                assert "toolbus_workers{" in await exported.metrics()
            assert client.acl_log() == []
