"""Run inside a ``toolbus_workers.program``: requests from standard input, answers to standard output, and limits.

Requests and answers are JSON after a length of four bytes; the program ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

# Address space for everything that the database does not count: its code's own allocations, results, Python.
_SPARE = 256 << 20


class Refused(Exception):
    """A request is not carried out; it has the error's type and code."""

    def __init__(self, message: str, code: str, type: str = "invalid_arguments") -> None:
        self.code = code
        self.type = type
        super().__init__(message)

    def as_error(self) -> dict[str, str]:
        """Return the error in the form of an answer."""
        return {"type": self.type, "code": self.code, "message": str(self)}


def answers_stream() -> BinaryIO:
    """Return the stream for answers; redirect everything else that is printed to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def confine(memory: int, file_size: int = 0) -> None:
    """Limit what the process may still take: bytes of memory on top of its current use, and bytes of any file it writes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    with contextlib.suppress(OSError):
        mapped = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        limit = mapped + memory + _SPARE
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def serve(
    answers: BinaryIO,
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    interrupt: Callable[[], None],
    leave: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests one after the other; another thread calls ``interrupt`` to stop the running one, and ``leave`` at the end."""
    ready = threading.Semaphore(0)
    pending: list[dict[str, Any]] = []
    threading.Thread(target=_requests, args=(sys.stdin.buffer, interrupt, leave, ready, pending), daemon=True).start()
    while True:
        ready.acquire()
        payload = json.dumps(answer(pending.pop(0))).encode()
        answers.write(struct.pack(">I", len(payload)) + payload)
        answers.flush()


def _requests(
    source: BinaryIO,
    interrupt: Callable[[], None],
    leave: Callable[[], None],
    ready: threading.Semaphore,
    pending: list[dict[str, Any]],
) -> None:
    while len(head := source.read(4)) == 4:
        request = json.loads(source.read(*struct.unpack(">I", head)))
        if request["do"] == "interrupt":
            interrupt()
            continue
        pending.append(request)
        ready.release()
    leave()
    os._exit(0)


def cut(text: str, limit: int) -> str:
    """Return the text, cut to ``limit`` characters with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
