"""Programs in a workspace: what they see, what they may take, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.coding.workspace.places import needs_namespaces, run, workspace
from tests.servers import eventually
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.platform.coding.workspace import Finished, Workspace

pytestmark = pytest.mark.anyio

# The number of the kernel's call for keys.
KEYCTL = {"x86_64": 250, "aarch64": 219}
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
SHARED = """
import mmap, time
shared = mmap.mmap(-1, 300 << 20)
for _ in range(26):
    shared.write(bytes(10 << 20))
time.sleep(60)
"""
# A path that is too long to be looked into.
DEEP = """
import os, time
for _ in range(60):
    os.mkdir("x" * 100)
    os.chdir("x" * 100)
time.sleep(60)
"""
# Empty files without end.
MANY = """
import itertools
for number in itertools.count():
    open(str(number), "w").close()
"""
# Memory in files that have no name, which no process maps.
HIDDEN = """
import os, time
files = [os.memfd_create("x") for _ in range(300)]
for file in files:
    os.write(file, bytes(1 << 20))
time.sleep(60)
"""
# Memory in System V's segments, which no process maps.
SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
for _ in range(30):
    segment = libc.shmget(0, 10 << 20, 0o1600)
    if segment < 0:
        break
    address = libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 10 << 20)
    libc.shmdt(address)
x = bytearray(170 << 20)
time.sleep(60)
"""
SOCKETS = """
import os, socket, time
os.fork()
pairs = [socket.socketpair() for _ in range(450)]
time.sleep(60)
"""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Workspace]:
    """A workspace whose commands are bounded tightly."""
    needs_namespaces()
    async with workspace(
        tmp_path, memory=200 << 20, processes=40, file_bytes=1 << 20, total_bytes=20 << 20, entries=5_000, output=2_000
    ) as made:
        yield made


async def shell(place: Workspace, command: str, seconds: float = 60.0) -> Finished:
    return await run(place, ["/bin/sh", "-c", command], seconds=seconds)


def traces() -> tuple[str, bool]:
    """Return what an escaped command would have changed in the machine."""
    return Path("/proc/sys/kernel/core_pattern").read_text(), Path("/usr/bin/toolbus-x").exists()


def processes(text: str) -> list[int]:
    """Return the processes of the machine whose command line has a text."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and text.encode() in (each / "cmdline").read_bytes():
                found.append(int(each.name))
        except OSError:
            continue
    return found


async def test_a_program_runs_in_its_folder(place: Workspace) -> None:
    """Its output, both kinds in one, and its exit status are told."""
    place.files.write("a/x.txt", b"hello\n")
    finished = await run(place, ["/bin/sh", "-c", "cat x.txt; echo problem >&2; exit 3"], folder="a")
    assert (finished.output, finished.status, finished.reason) == ("hello\nproblem\n", 3, "")
    assert (await run(place, ["no-such-program"])).status == 127
    with pytest.raises(ToolError, match="there is no"):
        await run(place, ["true"], folder="nowhere")


async def test_no_secret_is_in_the_environment(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the worker's own environment is passed on, and its process can't be seen."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234")
    monkeypatch.setenv("HTTP_PROXY", "http://user:sk-1234@proxy")
    finished = await shell(place, f"env; cat /proc/{os.getpid()}/environ /proc/1/environ; ls /proc/1/fd /proc/1/root")
    assert "sk-1234" not in finished.output
    assert "HOME=" in finished.output


async def test_only_the_workspace_is_seen(place: Workspace, tmp_path: Path) -> None:
    """Neither files beside it nor other tasks are there, and what is there of the system can't be written."""
    (tmp_path / "secret").write_text("sk-1234")
    other = workspace(tmp_path, "create_00000002")
    async with other:
        other.files.write("theirs", b"sk-1234")
    tries = [
        f"cat {tmp_path}/secret {other.files.path}/theirs /etc/shadow /root/.ssh/*",
        "echo x > /usr/bin/toolbus-x; echo x > /etc/passwd; rm -rf /usr/share/doc",
        "echo x > /proc/sys/kernel/core_pattern; echo b > /proc/sysrq-trigger",
        "ls /run /var /home /opt /mnt /sys; mount -t tmpfs none /usr; mknod /tmp/sda b 8 0 && cat /tmp/sda",
        "cat /proc/1/root/etc/shadow; ls -d /proc/*/root/home",
    ]
    before = traces()
    for each in tries:
        finished = await shell(place, f"{each}; exit 1")
        assert "sk-1234" not in finished.output
        assert finished.status == 1
    assert traces() == before
    rights = await shell(place, "grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status")
    assert rights.output.split() == ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]


async def test_the_keys_of_the_worker_are_out_of_reach(place: Workspace) -> None:
    """A command begins with a session of keys of its own, which holds none."""
    keys = f"import ctypes; print(ctypes.CDLL(None).syscall({KEYCTL[os.uname().machine]}, 0, ctypes.c_int(-3), 1))"
    first, second = (await run(place, [PYTHON, "-c", keys])), (await run(place, [PYTHON, "-c", keys]))
    own = (await asyncio.to_thread(subprocess.check_output, [PYTHON, "-c", keys])).decode()
    assert len({first.output, second.output, own}) == 3


async def test_the_network_is_closed(place: Workspace) -> None:
    """A server of this machine is not reached, while programs of the task reach each other."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        reach = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert "ConnectionRefusedError" in (await run(place, [PYTHON, "-c", reach])).output
        serve = f"import socket; s=socket.create_server(('127.0.0.1', {port})); print('up', flush=True); c, _ = s.accept(); c.recv(1)"
        running = await place.start([PYTHON, "-c", serve])
        await eventually(lambda: "up" in running.unread.take(), timeout=30)
        assert (await run(place, [PYTHON, "-c", reach])).status == 0


async def test_the_network_is_there_when_the_deployment_says_so(tmp_path: Path) -> None:
    """With ``all``, a server of this machine is reached."""
    needs_namespaces()
    async with workspace(tmp_path, network="all") as place:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            reach = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)"
            assert (await run(place, [PYTHON, "-c", reach])).status == 0


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"exec {PYTHON} -c 'while True: pass'", "time"),
        (f"for i in 1 2 3 4; do {PYTHON} -c 'import time; x = b\"x\" * (90 << 20); time.sleep(60)' & done; wait", "memory"),
        (f"exec {PYTHON} -c '{SHARED}'", "memory"),
        (f"exec {PYTHON} -c '{HIDDEN}'", "memory"),
        (f"exec {PYTHON} -c '{SEGMENTS}'", "memory"),
        (f"exec {PYTHON} -c '{SOCKETS}'", "memory"),
        ("i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done 2>/dev/null; wait", "processes"),
        ("yes", "output"),
        ("i=0; while [ $i -lt 100 ]; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); done; sleep 60", "disk"),
        (f"exec {PYTHON} -c '{DEEP}'", "disk"),
        (f"exec {PYTHON} -c '{MANY}'", "disk"),
        ("mkdir d; cd d; i=0; while :; do mkdir x 2>/dev/null && cd x || sleep 0.1; head -c 500000 /dev/zero > z; done", "disk"),
    ],
)
async def test_what_takes_too_much_is_ended(place: Workspace, command: str, reason: str) -> None:
    """Time, memory and processes of all together, output, and the disk have limits; nothing is left of what passed one."""
    finished = await shell(place, command, seconds=1.0 if reason == "time" else 100.0)
    # Where the worker is no superuser, the kernel itself lets a program have no more processes.
    assert finished.reason == reason or (reason == "processes" and os.geteuid())
    assert len(finished.output) < 3_000


@pytest.mark.usefixtures("slow")
async def test_a_fork_bomb_is_bounded(place: Workspace) -> None:
    """Processes that only multiply are ended, and the machine goes on."""
    finished = await shell(place, "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 60", seconds=30)
    assert finished.status != 0
    assert not processes("bomb() {")


async def test_one_process_can_take_no_more_than_all(place: Workspace) -> None:
    """Memory that is asked for at once is refused, and a file can't grow beyond its limit."""
    finished = await run(place, [PYTHON, "-c", "x = bytearray(400 << 20)"])
    assert "MemoryError" in finished.output
    finished = await shell(place, "head -c 3000000 /dev/zero > big; wc -c < big")
    assert finished.output.split()[-1] == str(1 << 20)


async def test_nothing_is_left_behind(place: Workspace) -> None:
    """Processes that a command started in the background, in sessions of their own, end with it."""
    await shell(place, "(setsid sleep 987651 &) ; setsid nohup sleep 987652 >/dev/null 2>&1 & sleep 0.2")
    assert not processes("987651")
    assert not processes("987652")


async def test_programs_end_with_the_workspace(tmp_path: Path) -> None:
    """A program in the background ends when the workspace is left."""
    needs_namespaces()
    async with workspace(tmp_path) as place:
        running = await place.start(["/bin/sh", "-c", "trap '' TERM; setsid sleep 987653 & sleep 987653"])
        await eventually(lambda: len(processes("987653")) >= 2, timeout=30)
    assert not running.running
    assert not processes("987653")
    assert not processes(str(tmp_path))


async def test_a_cancelled_command_is_ended(place: Workspace) -> None:
    """A caller that goes away ends the program."""
    running = asyncio.create_task(shell(place, "sleep 987654; true"))
    await eventually(lambda: processes("987654"), timeout=30)
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    assert not processes("987654")


async def test_programs_end_with_a_killed_worker(tmp_path: Path) -> None:
    """SIGKILL of the worker, or of the command's guard, leaves no process."""
    needs_namespaces()
    code = f"""
import asyncio
from toolbus.platform.coding.workspace import Workspace
async def main():
    async with Workspace({str(tmp_path)!r}, "create_1") as place:
        await (await place.start(["/bin/sh", "-c", "setsid sleep 987655 & sleep 987655"])).finished()
        print("ended", flush=True)
        await (await place.start(["/bin/sh", "-c", "setsid sleep 987656 & sleep 987656"])).finished()
asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    await eventually(lambda: len(processes("987655")) >= 5, timeout=60)
    # The guard outside is the one with the least number.
    os.kill(min({*processes("987655")} & {*processes("launcher.py")}), 9)
    await eventually(lambda: processes("987655") == [worker.pid], timeout=30)
    await eventually(lambda: len(processes("987656")) >= 5, timeout=60)
    worker.kill()
    await worker.wait()
    await eventually(lambda: not processes("987656"), timeout=30)
    await eventually(lambda: not processes(str(tmp_path)), timeout=30)


async def test_a_machine_that_can_confine_nothing_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without namespaces no command runs, and the model is told what an operator can do."""
    hampered = tmp_path / "launcher.py"
    hampered.write_text("import os, sys, json\nos.write(1, b'Operation not permitted\\n')\nos._exit(125)\n")
    monkeypatch.setattr("toolbus.platform.backends.confinement.LAUNCHER", str(hampered))
    async with workspace(tmp_path) as place:
        with pytest.raises(ToolError, match=r"can be run|lets no command be confined \(Operation not permitted\)") as raised:
            await run(place, ["true"])
        assert raised.value.error.code == "cant_confine"


async def test_what_is_not_confined_must_be_allowed_the_network(tmp_path: Path) -> None:
    """A deployment that lets commands be unconfined must allow them the network, too, since nothing keeps them from it."""
    async with workspace(tmp_path, confined=False) as place:
        with pytest.raises(ToolError, match="does not allow that") as raised:
            await run(place, ["true"])
        assert raised.value.error.code == "network_open"
    async with workspace(tmp_path, confined=False, network="all") as place:
        finished = await shell(place, "echo $HOME; (setsid sleep 987657 &); sleep 0.1")
        assert finished.output.strip() == str(tmp_path / "tasks/create_00000001/home")
        assert not processes("987657")


@pytest.mark.parametrize("task", ["", "..", "a/b", ".hidden", "x" * 65, "ä"])
def test_ids_that_no_folder_can_have_are_refused(tmp_path: Path, task: str) -> None:
    """A task's id can't lead to another folder."""
    with pytest.raises(ConfigurationError):
        Workspace(tmp_path, task)


async def test_a_workspace_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """A link in the place of a workspace would be another folder."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "create_00000001").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="is a link"):
        async with workspace(tmp_path):
            pass
