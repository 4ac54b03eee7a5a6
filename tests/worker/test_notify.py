"""Words to the service manager: whom they reach, and who may not speak."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import eventually
from toolbus.bus.worker.process.lifeline import Notifier

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.setblocking(False)
        yield made


def taken(manager: socket.socket) -> bytes:
    """Return a message, or nothing when there is none."""
    try:
        return manager.recv(100)
    except BlockingIOError:
        return b""


async def test_it_tells_that_it_serves_lives_and_stops(manager: socket.socket) -> None:
    """Signs of life come twice as often as they are asked for, and children inherit nothing of it."""
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    notifier = Notifier(environ)
    assert (environ, notifier.period) == ({"HOME": "/"}, 0.01)
    notifier.ready()
    assert manager.recv(100) == b"READY=1"
    async with notifier.alive():
        for _ in range(3):
            assert await eventually(lambda: taken(manager)) == b"WATCHDOG=1"
    while taken(manager):
        pass
    notifier.stopping()
    assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/there/is/none", "WATCHDOG_USEC": "nonsense"},
        {"NOTIFY_SOCKET": "@there-is-none", "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
    ],
)
async def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    """One that is gone holds up nothing, and a watchdog for another process is not ours to feed."""
    notifier = Notifier(dict(environ))
    assert notifier.period == 0.0
    async with notifier.alive():
        notifier.ready()
    notifier.stopping()


async def test_an_abstract_socket_is_found() -> None:
    """A name that begins with @ stands for one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"toolbus-test-{os.getpid()}"
        manager.bind(f"\0{name}")
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert manager.recv(100) == b"READY=1"
