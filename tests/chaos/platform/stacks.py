"""Say what a process is doing: the stacks of its threads, and what its asyncio tasks wait for."""

from __future__ import annotations

import asyncio
import faulthandler
import reprlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

ASK = signal.SIGUSR1
"""The signal at which a process that has called ``answer`` tells its stacks on standard error."""

_MOST_FRAMES = 40
# Of coroutines, generators and asynchronous generators: the frame, and what it waits for.
_KINDS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def tell(file: TextIO) -> None:
    """Write the stacks of all threads, and those of all tasks if an event loop runs in this one."""
    file.write("== threads\n")
    file.flush()
    faulthandler.dump_traceback(file, all_threads=True)
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        file.write("== no event loop runs here\n")
        file.flush()
        return
    tell_tasks(tasks, file)


def tell_tasks(tasks: set[asyncio.Task[object]], file: TextIO) -> None:
    """Write the stacks of tasks."""
    for task in sorted(tasks, key=lambda each: each.get_name()):
        file.write(f"== task {task.get_name()}, asked {task.cancelling()} times to end\n")
        file.writelines(f"  {line}\n" for line in waits(task.get_coro()))
    file.flush()


def waits(awaited: Any) -> Iterator[str]:
    """Yield the places at which a coroutine waits, from the outermost to the innermost, and for what in the end."""
    for _ in range(_MOST_FRAMES):
        kind = next((each for each in _KINDS if hasattr(awaited, each[0])), None)
        if kind is None:
            break
        frame, awaited = (getattr(awaited, name) for name in kind)
        if frame is not None:
            code = frame.f_code
            yield f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
    yield f"waits for {reprlib.repr(awaited)}"


def answer() -> None:
    """Tell the stacks of this process whenever it is asked."""

    def told(_number: int, _frame: FrameType | None) -> None:
        tell(sys.stderr)

    signal.signal(ASK, told)
