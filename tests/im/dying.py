"""A connector's process that writes down each step it takes, and kills itself at one of them."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection

from toolbus.agent.im import window as files
from toolbus.operations.cli import main


class Steps:
    """The steps that this process has taken, each with its number."""

    def __init__(self, trace: Path, deadly: str) -> None:
        self._file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._deadly = deadly
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> None:
        """Write a step down, and die if it is the last one."""
        self._taken[name] += 1
        step = f"{name} {self._taken[name]}"
        os.write(self._file, f"{step}\n".encode())
        if step == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)


def watch(steps: Steps) -> None:
    """Make a step of everything that is written to the disk or sent, before and after."""
    replace, append, send, ping = files.replace, files.append, ClientConnection.send, ClientConnection.ping

    def replacing(path: Path, content: bytes, mode: int | None = None, *, lasting: bool = True) -> None:
        steps.take("replace")
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(content[: len(content) // 2])
        steps.take("half of the new file")
        replace(path, content, mode, lasting=lasting)
        steps.take("replaced")

    def appending(path: Path, lines: bytes) -> int:
        steps.take("append")
        with path.open("ab") as file:
            start = file.tell()
            file.write(lines[: len(lines) // 2])
        steps.take("half of the line")
        os.truncate(path, start)
        removed = append(path, lines)
        steps.take("appended")
        return removed

    async def sending(self: ClientConnection, *given: Any, **options: Any) -> None:
        steps.take("send")
        await send(self, *given, **options)
        steps.take("sent")

    async def pinging(self: ClientConnection, *given: Any) -> Any:
        pong = await ping(self, *given)
        steps.take("ping sent")
        return pong

    files.replace, files.append = replacing, appending
    ClientConnection.send, ClientConnection.ping = sending, pinging  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    watch(Steps(Path(sys.argv[1]), sys.argv[2]))
    main(sys.argv[3:])
