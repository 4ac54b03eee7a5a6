"""The health file: what links and full disks do to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.servers import eventually
from toolbus.bus.worker.process import health

pytestmark = pytest.mark.anyio


class Healthy:
    """A worker that can serve."""

    healthy = True
    instance = "one"

    def statistics(self) -> dict[str, int]:
        """Return no counts."""
        return {}


@contextlib.asynccontextmanager
async def kept(kept: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Keep a probe in the background."""
    task = asyncio.create_task(kept)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_health_file_follows_no_link(tmp_path: Path) -> None:
    """Links beside it, or in its place, are not followed: the files of others stay as they are."""
    victim, file = tmp_path / "victim", tmp_path / "health.json"
    victim.write_text("mine")
    for name in ("health.json.new", "health.json"):
        (tmp_path / name).symlink_to(victim)
    async with kept(health.keep_file(Healthy(), file)):
        await eventually(lambda: not file.is_symlink() and '"healthy":true' in file.read_text())
    assert (victim.read_text(), file.exists()) == ("mine", False)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
async def test_nothing_but_a_file_is_replaced_or_removed(tmp_path: Path, kind: str) -> None:
    """At the start it is an error; what is there later stays, too."""
    path = tmp_path / "health.json"

    def occupy() -> None:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        else:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))

    try:
        occupy()
    except PermissionError:
        pytest.skip("this user may not make a device")
    before = path.lstat().st_mode
    with pytest.raises(OSError, match="is no regular file"):
        await health.keep_file(Healthy(), path)
    assert path.lstat().st_mode == before
    path.unlink()
    async with kept(health.keep_file(Healthy(), path)):
        await eventually(path.is_file)
        path.unlink()
        occupy()
    assert path.lstat().st_mode == before


async def test_a_file_that_cannot_be_written_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and written again as soon as that is possible; at the start it is an error."""
    monkeypatch.setattr(health, "_EVERY", 0.01)
    folder = tmp_path / "run"
    with pytest.raises(OSError, match="No such file"):
        await health.keep_file(Healthy(), folder / "health.json")
    folder.mkdir()
    async with kept(health.keep_file(Healthy(), folder / "health.json")) as task:
        await eventually((folder / "health.json").exists)
        folder.rename(tmp_path / "away")
        await eventually(lambda: "health.file_failed" in caplog.text)
        turns = asyncio.get_running_loop().time() + 0.1
        await eventually(lambda: asyncio.get_running_loop().time() > turns)
        assert not task.done()
        assert caplog.text.count("health.file_failed") == 1
        folder.mkdir()
        await eventually((folder / "health.json").exists)
