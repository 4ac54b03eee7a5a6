"""Servers that restart, forget and refuse; messages nobody can read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
import redis

from tests.contract import Place
from tests.listening import Listening
from tests.servers import elapse, eventually, plain_metrics
from toolbus import BrokerError, ConfigurationError, Settings, ToolBus, Worker, tool
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.intake import Intake
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError, UnsupportedServer
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.metrics import metrics_of
from toolbus.edges.gateway.options import Everyone
from toolbus.operations.diagnosis import diagnose
from toolbus.operations.exporter import ProbedNamespace

pytestmark = pytest.mark.anyio

FreshServer = Callable[..., EmbeddedServer]


@tool(service="steady", effect="read")
async def echo(text: str) -> str:
    """Give a text back."""
    return text


@tool(service="steady", effect="idempotent")
async def nap(seconds: float) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "rested"


def keys_of(place: Place) -> str:
    """The key prefix of a test's namespace."""
    return f"tb:{{{place.settings.namespace}}}:"


@pytest.mark.parametrize("kept", [True, False])
async def test_a_server_restart_heals_by_itself(fresh_server: FreshServer, kept: bool) -> None:
    """Worker and agent reconnect, register and serve again, whether the server kept its data or not."""
    server = fresh_server(appendonly=kept)
    settings = Settings.load({}, url=server.url, lease=1.0)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        assert (await bus.call("echo", {"text": "before"})).output == "before"
        server.kill()
        server.start()

        async def healed() -> bool:
            return (await bus.call("echo", {"text": "after"}, timeout=1.0)).output == "after"

        await eventually(healed, timeout=20)


@tool(service="steady", effect="read")
async def count(numbers: int) -> AsyncIterator[str]:
    """Count."""
    for number in range(numbers):
        yield f"{number} "
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("seconds", [0.5, 2.5])
async def test_streams_outlast_a_server_that_refuses_writes(fresh_server: FreshServer, seconds: float) -> None:
    """While a save fails, frames and ends are kept; then every stream goes on where it was, in its first attempt."""
    server = fresh_server(config={"save": "3600 1"})
    assert server.data_dir is not None
    settings = Settings.load({}, url=server.url, lease=10.0)
    client = redis.Redis.from_url(server.url)
    wanted = "".join(f"{number} " for number in range(300))
    async with Worker([count], settings=settings, concurrency=6) as worker, ToolBus(settings=settings) as bus:
        calls = [asyncio.create_task(bus.call("count", {"numbers": 300}, timeout=30.0)) for _ in range(6)]
        await eventually(lambda: worker.statistics()["frames_sent"] >= 60)
        obstacle = server.data_dir / "dump.rdb"
        obstacle.mkdir()
        client.bgsave()
        await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("a", 1)
        # The longer time is more than the handlers take, so that their ends are refused, too.
        await elapse(seconds)
        assert not any(call.done() for call in calls)
        obstacle.rmdir()
        client.bgsave()
        restored = monotonic()
        results = [await call for call in calls]
    # None had to be run again, which takes a lease.
    assert monotonic() - restored < 5.0
    assert [(result.output, result.meta.attempts) for result in results] == [(wanted, 1)] * 6
    client.close()


class Refusing:
    """A server that can be made to refuse every write, as it does when it can't save."""

    def __init__(self, server: EmbeddedServer, client: redis.Redis) -> None:
        assert server.data_dir is not None
        self._obstacle = server.data_dir / "dump.rdb"
        self._client = client

    def begin(self) -> None:
        """Let a save fail."""
        self._obstacle.mkdir()
        self._client.bgsave()

    def end(self) -> None:
        """Let the next one succeed."""
        self._obstacle.rmdir()
        self._client.bgsave()


@pytest.mark.usefixtures("slow")
async def test_a_server_that_refuses_writes_makes_processes_unready(fresh_server: FreshServer) -> None:
    """A gateway and a worker say why, and are ready again afterwards."""
    server = fresh_server(config={"save": "3600 1"})
    settings = Settings.load({}, url=server.url, lease=1.0)
    with redis.Redis.from_url(server.url) as client:
        refusing = Refusing(server, client)
        async with Worker([echo], settings=settings) as worker, ToolBus(settings=settings) as bus:
            gateway = Gateway(bus, Everyone())
            assert (await gateway.unready(), worker.unready) == ("", "")
            assert "toolbus_up 1" in plain_metrics(await metrics_of(gateway)).splitlines()
            refusing.begin()
            await eventually(lambda: said(gateway.unready(), "the server refuses calls: MISCONF "), timeout=20.0)
            assert "toolbus_up 0" in plain_metrics(await metrics_of(gateway)).splitlines()
            await eventually(lambda: worker.unready.startswith("its lease has ended, since its beats fail: MISCONF "), timeout=20.0)
            assert not worker.healthy
            refusing.end()
            await eventually(lambda: said(gateway.unready(), ""), timeout=20.0)
            await eventually(lambda: worker.healthy, timeout=20.0)
            assert (await bus.call("echo", {"text": "again"}, timeout=20.0)).output == "again"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("refusal", ["MISCONF", "NOREPLICAS"])
async def test_a_worker_that_can_take_nothing_for_long_ends(
    fresh_server: FreshServer, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """It ends with the reason while the server still refuses, after three leases here, so that who watches it hears of it at once."""
    monkeypatch.setattr("toolbus.bus.broker.transport.opening._SECONDS", 0.0)
    server = fresh_server(config={"save": "3600 1"})
    # A read that waits begins anew within the lease, and is refused itself.
    settings = Settings.load({}, url=server.url, lease=3.0, grace=0.5)
    with redis.Redis.from_url(server.url) as client:
        refusing = Refusing(server, client)
        worker = Worker([echo], settings=settings)
        running = asyncio.create_task(worker.run())
        await eventually(lambda: worker.healthy)
        if refusal == "MISCONF":
            refusing.begin()
        else:
            client.config_set("min-replicas-to-write", 1)
        try:
            await eventually(running.done, timeout=60.0)
        finally:
            if refusal == "MISCONF":
                refusing.end()
            else:
                client.config_set("min-replicas-to-write", 0)
        with pytest.raises(ToolbusError, match=r"no requests could be taken for \d+ s: its lease has ended, since its beats fail") as ended:
            await running
        assert f"its beats fail: {refusal} " in str(ended.value)
        assert "it ends: " in worker.unready


@pytest.mark.usefixtures("slow")
async def test_a_full_memory_makes_gateways_unready_alone(fresh_server: FreshServer) -> None:
    """They can publish nothing; workers could take and answer what was there before."""
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=1.0)
    with redis.Redis.from_url(server.url) as client:
        async with Worker([echo], settings=settings) as worker, ToolBus(settings=settings) as bus:
            gateway = Gateway(bus, Everyone())
            assert (await gateway.unready(), worker.unready) == ("", "")
            client.config_set("maxmemory", 1)
            await eventually(lambda: said(gateway.unready(), "the server refuses calls: OOM "), timeout=20.0)
            assert "toolbus_up 0" in plain_metrics(await metrics_of(gateway)).splitlines()
            assert worker.unready == ""
            client.config_set("maxmemory", 0)
            await eventually(lambda: said(gateway.unready(), ""), timeout=20.0)


@pytest.mark.usefixtures("slow")
async def test_what_ended_while_the_memory_was_full_is_in_the_history(fresh_server: FreshServer, caplog: pytest.LogCaptureFixture) -> None:
    """A record that was refused is appended when there is room again, though no other call ends at its worker."""
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=1.0, history=100)
    began, ends = asyncio.Event(), asyncio.Event()

    @tool(service="holding")
    async def hold() -> str:
        began.set()
        await ends.wait()
        return "held"

    with redis.Redis.from_url(server.url) as client:
        async with Worker([hold], settings=settings), ToolBus(settings=settings) as bus:
            await bus.wait_for_tool("hold")
            running = asyncio.create_task(bus.call("hold"))
            await began.wait()
            client.config_set("maxmemory", 1)
            ends.set()
            assert (await running).success
            await eventually(lambda: "recent.refused" in caplog.text)
            client.config_set("maxmemory", 0)
            for key in (Keys(settings.namespace).ended, Keys(settings.namespace).recent):
                await eventually(lambda key=key: client.xlen(key) == 1)


@pytest.mark.usefixtures("slow")
async def test_what_ended_while_the_server_was_away_is_in_the_history(fresh_server: FreshServer) -> None:
    """A record waits for the connection to come back, though no other call ends at its worker."""
    server = fresh_server(appendonly=True)
    settings = Settings.load({}, url=server.url, lease=5.0, history=100)
    began, ends = asyncio.Event(), asyncio.Event()

    @tool(service="holding-on", effect="read")
    async def hold() -> str:
        began.set()
        await ends.wait()
        return "held"

    async with Worker([hold], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("hold")
        running = asyncio.create_task(bus.call("hold", timeout=15))
        await began.wait()
        server.kill()
        await eventually(lambda: not bus.statistics()["connected"])
        ends.set()
        server.start()
        assert (await running).success
        with redis.Redis.from_url(server.url) as client:
            await eventually(lambda: client.xlen(Keys(settings.namespace).ended) == 1)


async def said(asked: Awaitable[str], wanted: str) -> bool:
    """Return whether an answer begins with some words; with none, whether it is empty."""
    found = await asked
    return found.startswith(wanted) if wanted else not found


async def test_flushall_heals_by_itself(fresh_server: FreshServer) -> None:
    """After the server forgot everything, streams, groups, replies and registry are made anew."""
    server = fresh_server()
    settings = Settings.load({}, url=server.url, lease=1.0)
    client = redis.Redis.from_url(server.url)
    async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
        assert (await bus.call("echo", {"text": "before"})).success
        client.flushall()
        client.script_flush()

        async def healed() -> bool:
            return (await bus.call("echo", {"text": "after"}, timeout=1.0)).output == "after"

        await eventually(healed, timeout=20)
    client.close()


async def test_a_destroyed_group_loses_no_call(place: Place) -> None:
    """With the group gone in mid-call the work is done again under a new generation, and answered once."""
    async with place.worker(nap, lease=0.5), place.bus(lease=0.5) as bus:
        call = asyncio.create_task(bus.call("nap", {"seconds": 0.5}, timeout=20.0))
        client = redis.Redis.from_url(place.settings.url)
        queue = keys_of(place) + "q:steady"
        await eventually(lambda: client.xlen(queue) == 1 and client.xpending(queue, "g")["pending"] == 1)
        client.xgroup_destroy(queue, "g")
        assert (await call).output == "rested"
        await eventually(lambda: client.xlen(queue) == 0)
        client.close()


async def test_killed_connections_lose_no_call(place: Place) -> None:
    """CLIENT KILL in the middle of many calls: each ends once, with its own answer."""
    async with place.worker(echo), place.bus() as bus:
        client = redis.Redis.from_url(place.settings.url)
        calls = [asyncio.create_task(bus.call("echo", {"text": str(number)}, timeout=20.0)) for number in range(500)]
        for _ in range(3):
            await asyncio.sleep(0)
            client.client_kill_filter(_type="normal", skipme=True)
        results = await asyncio.gather(*calls)
        client.close()
        assert [result.output for result in results] == [str(number) for number in range(500)]


@pytest.mark.parametrize(
    "fields",
    [
        {"r": b"not json", "d": "99999999999999"},
        {"r": b"\xff\xfe\x00", "d": "99999999999999"},
        {"r": b"[" * 100_000, "d": "99999999999999"},
        {"r": b'{"id": "a", "agent": "../../etc", "service": "steady"}', "d": "99999999999999"},
        {"r": b"x" * 400_000, "d": "99999999999999"},
        {"r": b'{"id": "a", "agent": "b", "service": "steady"}'},
        {"nonsense": "1"},
    ],
)
async def test_unreadable_requests_are_set_aside_and_the_worker_goes_on(place: Place, fields: dict[str, Any]) -> None:
    """Malformed, oversized, nested or foreign entries become dead letters; the next call is served."""
    async with place.worker(echo), place.bus() as bus:
        client = redis.Redis.from_url(place.settings.url)
        client.xadd(keys_of(place) + "q:steady", fields)
        assert (await bus.call("echo", {"text": "fine"})).output == "fine"
        letters = keys_of(place) + "dlq:steady"
        await eventually(lambda: client.xlen(letters) == 1)
        assert client.pttl(letters) > 0
        await eventually(lambda: client.xlen(keys_of(place) + "q:steady") == 0)
        client.close()


async def test_a_malformed_request_with_an_address_is_answered(place: Place) -> None:
    """When id and agent can be read the caller gets an error instead of silence."""
    async with place.worker(echo), place.bus() as bus:
        client = redis.Redis.from_url(place.settings.url)
        replies = keys_of(place) + "rsp:someone"
        client.xadd(replies, {"o": "1"})
        document = b'{"id": "call-1", "agent": "someone", "service": "steady", "arguments": "not an object"}'
        client.xadd(keys_of(place) + "q:steady", {"r": document, "d": "99999999999999"})
        await eventually(lambda: client.xlen(replies) == 2)
        frame = msgspec.json.decode(client.xrange(replies)[1][1][b"f"])[0]
        client.delete(replies)
        client.close()
        assert (frame["id"], frame["end_of_stream"], frame["error"]["type"]) == ("call-1", True, "invalid_arguments")
        assert (await bus.call("echo", {"text": "fine"})).output == "fine"


async def test_unreadable_frames_are_skipped(place: Place) -> None:
    """Garbage on an agent's reply stream is counted and skipped; its calls go on."""
    async with place.worker(echo), place.bus() as bus:
        client = redis.Redis.from_url(place.settings.url)
        for payload in (b"garbage", b"\xff", b"[" * 50_000, b'[{"id": 1}, {"id": "x", "run": "y"}]'):
            client.xadd(keys_of(place) + f"rsp:{bus.agent}", {"f": payload})
        client.close()
        assert (await bus.call("echo", {"text": "fine"})).output == "fine"
        await eventually(lambda: bus.statistics()["malformed"] == 4)


async def test_a_deleted_reply_stream_is_made_anew(place: Place) -> None:
    """An agent whose reply stream vanished notices, and its next calls are answered."""
    async with place.worker(echo, lease=0.5), place.bus(lease=0.5) as bus:
        client = redis.Redis.from_url(place.settings.url)
        client.delete(keys_of(place) + f"rsp:{bus.agent}")
        client.close()

        async def healed() -> bool:
            return (await bus.call("echo", {"text": "again"}, timeout=1.0)).output == "again"

        await eventually(healed, timeout=15)


async def test_an_agent_that_is_gone_stops_its_running_call(place: Place) -> None:
    """When a reply stream no longer exists, the handler that writes to it is cancelled."""
    stopped = asyncio.Event()

    @tool(service="orphan", effect="read", replace=True)
    async def produce():
        """Produce until nobody reads."""
        try:
            while True:
                yield "more "
                await asyncio.sleep(0.01)
        finally:
            stopped.set()

    async with place.worker(produce), place.bus() as bus, bus.stream("produce") as call:
        async for _ in call:
            client = redis.Redis.from_url(place.settings.url)
            client.delete(keys_of(place) + f"rsp:{bus.agent}")
            client.close()
            break
        await asyncio.wait_for(stopped.wait(), 5)


async def test_out_of_memory_refuses_new_calls_and_finishes_old_ones(fresh_server: FreshServer) -> None:
    """A full server answers overloaded, and what already runs is still answered."""
    server = fresh_server(config={"maxmemory-policy": "noeviction"})
    settings = Settings.load({}, url=server.url, lease=1.0)
    client = redis.Redis.from_url(server.url)
    async with Worker([nap], settings=settings), ToolBus(settings=settings) as bus:
        running = asyncio.create_task(bus.call("nap", {"seconds": 0.5}))
        await eventually(lambda: client.xlen("tb:{default}:q:steady") == 1)
        client.config_set("maxmemory", "1")
        refused = await bus.call("nap", {"seconds": 0.0})
        assert refused.error is not None
        assert refused.error.type == "overloaded"
        assert (await running).output == "rested"
        client.config_set("maxmemory", "0")
        assert (await bus.call("nap", {"seconds": 0.0})).success
    client.close()


async def test_wrong_addresses_and_passwords_are_one_clear_line(fresh_server: FreshServer) -> None:
    """Nobody there, a wrong password and a wrong URL each say what is wrong, without the password."""
    server = fresh_server(config={"requirepass": "right"})
    with pytest.raises(BrokerUnavailable, match="start it, or correct its URL"):
        await ToolBus("redis://127.0.0.1:1").open()
    with pytest.raises(BrokerError, match="password") as caught:
        await ToolBus(f"redis://:wrong-secret@127.0.0.1:{server.port}").open()
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="http"):
        await ToolBus("http://127.0.0.1").open()
    async with ToolBus(f"redis://:right@127.0.0.1:{server.port}") as bus:
        assert list(bus.tools) == []


async def test_an_evicting_server_is_warned_of(fresh_server: FreshServer, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that starts against a server that may evict keys says so, and what to set."""
    server = fresh_server(config={"maxmemory-policy": "allkeys-lru"})
    async with Worker([echo], settings=Settings.load({}, url=server.url)):
        assert "noeviction" in caplog.text


async def test_an_old_server_is_refused_by_its_version() -> None:
    """A server before Redis 7.0 is named with its version and what is needed."""

    left = asyncio.Event()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = b"# Server\r\nredis_version:6.2.14\r\nrun_id:x\r\n"
        answers = {b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n", b"INFO": b"$%d\r\n%b\r\n" % (len(info), info)}
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            writer.write(answers.get(words[0].upper(), b"+OK\r\n"))
        writer.close()
        await writer.wait_closed()
        left.set()

    async with Listening(pretend) as old:
        with pytest.raises(UnsupportedServer, match=r"6\.2\.14.*Redis 7\.0"):
            await ToolBus(f"redis://127.0.0.1:{old.port}").open()
        await asyncio.wait_for(left.wait(), 5)


async def test_a_worker_that_leaves_stays_away(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last worker's stream goes with it: a read that still waits on it is refused, and does not register the service again."""
    client = redis.Redis.from_url(place.settings.url)
    async with place.worker(echo):
        await eventually(lambda: client.client_list(_type="normal") and any(each["cmd"] == "xreadgroup" for each in client.client_list()))
        monkeypatch.setattr(Intake, "interrupt", lambda _: None)
    left = [key.decode().removeprefix(keys_of(place)) for key in client.scan_iter(keys_of(place) + "*")]
    client.close()
    assert "reg:services" not in left


async def test_the_last_clean_stop_leaves_no_stream_behind(place: Place) -> None:
    """After everything closed cleanly, request streams, fences and reply streams are gone."""
    async with place.serving(echo) as bus:
        assert (await bus.call("echo", {"text": "x"})).success
    client = redis.Redis.from_url(place.settings.url)
    left = sorted(key.decode().removeprefix(keys_of(place)) for key in client.scan_iter(keys_of(place) + "*"))
    client.close()
    assert left == ["log", "pulse", "recent", "reg:meta", "reg:names"]


async def test_a_wrong_password_is_told_as_one(fresh_server: FreshServer, tmp_path: Path) -> None:
    """All who meet it say so, with the file to correct, and doctor with the runbook; a file that is gone is another thing."""
    server = fresh_server(config={"requirepass": "old"})
    file = tmp_path / "password"
    file.write_text("old")
    settings = Settings.load({}, url=f"redis://127.0.0.1:{server.port}", password_file=str(file))
    watched = ProbedNamespace(settings)
    watched.started = True
    async with Worker([echo], settings=settings) as worker, ToolBus(settings=settings) as bus:
        gateway = Gateway(bus, Everyone())
        with redis.Redis(port=server.port, password="old") as client:
            client.config_set("requirepass", "new")
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
        told = f"redis://127.0.0.1:{server.port} refused the user or password: .*; correct them in the file '{file}'$"
        await eventually(lambda: re.search(told, worker.unready), timeout=20.0)
        await eventually(lambda: not gateway.connected)
        assert [bool(re.match(told, await each.unready())) for each in (gateway, watched)] == [True, True]
        [finding, *_] = await diagnose(settings)
        assert (finding.check, bool(re.match(told, finding.found))) == ("server", True), finding
        assert finding.runbook.endswith("#change-a-password-or-a-key")
        file.unlink()
        [finding, *_] = await diagnose(settings)
        assert finding.found.endswith(f"can't be asked: the password file can't be read: [Errno 2] No such file or directory: '{file}'")
        assert finding.runbook.endswith("#change-a-password-or-a-key")
        file.write_text("new")
        await eventually(lambda: worker.healthy and gateway.connected, timeout=20.0)
        assert await gateway.unready() == ""
