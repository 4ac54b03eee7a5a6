"""Networks that reset, swallow and fall silent, and passwords that change, between clients and a real server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import redis

from tests.chaos.proxy import Proxy
from tests.faults.wired import count, echo
from tests.servers import eventually
from toolbus import BrokerError, Settings, ToolBus, Worker, tool
from toolbus.bus.broker.transport.connection import BLOCK
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio

FreshServer = Callable[..., EmbeddedServer]


@pytest.fixture
async def proxied(fresh_server: FreshServer) -> AsyncIterator[tuple[EmbeddedServer, Proxy]]:
    """A server, and a proxy in front of it."""
    server = fresh_server()
    proxy = Proxy(server.port)
    await proxy.start()
    yield server, proxy
    await proxy.aclose()


def settings_of(port: int, **changes: object) -> Settings:
    """Settings for one port."""
    return Settings.load({}, url=f"redis://127.0.0.1:{port}", lease=2.0, **changes)


@pytest.mark.usefixtures("slow")
async def test_connections_cut_at_any_byte_cost_no_call(proxied: tuple[EmbeddedServer, Proxy]) -> None:
    """While connections are reset again and again, within messages too, each call ends with its own answer, whole."""
    _, proxy = proxied
    settings, chance = settings_of(proxy.port), random.Random(7)
    async with Worker([echo, count], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("count")
        echoes = [asyncio.create_task(bus.call("echo", {"text": str(number)}, timeout=30.0)) for number in range(200)]
        counts = [asyncio.create_task(bus.call("count", {"n": 50, "delay": 0.02}, timeout=30.0)) for _ in range(20)]
        for _ in range(10):
            proxy.cut(0.5, chance=chance, within=3_000)
            await asyncio.wait(counts, timeout=0.15)
        assert [(await call).output for call in echoes] == [str(number) for number in range(200)]
        expected = "".join(f"{number} " for number in range(50))
        assert {(await call).output for call in counts} == {expected}


@pytest.mark.usefixtures("slow")
async def test_half_open_connections_are_given_up_in_bounded_time(
    proxied: tuple[EmbeddedServer, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing passes and nobody is told, the links notice by themselves, and calls go on."""
    # Longer than a blocking read, and shorter than what is usual, for which the test would only wait.
    monkeypatch.setattr("toolbus.bus.broker.transport.link._STALLED", BLOCK + 1.0)
    _, proxy = proxied
    settings = settings_of(proxy.port)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        assert (await bus.call("echo", {"text": "before"}, wait=5.0)).output == "before"
        assert proxy.half_open(100, random.Random(1)) >= 4
        # The bound: a link is given up that long after it last heard of an unanswered command, and looked at twice as often.
        assert (await bus.call("echo", {"text": "after"}, timeout=20.0)).output == "after"


async def test_replies_that_never_arrive_repeat_nothing(proxied: tuple[EmbeddedServer, Proxy]) -> None:
    """The server carries out what was sent, and its answers are lost with the connections: each call is run once."""
    server, proxy = proxied
    ran: list[str] = []

    @tool(service="wired-once", effect="idempotent", replace=True)
    async def note(name: str) -> str:
        """Take note."""
        ran.append(name)
        return name

    async with Worker([note], settings=settings_of(server.port)), ToolBus(settings=settings_of(proxy.port)) as bus:
        await bus.wait_for_tool("note")
        swallowing = asyncio.create_task(proxy.swallow(1.0, 0.3, random.Random(1)))
        await asyncio.sleep(0)
        calls = [asyncio.create_task(bus.call("note", {"name": str(number)}, timeout=20.0)) for number in range(50)]
        assert [(await call).output for call in calls] == [str(number) for number in range(50)]
        await swallowing
    assert sorted(ran, key=int) == [str(number) for number in range(50)]


async def test_a_bus_that_closes_cancels_a_call_whose_publication_is_not_answered_yet(proxied: tuple[EmbeddedServer, Proxy]) -> None:
    """The worker that runs it is told, as for every other call of the bus."""
    server, proxy = proxied
    began, ended = asyncio.Event(), asyncio.Event()

    @tool(service="wired-endless", effect="read", replace=True)
    async def endless() -> str:
        """Run until it is cancelled."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    # With a short lease the worker would soon find that the caller has gone.
    async with Worker([endless], settings=Settings.load(base=settings_of(server.port), lease=60.0, grace=0.0)):
        async with ToolBus(settings=settings_of(proxy.port)) as bus:
            await bus.wait_for_tool("endless")
            # So long the server's answers take, while the worker has its request at once.
            delaying = asyncio.create_task(proxy.delay(0.1, 60.0))
            calling = asyncio.create_task(bus.call("endless"))
            await began.wait()
        async with asyncio.timeout(10.0):
            await ended.wait()
        assert (await calling).error.type == "cancelled"
        delaying.cancel()


@pytest.mark.usefixtures("slow")
async def test_an_agent_that_comes_back_is_not_taken_for_dead(proxied: tuple[EmbeddedServer, Proxy]) -> None:
    """Its reply stream is gone, as with a server's memory, and is there again before a worker can see a call of its new connection."""
    server, proxy = proxied
    chance = random.Random(7)
    async with Worker([echo], settings=settings_of(server.port)), ToolBus(settings=settings_of(proxy.port)) as bus:
        await bus.wait_for_tool("echo")
        with redis.Redis.from_url(server.url) as client:
            [replies] = client.scan_iter("tb:{default}:rsp:*")
            for number in range(20):
                client.delete(replies)
                proxy.cut(1.0, chance=chance)
                result = await bus.call("echo", {"text": str(number)}, timeout=5.0)
                assert result.output == str(number)


async def test_a_rotated_password_is_found_in_its_file(fresh_server: FreshServer, tmp_path: Path) -> None:
    """Connections that the new password shuts out come back by themselves when the file says it too."""
    server = fresh_server(config={"requirepass": "old secret"})
    secret = tmp_path / "password"
    secret.write_text("old secret\n")
    settings = settings_of(server.port, password_file=str(secret))
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        assert (await bus.call("echo", {"text": "before"}, wait=5.0)).output == "before"
        with redis.Redis(port=server.port, password="old secret") as client:
            client.config_set("requirepass", "new secret")
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
        await eventually(lambda: not bus.statistics()["connected"])
        waiting = asyncio.create_task(bus.call("echo", {"text": "patient"}, timeout=20.0))
        with pytest.raises(BrokerError, match="refused the user or password") as refused:
            await ToolBus(settings=settings).open()
        assert "secret" not in str(refused.value)
        secret.write_text("new secret\n")
        assert (await waiting).output == "patient"


async def test_a_missing_password_says_where_to_write_it(fresh_server: FreshServer) -> None:
    """One that is not given, and one whose colon was forgotten, are told with their form; nothing given is shown."""
    port = fresh_server(config={"requirepass": "hush"}).port
    for url, told in (
        (f"redis://127.0.0.1:{port}", f"redis://127.0.0.1:{port} wants a password: write redis://:PASSWORD@HOST"),
        (f"redis://hush@127.0.0.1:{port}", f"redis://***@127.0.0.1:{port} wants a password, and the URL has a user only"),
        (f"redis+cluster://127.0.0.1:{port}", "write redis://:PASSWORD@HOST, or name a file with it in TOOLBUS_PASSWORD_FILE"),
        (f"redis+sentinel://127.0.0.1:{port}/m", "the Sentinels want ?sentinel_password="),
    ):
        with pytest.raises(BrokerError) as refused:
            await ToolBus(url).open()
        assert told in str(refused.value)
        assert "hush" not in str(refused.value)
        assert "HELLO" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://localhost:1", "redis://nowhere.invalid:1", "unix:///nowhere/at/all"])
async def test_a_server_that_cannot_be_reached_is_named_once(url: str) -> None:
    """The reason does not repeat the address."""
    with pytest.raises(BrokerError) as refused:
        await ToolBus(url).open()
    place = url.partition("//")[2]
    assert str(refused.value).count(place) == 1
    assert "Connect call failed" not in str(refused.value)


async def test_a_missing_password_file_says_so(tmp_path: Path) -> None:
    """The file is named, and nothing else is tried."""
    with pytest.raises(BrokerError, match="the password file can't be read"):
        await ToolBus(settings=settings_of(1, password_file=str(tmp_path / "none"))).open()


@pytest.mark.usefixtures("slow")
async def test_an_opening_that_is_cut_in_the_middle_succeeds_or_says_why(proxied: tuple[EmbeddedServer, Proxy]) -> None:
    """Connections that are lost between the first byte and the last answer never leave a worker or an agent hanging."""
    _, proxy = proxied
    settings, chance = settings_of(proxy.port), random.Random(3)
    opened = 0
    for _ in range(30):
        cutting = asyncio.create_task(cut_again_and_again(proxy, chance))
        try:
            async with asyncio.timeout(20):
                async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
                    cutting.cancel()
                    assert (await bus.call("echo", {"text": "open"}, wait=5.0, timeout=10.0)).output == "open"
                opened += 1
        except BrokerError:
            pass
        finally:
            cutting.cancel()
    assert opened > 0


async def cut_again_and_again(proxy: Proxy, chance: random.Random) -> None:
    """Cut connections at random bytes, up to a dozen times."""
    for _ in range(chance.randrange(12)):
        proxy.cut(0.5, chance=chance, within=20_000)
        await asyncio.sleep(chance.random() * 0.02)


@pytest.mark.usefixtures("slow")
async def test_a_drain_without_a_server_ends(fresh_server: FreshServer) -> None:
    """A worker whose server does not answer any more signs off in bounded time all the same."""
    server = fresh_server()
    async with Worker([echo], settings=settings_of(server.port, grace=0.5)):
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 12
    os.kill(server.pid, signal.SIGCONT)
