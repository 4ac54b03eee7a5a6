"""Fixtures for scripts alone: each runs on fakeredis, which takes milliseconds, and on every kind of server; and for what steps log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import fakeredis
import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.broker.observing import Observed
from tests.broker.taking import Taking
from tests.broker.users import Users
from toolbus.bus import telemetry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.telemetry.logger import repeats

# For scripts an error is a table, a read that found nothing is false, and what it found is a list of pairs.
_AS_REAL = """local fake_pcall = redis.pcall; redis.pcall = function(name, ...)
  local ok, reply = pcall(fake_pcall, name, ...)
  if not ok then return {err = tostring(reply)} end
  if type(reply) == 'table' and reply.err then reply.err = tostring(reply.err) end
  if name == 'XREADGROUP' and type(reply) == 'table' and not reply.err then return (reply[2] or false) and {reply} end
  return reply
end """.replace("\n", " ")


class FakeServer(fakeredis.FakeRedis):
    """A server in process.

    It differs from real ones: it takes no flags in a script's first line, its ``redis.pcall`` has to be mended, some of its errors read
    otherwise, and it knows neither memory limits nor clusters whose slots move. Tests of those run on real servers alone.
    """

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script without the line of its flags."""
        plain = script.partition("\n")[2] if script.startswith("#!") else script
        return super().eval(_AS_REAL + plain, numkeys, *keys_and_args)


class ScriptPlace:
    """A namespace of the test's own on a server where it runs scripts by hand."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.redis = client
        self.keys = Keys(namespace)


@pytest.fixture(params=["fakeredis", "server"])
def script_place(request: pytest.FixtureRequest, shared_server: EmbeddedServer, namespace: str) -> Iterator[ScriptPlace]:
    """A namespace of the test's own on fakeredis and on every kind of server."""
    client = FakeServer() if request.param == "fakeredis" else redis.Redis.from_url(shared_server.url)
    yield ScriptPlace(client, namespace)
    client.close()


@pytest.fixture
def observed(caplog: pytest.LogCaptureFixture) -> Iterator[Observed]:
    """Yield the log lines of every level and the counters."""
    caplog.set_level(logging.DEBUG, "toolbus")
    repeats.forget()
    reader = InMemoryMetricReader()
    with telemetry.providers(meter=MeterProvider([reader], shutdown_on_exit=False)):
        yield Observed(caplog, reader)


@pytest.fixture
async def taking() -> AsyncIterator[Taking]:
    """A worker with ten slots."""
    made = Taking()
    yield made
    made.bench.forget()


@pytest.fixture
def users(server: str, namespace: str) -> Iterator[Users]:
    """Make users for a test's namespace, on every kind of server."""
    made = Users(server, namespace)
    yield made
    made.remove()
