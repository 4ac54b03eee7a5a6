"""Fixtures for scripts alone: each runs on fakeredis, which takes milliseconds, and on every kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis

from tests.servers import KINDS, Servers
from toolbus.broker.keys import Keys


class FakeServer(fakeredis.FakeRedis):
    """A server in process.

    It differs from real ones: it takes no flags in a script's first line, gives scripts no error table for some commands on a key of a
    wrong type, and knows neither memory limits nor clusters whose slots move. Tests of those run on real servers alone.
    """

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Run a script without the line of its flags."""
        plain = script.partition("\n")[2] if script.startswith("#!") else script
        return super().eval(plain, numkeys, *keys_and_args)


class ScriptPlace:
    """A namespace of the test's own on a server where it runs scripts by hand."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.redis = client
        self.keys = Keys(namespace)


@pytest.fixture(params=["fakeredis", *KINDS])
def script_place(request: pytest.FixtureRequest, servers: Servers, namespace: str) -> Iterator[ScriptPlace]:
    """A namespace of the test's own on fakeredis and on every kind of server."""
    client = FakeServer() if request.param == "fakeredis" else redis.Redis.from_url(servers.get(request.param).url)
    yield ScriptPlace(client, namespace)
    client.close()
