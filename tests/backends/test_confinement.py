"""Programs that a model wrote are served as they were tried: confined, with what their record declares."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uv

from tests.backends.places import Heard
from tests.servers import eventually
from toolbus.platform.backends import confinement
from toolbus.platform.backends.runner import CannotStart, Instance
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.host.host import make_runner
from toolbus.platform.records import RecordedTool, ToolMeta, ToolSource

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(bool(confinement.why_not()), reason="this machine can't confine programs")]

# Runs an expression that a call gives, and answers with its value.
PROGRAM = r"""
import argparse, glob, json, os, socket, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, *args):
        pass

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            found = eval(given["run"])
        except Exception as error:
            found = type(error).__name__
        body = json.dumps(found, default=str).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
port = parser.parse_args().port
print("listening", flush=True)
ThreadingHTTPServer.request_queue_size = 256
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

ENVIRONMENTS = "any(b'{secret}' in open(each, 'rb').read() for each in glob.glob('/proc/[0-9]*/environ'))"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its lock file."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "tried"
    made.mkdir()
    (made / "main.py").write_text(PROGRAM)
    (made / "pyproject.toml").write_text('[project]\nname = "tried"\nversion = "1"\nrequires-python = ">=3.11"\n')
    subprocess.run([uv.find_uv_bin(), "lock", "--quiet"], cwd=made, check=True)
    return made


@asynccontextmanager
async def started(folder: Path, *, made_by: str = "create_1", confine: bool = True, **source: object) -> AsyncIterator[Instance]:
    """The project, started by a host."""
    runner = await make_runner("local", "host-of-tests", confine=confine)
    tool = RecordedTool(meta=ToolMeta(tool_id="tried"), code=digest_of_folder(folder), made_by=made_by)
    given = {"type": "local", "host_dir": str(folder), "ready_within": 60.0, **source}
    try:
        instance = await runner.start(tool, ToolSource(**given), lambda _: None)
        try:
            yield instance
        finally:
            await instance.stop(1)
    finally:
        await runner.aclose()


async def value(instance: Instance, expression: str) -> object:
    """Return what an expression is in the program."""
    return (await instance.call({"run": expression}, Heard(), deadline=asyncio.get_running_loop().time() + 30)).data


@pytest.mark.usefixtures("slow")
async def test_a_program_of_a_model_sees_nothing_of_its_host(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of other processes, files of the host and servers of the machine are out of its reach; it has a user of its own."""
    monkeypatch.setenv("SECRET_OF_TESTS", "hunter2")
    (tmp_path / "secret").write_text("s")
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2) and True"
        async with started(folder) as instance:
            assert await value(instance, "1 + 1") == 2
            assert await value(instance, "'SECRET_OF_TESTS' in os.environ") is False
            assert await value(instance, ENVIRONMENTS.format(secret="hunter2")) in {False, "PermissionError"}
            assert await value(instance, f"os.kill({os.getpid()}, 0)") == "ProcessLookupError"
            for path in ("/etc/shadow", f"{tmp_path}/secret", "/var/lib", "/run"):
                assert (path, await value(instance, f"os.path.exists({path!r})")) == (path, False)
            assert await value(instance, reach) == "ConnectionRefusedError"
            for path in ("/etc/passwd", "/usr/new", f"{folder}/new", "/proc/sys/kernel/core_pattern"):
                assert await value(instance, f"open({path!r}, 'a').close()") in {"PermissionError", "OSError"}
            assert await value(instance, "open('/tmp/mine', 'w').write('x')") == 1
            user = await value(instance, "os.getuid()")
            assert user != 0
            assert os.geteuid() != 0 or user != os.geteuid()
            assert await value(instance, "open('/proc/self/status').read().split('CapEff:')[1].split()[0]") == "0" * 16
        async with started(folder, network="host") as instance:
            assert await value(instance, reach) is True
            assert await value(instance, "os.path.exists('/etc/shadow')") is False


@pytest.mark.usefixtures("slow")
async def test_a_program_of_a_person_runs_as_before(folder: Path, tmp_path: Path) -> None:
    """Only what a model wrote is confined, and only unless the deployment says otherwise."""
    (tmp_path / "seen").write_text("s")
    for changes in ({"made_by": "import"}, {"made_by": "ada"}, {"confine": False}):
        async with started(folder, **changes) as instance:
            assert await value(instance, f"os.path.exists({str(tmp_path / 'seen')!r})") is True


@pytest.mark.usefixtures("slow")
async def test_a_program_that_wants_too_much_is_ended(folder: Path) -> None:
    """Its memory and processes are bounded, and the host says which bound it was."""
    async with started(folder, memory="200m") as instance:
        assert await value(instance, "len(b'x' * (300 << 20))") == "MemoryError"
        assert await value(instance, "[threading.Thread(target=time.sleep, args=(30,)).start() for _ in range(400)]") == "RuntimeError"


@pytest.mark.usefixtures("slow")
async def test_calls_are_passed_on_as_they_are(folder: Path) -> None:
    """A hundred calls at once are answered, each by its own answer, and large ones are whole."""
    async with started(folder) as instance:
        answers = await asyncio.gather(*(value(instance, f"[{number}, 'x' * 300_000]") for number in range(100)))
        assert [answer[0] for answer in answers] == list(range(100))
        assert all(len(answer[1]) == 300_000 for answer in answers)
        assert not await instance.health()
        assert not await instance.health(answered=True)


@pytest.mark.usefixtures("slow")
async def test_nothing_is_served_where_nothing_can_be_confined(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host refuses what a model wrote, and says why and what to do; other programs run."""
    monkeypatch.setattr("toolbus.platform.backends.confinement.why_not", lambda: "new namespaces: Operation not permitted")
    with pytest.raises(CannotStart, match=r"Operation not permitted.*TOOLBUS_CONFINE=0"):
        async with started(folder):
            pass
    async with started(folder, made_by="import") as instance:
        assert await value(instance, "1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a program another user")
async def test_a_folder_that_its_own_user_cannot_read_is_told(folder: Path) -> None:
    """The reason says what to do, before anything is started."""
    await asyncio.to_thread(folder.chmod, 0o700)
    with pytest.raises(CannotStart, match=r"chmod -R a\+rX") as raised:
        async with started(folder):
            pass
    assert raised.value.permanent


@pytest.mark.usefixtures("slow")
async def test_packages_are_readable_whatever_the_umask_of_the_host(folder: Path) -> None:
    """A host with a narrow umask installs what another user can read."""
    before = os.umask(0o077)
    try:
        async with started(folder) as instance:
            assert await value(instance, "1") == 1
    finally:
        os.umask(before)


@pytest.mark.usefixtures("slow")
async def test_nothing_of_it_is_left(folder: Path) -> None:
    """The end of an instance ends all that the program had started."""
    async with started(folder) as instance:
        assert await value(instance, "os.spawnlp(os.P_NOWAIT, 'setsid', 'setsid', 'sleep', '986543') > 0")
        await eventually(sleepers)
    assert not sleepers()


def sleepers() -> list[Path]:
    """The processes that the program started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if path.read_bytes().endswith(b"sleep\x00986543\x00") else []
    return found
