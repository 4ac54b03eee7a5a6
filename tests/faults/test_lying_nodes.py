"""Sentinels and cluster nodes that lie, that push nonsense, or whose answers never end: a majority decides, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import redis

from tests.faults.wired import echo
from tests.played import Drip, PlayedSentinel, greet, playing
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.embedded import HOST, EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable, ConfigurationError

pytestmark = pytest.mark.anyio

LATE = 10**15


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def sentinel_url(ports: list[int]) -> str:
    return f"redis+sentinel://{','.join(f'{HOST}:{port}' for port in ports)}/mymaster"


async def test_a_sentinel_that_names_a_wrong_master_is_outvoted(server: str, namespace: str) -> None:
    """With an epoch beyond all others; whoever opens finds the master that the other two name."""
    port = port_of(server)
    with playing(PlayedSentinel(1, LATE), PlayedSentinel(port), PlayedSentinel(port)) as sentinels:
        settings = Settings.load({}, url=sentinel_url([each.port for each in sentinels]), namespace=namespace)
        async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("echo")
            assert (await bus.call("echo", {"text": "here"})).output == "here"


@pytest.mark.usefixtures("slow")
async def test_an_epoch_that_one_sentinel_made_up_once_hides_no_failover(
    server: str, fresh_server: Callable[..., EmbeddedServer], namespace: str
) -> None:
    """The others name another master later, while the old one goes on answering: the agent is at the new one then."""
    old, new = port_of(server), fresh_server()
    said = [PlayedSentinel(old, LATE), PlayedSentinel(old), PlayedSentinel(old)]
    with playing(*said) as sentinels:
        url = sentinel_url([each.port for each in sentinels])
        async with Worker([echo], settings=Settings.load({}, url=new.url, namespace=namespace)), ToolBus(url, namespace=namespace) as bus:
            asked = sentinels[0].commands
            await eventually(lambda: sentinels[0].commands > asked + 6)
            said[0].epoch = 1
            for each in said:
                each.epoch, each.port = 2, new.port
            await bus.wait_for_tool("echo", timeout=10.0)
            assert (await bus.call("echo", {"text": "here"})).output == "here"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("payload", [b":-5\r\n", b"_\r\n", b",1.5\r\n"])
async def test_a_sentinel_that_pushes_nonsense_is_followed_on(server: str, namespace: str, payload: bytes) -> None:
    """A payload of any type costs nothing, the connection neither."""
    said = PlayedSentinel(port_of(server))
    said.pushes = b">3\r\n+message\r\n++sdown\r\n" + payload
    with playing(said) as [sentinel]:
        async with ToolBus(sentinel_url([sentinel.port]), namespace=namespace):
            asked, connected = sentinel.commands, sentinel.connections
            await eventually(lambda: sentinel.commands > asked + 12, timeout=15.0)
            assert sentinel.connections <= connected + 1


async def test_sentinels_whose_answers_never_end_are_given_up(server: str, namespace: str) -> None:
    """One of them costs little beside two others; when all are like that, opening fails."""
    port = port_of(server)
    said = [PlayedSentinel(port) for _ in range(3)]
    said[0].answers = Drip()
    with playing(*said) as sentinels:
        url = sentinel_url([each.port for each in sentinels])
        async with asyncio.timeout(10), ToolBus(url, namespace=namespace):
            pass
        for each in said:
            each.answers = Drip()
        with pytest.raises(BrokerUnavailable):
            await asyncio.wait_for(Connector(url).connect(), 20)


async def test_cluster_nodes_whose_answers_never_end_are_given_up() -> None:
    """The one that is asked for the slots drips its answer."""
    with playing(lambda words: greet(words) or Drip()) as [node], pytest.raises(BrokerUnavailable):
        await asyncio.wait_for(Connector(f"redis+cluster://{HOST}:{node.port}", key="key").connect(), 20)


def test_an_answer_has_a_time_limit_as_a_whole() -> None:
    """A blocking client, such as that of the lease thread, does not wait on while a byte comes now and then."""
    with playing(lambda words: greet(words) or Drip(pause=0.1)) as [server]:
        client = Connector(f"redis://{HOST}:{server.port}").sync_client(0.5)
        began = time.monotonic()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
        assert time.monotonic() - began < 5
        client.close()


def test_an_answer_has_a_length_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is longer ends the connection before it has filled the memory."""
    monkeypatch.setattr("toolbus.bus.broker.transport.clients._MOST_RECEIVED", 1_000)
    with playing(lambda words: greet(words) or b"$100000\r\n" + b"a" * 100_000) as [server]:
        client = Connector(f"redis://{HOST}:{server.port}").sync_client(0.5)
        with pytest.raises(redis.exceptions.ConnectionError, match="longer than 1000 bytes"):
            client.ping()
        client.close()


def test_another_server_at_the_port_keeps_the_embedded_one_from_starting_and_nothing_more() -> None:
    """The error comes, also when the answer of what listens there never ends."""
    with playing(lambda _words: Drip(pause=0.1)) as [taken], pytest.raises(ConfigurationError, match="is already in use"):
        EmbeddedServer(taken.port).start()
