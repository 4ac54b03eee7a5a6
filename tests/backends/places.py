"""The same program behind each kind of source."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.backends.served import PROGRAM
from tests.forking import ForkServer
from toolbus.bus.values.results import Blob, Progress
from toolbus.platform.backends.runner import Instance, Output, Runner
from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolSource


class Heard:
    """An ``Output`` that keeps what it hears; ``on_text`` is called for each piece."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.blobs: list[tuple[str, bytes]] = []
        self.told: list[tuple[float, float | None, str]] = []
        self.on_text: Callable[[], None] = lambda: None

    async def __call__(self, item: str | Blob | Progress) -> None:
        """Keep a piece."""
        if isinstance(item, str):
            self.pieces.append(item)
            self.on_text()
        elif isinstance(item, Blob):
            self.blobs.append((item.media_type, item.data))
        else:
            self.told.append((item.done, item.total, item.message))


class Place:
    """A program of one kind.

    Attributes:
        runner: of its kind.
        source: where the program is.
        lines: its output.
    """

    def __init__(self, runner: Runner, source: ToolSource) -> None:
        self.runner = runner
        self.source = source
        self.lines: list[str] = []

    async def start(self, *, streams: bool = False, effect: str = "", **changes: Any) -> Instance:
        """Start an instance; ``changes`` are of its source."""
        tool = RecordedTool(meta=ToolMeta(tool_id="tried", stream_support=streams), running=Running(effect=effect))
        return await self.runner.start(tool, msgspec.structs.replace(self.source, **changes), self.lines.append)


def folder_with(program: str, folder: Path) -> Path:
    """Write a program into a folder, and return the folder."""
    (folder / "main.py").write_text(program)
    return folder


def local_source(folder: Path) -> ToolSource:
    """Return a source that needs no uv, and so starts quickly."""
    return ToolSource(type="local", host_dir=str(folder), command=(sys.executable, "main.py", "--port", "{port}"), ready_within=60.0)


@contextmanager
def listening(forks: ForkServer, folder: Path) -> Iterator[int]:
    """Run the program as others would, and yield its port."""
    process = forks.start("main.py", "--port", "0", folder=folder_with(PROGRAM, folder), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        try:
            yield int(said.readline().split()[-1])
        finally:
            process.kill()


async def call(instance: Instance, do: str, **more: Any) -> Any:
    """Call an instance, and return the result."""
    output: Output = more.pop("output", None) or Heard()
    return await instance.call({"do": do, **more}, output)
