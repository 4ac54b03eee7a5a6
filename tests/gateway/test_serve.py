"""``toolbus serve``: how it starts, refuses to start, and stops; and servers that go away."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.gateway.page.serving import free_port
from tests.gateway.served import Site, events, noted, run, stream
from tests.servers import elapse, eventually, plain_metrics
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def shell(own_site: Site, forks: ForkServer) -> Shell:
    """A shell for commands that end."""
    made = Shell(forks, own_site.folder, own_site.environment["TOOLBUS_URL"], own_site.namespace)
    made.environment = own_site.environment
    return made


def test_a_port_in_use_is_one_line(shell: Shell) -> None:
    """It names the place, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shell.run("serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"toolbus: can't listen at 127.0.0.1:{port}: Address already in use; choose")
    assert done.stderr.count("\n") == 1


def test_without_a_server_it_does_not_start(shell: Shell) -> None:
    """It says how to start one."""
    shell.environment |= {"TOOLBUS_URL": "redis://127.0.0.1:1", "TOOLBUS_CONNECT_TIMEOUT": "1"}
    done = shell.run("serve", "--port", "0")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_tokens_it_is_open_on_loopback_only(shell: Shell, host: str) -> None:
    """Other places must be opened explicitly."""
    done = shell.run("serve", "--port", "0", "--host", host)
    assert done.returncode == 1
    assert "--open" in done.stderr


async def test_it_can_be_opened_explicitly(own_site: Site) -> None:
    """Then any name of it will do; options come from the environment, too."""
    _, url = own_site.gateway(TOOLBUS_GATEWAY_OPEN="1", TOOLBUS_GATEWAY_HOST="0.0.0.0")
    assert url.startswith("http://0.0.0.0:")
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/ready", headers={"host": "tools.example.org"})).status_code == 200


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", ""])
async def test_an_open_gateway_answers_only_for_names_of_its_machine(client: httpx.AsyncClient, name: str) -> None:
    """A page whose name leads to this machine reads nothing."""
    answer = await client.get("/tools", headers={"host": name})
    assert (answer.status_code, "echo" in answer.text) == (421, False)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_signal_lets_answers_finish(own_site: Site, number: signal.Signals) -> None:
    """It takes no more connections, and exits with 0."""
    own_site.worker()
    program, url = own_site.gateway()
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await eventually(lambda: has(client, "sleeps"), timeout=20.0)
        async with stream(client, "counts", {"upto": 30, "pause": 0.05}) as response:
            reading = events(response)
            await anext(reading)
            program.send_signal(number)
            await asyncio.to_thread(own_site.logged, program, "gateway.draining")
            last = [event async for event in reading][-1]
        assert last.data["success"] is True
        await eventually(lambda: program.poll() == 0, timeout=30.0)
        with pytest.raises(httpx.TransportError):
            await client.get("/health")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("twice", [False, True], ids=["grace", "second signal"])
async def test_what_is_cut_off_ends_with_an_answer(own_site: Site, *, twice: bool) -> None:
    """Calls end as cancelled, half a request is dropped, and none is a bug, after the grace period as at a second signal."""
    own_site.worker()
    program, url = own_site.gateway("--grace", "60" if twice else "1")
    host, _, port = url.removeprefix("http://").partition(":")
    async with httpx.AsyncClient(base_url=url, timeout=30) as client, asyncio.TaskGroup() as tasks:
        await eventually(lambda: has(client, "sleeps"), timeout=20.0)
        asked = tasks.create_task(run(client, "sleeps", {"seconds": 60, "mark": "asked"}))
        await noted(client, "asked")
        _, half = await asyncio.open_connection(host, int(port))
        half.write(b"POST /run_tool HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        async with stream(client, "sleeps", {"seconds": 60}) as response:
            reading = events(response)
            await anext(reading)
            program.terminate()
            if twice:
                # Within half a second it is the same signal.
                await elapse(0.6)
                program.terminate()
            last = [event async for event in reading][-1]
        half.close()
    assert last.data["error"]["type"] == "cancelled"
    assert (asked.result().status_code, asked.result().json()["title"]) == (409, "cancelled")
    _, log = await asyncio.to_thread(program.communicate, timeout=30)
    assert program.returncode == 0
    assert '"gateway.cut"' in log
    assert '"level":"error"' not in log


async def has(client: httpx.AsyncClient, tool: str) -> bool:
    """Return whether a gateway offers a tool."""
    return tool in (await client.get("/tools")).text


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_clients_that_vanish_at_any_point_are_no_bugs(own_site: Site, accept: str) -> None:
    """Within the headers, the body or the answer, or with half of their connection; the log stays silent and the gateway goes on."""
    own_site.worker()
    program, url = own_site.gateway()
    host, _, port = url.removeprefix("http://").partition(":")
    body = b'{"tool_id": "counts", "params": {"upto": 50, "pause": 0.01}}'
    head = b"POST /run_tool HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: %b\r\n" % accept.encode()
    whole = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await eventually(lambda: has(client, "counts"), timeout=20.0)
        for number in range(0, len(whole) + 40, 13):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(whole[:number])
            if number % 2:
                writer.write_eof()
            await writer.drain()
            writer.close()
        assert (await run(client, "echo", {"text": "on"})).json()["output"] == "on"
    program.terminate()
    _, log = await asyncio.to_thread(program.communicate, 30)
    assert "gateway.stopped" in log
    assert "gateway.bug" not in log


async def test_without_a_chat_service_chat_is_503(own_site: Site) -> None:
    """It names the service that it looks for."""
    _, url = own_site.gateway("--chat", "helper")
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.post("/chat", json={"message": "hello"})
    assert answer.status_code == 503
    assert "'helper'" in answer.json()["detail"]
    assert answer.headers["retry-after"]


@pytest.mark.usefixtures("slow")
async def test_a_server_that_hangs_is_told_at_once(own_site: Site, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """The first probe after the server was stopped says that nothing is ready, at both ports; the first one afterwards is content."""
    server = fresh_server()
    own_site.environment["TOOLBUS_URL"] = server.url
    port = free_port()
    _, url = own_site.gateway("--health-port", str(port))
    probes = (f"{url}/ready", f"http://127.0.0.1:{port}/ready")
    async with httpx.AsyncClient(timeout=30) as client:
        assert [(await client.get(each)).status_code for each in probes] == [200, 200]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            answers = [await client.get(each) for each in probes]
            assert [each.status_code for each in answers] == [503, 503]
            assert all("the server does not answer: not within a second" in each.text for each in answers)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert [(await client.get(each)).status_code for each in probes] == [200, 200]


@pytest.mark.usefixtures("slow")
async def test_a_server_that_goes_away_is_503_until_it_is_back(own_site: Site, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """The gateway stays, says so at once, and goes on by itself."""
    server = fresh_server()
    own_site.environment["TOOLBUS_URL"] = server.url
    own_site.worker()
    _, url = own_site.gateway()
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        await eventually(lambda: has(client, "echo"), timeout=20.0)
        server.kill()

        async def refused() -> bool:
            # One that was published before the gateway noticed waits for the server as long as it may.
            answer = await run(client, "echo", {"text": "x"}, toolbus_timeout="1")
            assert answer.status_code in {200, 503, 504}, answer.text
            return answer.status_code == 503 and "retry-after" in answer.headers

        await eventually(refused, timeout=30.0)
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        assert (await client.put("/v1/groups/g", json={})).status_code == 503
        metrics = await client.get("/metrics")
        assert "\ntoolbus_up 0\n" in plain_metrics(metrics.text)
        server.start()

        async def answers() -> bool:
            return (await run(client, "echo", {"text": "back"})).status_code == 200

        await eventually(answers, timeout=60.0, interval=0.2)
        assert (await client.get("/ready")).status_code == 200


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("policy", ["error", "restore"])
def test_a_session_goes_on_through_gateways_and_commands(own_site: Site, shell: Shell, policy: str) -> None:
    """A user's basket is as it was after a gateway has restarted, and for the next command; another user has another one."""
    file = own_site.folder / "baskets.py"
    file.write_text(f"from tests.faults.baskets import Baskets\nBaskets.session_lost = {policy!r}\nbaskets = Baskets()\n", "utf-8")
    own_site.environment |= {"TOOLBUS_LEASE": "15", "PYTHONPATH": str(Path(__file__).parents[2])}
    own_site.worker(str(file))

    def ask(what: str) -> object:
        gateway, url = own_site.gateway()
        with httpx.Client(base_url=url, timeout=30) as client:
            answer = client.post("/run_tool", json={"tool_id": "put", "params": {"what": what}}, headers={"Toolbus-Session": "s"})
        gateway.terminate()
        gateway.wait(20)
        return answer.json()["output"]

    def call(what: str, *words: str) -> str:
        return shell.run("call", "put", "--session", "s", *words, f"what={what}").stdout.strip()

    assert [ask("a"), ask("b"), call("c"), call("d"), ask("e")] == ["a", "a b", "a b c", "a b c d", "a b c d e"]
    assert call("x", "--user", "ann") == "x"
