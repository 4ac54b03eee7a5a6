"""The embedded server's files: who may read them, and who removes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.results import ConfigurationError

STARTED = "from toolbus.bus.broker.transport.embedded import EmbeddedServer as S; s = S({}); s.start(); print(s.pid, flush=True); input()"


def test_others_may_not_read_what_the_server_writes(fresh_server: Callable[..., EmbeddedServer], tmp_path: Path) -> None:
    """The folder that is made, the append-only file, the log and the configuration are their owner's alone."""
    folder = tmp_path / "made" / "data"
    server = fresh_server(data_dir=folder, appendonly=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("secret", "x" * 1_000)
    eventually_sync(lambda: any(path.is_file() and path.stat().st_size > 1_000 for path in folder.rglob("*.aof")))
    found = [folder, *folder.rglob("*")]
    assert len(found) > 4
    assert [str(path) for path in found if path.stat().st_mode & 0o077] == []


def test_files_that_were_readable_are_no_more(fresh_server: Callable[..., EmbeddedServer], tmp_path: Path) -> None:
    """A log and a configuration of an earlier version lose their permissions for others."""
    for name in ("server.conf", "server.log"):
        (tmp_path / name).touch(mode=0o644)
    fresh_server(data_dir=tmp_path)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("server.conf", "server.log")] == [0o600, 0o600]


@pytest.mark.parametrize("name", ["server.conf", "server.log"])
@pytest.mark.parametrize("kind", ["file", "link", "hard link", "pipe", "folder"])
def test_what_lies_in_the_folder_is_not_overwritten(tmp_path: Path, name: str, kind: str) -> None:
    """Neither a file of the user's own nor what a link leads to; a pipe is not waited for."""
    folder, victim = tmp_path / "data", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    victim.chmod(0o644)
    place = folder / name
    {
        "file": lambda: place.write_text("mine"),
        "link": lambda: place.symlink_to(victim),
        "hard link": lambda: place.hardlink_to(victim),
        "pipe": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }[kind]()
    before = place.lstat()
    with pytest.raises(ConfigurationError, match=re.escape(str(folder))):
        EmbeddedServer(data_dir=folder).start()
    assert (place.lstat().st_mode, place.lstat().st_size) == (before.st_mode, before.st_size)
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o644)


@pytest.mark.parametrize("make", ["file", "loop", "null", "below a file", "no UTF-8"])
def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, make: str) -> None:
    """As an error of the configuration, whatever the system calls it."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    names = {"file": "file", "loop": "loop", "null": "a\0b", "below a file": "file/x", "no UTF-8": os.fsdecode(b"\xff")}
    with pytest.raises(ConfigurationError, match="can't use its folder"):
        EmbeddedServer(data_dir=tmp_path / names[make]).start()


def test_a_configuration_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A lone surrogate can't be written."""
    with pytest.raises(ConfigurationError):
        EmbeddedServer(data_dir=tmp_path, config={"requirepass": "\ud800"}).start()


@pytest.mark.usefixtures("slow")
def test_a_killed_owner_leaves_no_temporary_folder(tmp_path: Path) -> None:
    """A folder that was given stays, with its files."""
    for given, left in (("", 0), (f"data_dir=__import__('pathlib').Path({str(tmp_path / 'given')!r})", 1)):
        with subprocess.Popen(
            [sys.executable, "-c", STARTED.format(given)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as owner:
            assert owner.stdout is not None
            server = int(owner.stdout.readline())
            assert len(list(tmp_path.iterdir())) == 1
            owner.kill()
        eventually_sync(lambda server=server: not Path(f"/proc/{server}").exists())  # type: ignore[misc] # bound at once
        eventually_sync(lambda left=left: len(list(tmp_path.iterdir())) == left)  # type: ignore[misc] # bound at once


def test_a_killed_server_keeps_its_temporary_folder(fresh_server: Callable[..., EmbeddedServer]) -> None:
    """The next start finds the files."""
    server = fresh_server(appendonly=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
    server.kill()
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.get("kept") == b"yes"
