"""``toolbus see top`` in a pseudo-terminal, as people run it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import tool
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio

_SHOWS = 30.0
# Signals of the terminal, such as that of its size, are for the program that it controls.
_CONTROLLING = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from toolbus.operations.cli import main
main()
"""


@tool(service="seen", effect="read")
async def be_seen() -> str:
    """Be seen."""
    return "seen"


class Terminal:
    """A program in a terminal of its own; ``written`` has everything that it wrote."""

    def __init__(self, url: str, namespace: str, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(40, 160)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, "TERM": "xterm-256color"}
        command = [sys.executable, "-c", _CONTROLLING, "see", "top", "--every", "0.2", *words]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True)
        self.written = b""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.written += os.read(self._ours, 65_536)

    def resize(self, lines: int, columns: int) -> None:
        """Make the terminal another size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    async def shows(self, *texts: str) -> None:
        """Wait until it has written all texts since the last time that this was waited for."""
        await eventually(lambda: all(text.encode() in self.written for text in texts), timeout=_SHOWS)
        self.written = b""

    async def ended(self) -> int:
        """Wait for the end of the program; the terminal must be as it was."""
        await eventually(lambda: self.process.poll() is not None, timeout=_SHOWS)
        assert termios.tcgetattr(self._theirs)[:4] == self.before[:4]
        return int(self.process.returncode)

    def close(self) -> None:
        """End what still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        self._reading.join(10)
        os.close(self._ours)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Open]:
    """Opens terminals with the program."""
    made: list[Terminal] = []

    def start(url: str, namespace: str, *words: str) -> Terminal:
        made.append(Terminal(url, namespace, *words))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.usefixtures("slow")
async def test_it_starts_follows_and_quits(terminal: Open, server: str, namespace: str) -> None:
    """A service appears by itself, the size of the terminal may change, and q leaves it as it was."""
    place = Place(server, namespace)
    top = terminal(server, namespace)
    await top.shows("0/0 services", "no services; start a worker")
    async with place.serving(be_seen) as bus:
        await bus.wait_for_tool("be_seen")
        await top.shows("1/1 services", "seen")
        await bus.call("be_seen")
        top.press("4")
        await top.shows("be_seen", "succeeded")
        for lines, columns in ((5, 20), (1, 1), (60, 200)):
            top.resize(lines, columns)
        await top.shows("be_seen", "succeeded")
        top.press("q")
        assert await top.ended() == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("how", "code"), [("\x03", 130), (signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
async def test_it_ends_however_it_is_told_to(terminal: Open, server: str, namespace: str, how: Any, code: int) -> None:
    """By Ctrl-C and by signals; the terminal is as it was."""
    top = terminal(server, namespace)
    await top.shows("0/0 services")
    if isinstance(how, str):
        top.press(how)
    else:
        os.kill(top.process.pid, how)
    assert await top.ended() == code


@pytest.mark.usefixtures("slow")
async def test_a_server_may_be_away_go_and_come_back(terminal: Open, namespace: str, fresh_server: Any) -> None:
    """It says so, goes on by itself, and ends at once while the server is away."""
    server: EmbeddedServer = fresh_server()
    top = terminal(server.url, namespace)
    await top.shows("0/0 services")
    server.kill()
    await top.shows("can't reach")
    server.start()
    place = Place(server.url, namespace)
    async with place.serving(be_seen) as bus:
        await bus.wait_for_tool("be_seen")
        await top.shows("1/1 services")
    server.kill()
    await top.shows("can't reach")
    top.press("q")
    assert await top.ended() == 0


@pytest.mark.usefixtures("slow")
async def test_it_waits_for_a_server_that_was_never_there(terminal: Open, namespace: str) -> None:
    """A wrong address is told, and Ctrl-C ends it."""
    top = terminal("redis://127.0.0.1:1", namespace)
    await top.shows("can't reach redis://127.0.0.1:1")
    top.press("\x03")
    assert await top.ended() == 130


@pytest.mark.usefixtures("slow")
def test_without_a_terminal_it_says_what_to_do(server: str, namespace: str, tmp_path: Path) -> None:
    """One line, and exit code 1."""
    environment = {**os.environ, "TOOLBUS_URL": server, "TOOLBUS_NAMESPACE": namespace}
    done = subprocess.run(
        [sys.executable, "-m", "toolbus", "see", "top"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "toolbus: top needs a terminal; `toolbus see top --once` prints one snapshot\n"
