"""The exporter's log of an outage, which nothing else in its process tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.servers import eventually
from toolbus import Settings
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
