"""``toolbus platform im`` as a process: its options, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.im.messenger import messenger
from tests.servers import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, url: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(forks, tmp_path, url, namespace)
    yield made
    made.close()


@pytest.mark.parametrize("server", ["http://localhost", "ws://", "ws://localhost:99999", "ws://localhost:x", "", "ws://[", "ws://h:0"])
def test_an_address_that_is_none_is_refused(shell: Shell, server: str) -> None:
    """The command ends with wrong usage, and says what an address is like."""
    done = shell.run("platform", "im", "--server", server, "--contact", "me", "--state", "s")
    assert (done.returncode, "ws://localhost:8765" in done.stderr or "--server" in done.stderr) == (2, True)


def test_a_folder_that_cannot_be_used_is_told(shell: Shell) -> None:
    """A file in place of the folder ends the command with one line."""
    (shell.folder / "s").write_text("")
    done = shell.run("platform", "im", "--server", "ws://127.0.0.1:9", "--contact", "me", "--state", "s/deeper")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "can't be kept in" in done.stderr


async def test_it_waits_for_its_server_and_ends_at_sigterm(shell: Shell) -> None:
    """A server that is away is tried again; SIGTERM ends the command with 0."""
    async with messenger() as server:
        await server.stop()
        process = await asyncio.to_thread(shell.start, "platform", "im", "--server", server.url, "--contact", "me", "--state", "s")
        await eventually((shell.folder / "s/lock").exists, 60)
        await server.start()
        await eventually(lambda: server.registered == [{"type": "register", "contact": "me", "windows": []}], 60)
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0
