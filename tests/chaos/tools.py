"""The tools that chaos calls; each execution is written down before it does anything."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.chaos import plan
from tests.chaos.history import Begun, Journal, Left
from tests.chaos.seats import Kept, Seats
from toolbus import Retry, ToolError, ToolService, invocation, tool

SERVICE = "chaos"
SERVICES = (SERVICE, Seats.id, Kept.id)
"""The services of a run, by the names of their queues."""

# A failed run may be tried again as often as one whose worker died.
_RETRY = Retry(attempts=5, delay=0.05, most=1.0)


Record = Callable[[str], AbstractContextManager[int]]
Tools = list[Callable[..., object]]


def define(journal: Journal, revision: int) -> list[object]:
    """Return the tools that this process serves, in one of the two revisions of their descriptors."""

    @contextmanager
    def record(key: str) -> Iterator[int]:
        attempt, pid = invocation().attempt, journal.pid
        journal.write(Begun(time.monotonic(), key, attempt, pid, invocation().id))
        how = "done"
        try:
            yield pid
        except BaseException as error:
            how = "cancelled" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else type(error).__name__
            raise
        finally:
            journal.write(Left(time.monotonic(), key, attempt, pid, how))

    # A version that does not know sticky sessions, or their states, must not serve them.
    seats: list[object] = [Seats(record)] if hasattr(ToolService, "sticky_sessions") else []
    if hasattr(ToolService, "save_session"):
        seats.append(Kept(record))
    return [*_answers(record, revision), *_streams(record), *_failures(record), *_poison(record), *seats]


def _answers(record: Record, revision: int) -> Tools:
    """Tools that answer at once, or after a time."""
    about = f"Give a text back (revision {revision})."

    @tool(service=SERVICE, effect="read", description=about)
    async def echo(key: str, text: str) -> str:
        with record(key):
            return f"{key}:{text}"

    @tool(service=SERVICE, effect="once")
    async def pay(key: str, seconds: float) -> str:
        """Have an effect that must not happen twice."""
        with record(key):
            await asyncio.sleep(seconds)
            return f"{key}:paid"

    @tool(service=SERVICE, effect="read")
    async def nested(key: str, text: str) -> str:
        """Call echo."""
        with record(key):
            return await _with_inner(key, "echo", text=text)

    @tool(service=SERVICE, effect="read")
    async def deep(key: str, seconds: float) -> str:
        """Call silent."""
        with record(key):
            return await _with_inner(key, "silent", seconds=seconds)

    @tool(service=SERVICE, effect="idempotent")
    async def silent(key: str, seconds: float) -> str:
        """Say nothing for longer than a lease."""
        with record(key):
            await asyncio.sleep(seconds)
            return f"{key}:at last"

    @tool(service=SERVICE, effect="read")
    async def ask(key: str) -> str:
        """Ask a person."""
        with record(key):
            await invocation().confirm(f"Go on with {key}?", timeout=60.0)
            return f"{key}:allowed"

    return [echo, pay, nested, deep, silent, ask, _revised(record, revision)]


def _revised(record: Record, revision: int) -> Callable[..., object]:
    """Return a tool that one of the two revisions can't be called with as the other one can."""
    if not revision:

        @tool(service=SERVICE, effect="read")
        async def revised(key: str) -> str:
            """Answer."""
            with record(key):
                return f"{key}:older"
    else:

        @tool(service=SERVICE, effect="read")
        async def revised(key: str, mark: str) -> str:
            """Answer with a mark."""
            with record(key):
                return f"{key}:{mark}"

    return revised


async def _with_inner(key: str, tool: str, **arguments: object) -> str:
    result = await invocation().call(tool, {"key": plan.inner(key), **arguments}, wait=True)
    if result.error is not None:
        raise ToolError(result.error)
    return f"{key}:({result.output})"


def _streams(record: Record) -> Tools:
    """Tools that speak piece by piece."""

    @tool(service=SERVICE, effect="read")
    async def story(key: str, pieces: int, delay: float):
        """Tell what every attempt tells."""
        with record(key):
            for piece in plan.story(key, pieces):
                yield piece
                await asyncio.sleep(delay)

    @tool(service=SERVICE, effect="read")
    async def babble(key: str, pieces: int, delay: float):
        """Tell something else at each attempt."""
        with record(key):
            for piece in plan.babble(key, f"{os.getpid()}.{time.monotonic_ns()}", pieces):
                yield piece
                await asyncio.sleep(delay)

    return [story, babble]


def _failures(record: Record) -> Tools:
    """Tools that fail at first, and are tried again."""

    @tool(service=SERVICE, effect="idempotent", retry=_RETRY)
    async def flaky(key: str, fails: int) -> str:
        """Answer when a few attempts have failed."""
        with record(key):
            _fail(fails)
            return f"{key}:at last"

    @tool(service=SERVICE, effect="read", retry=_RETRY)
    async def stumble(key: str, pieces: int, delay: float, fails: int):
        """Tell a story, and break off in its middle in the first attempts."""
        with record(key):
            for number, piece in enumerate(plan.story(key, pieces)):
                if number > pieces // 2:
                    _fail(fails)
                yield piece
                await asyncio.sleep(delay)

    return [flaky, stumble]


def _fail(fails: int) -> None:
    attempt = invocation().attempt
    if attempt <= fails:
        raise ToolError(f"attempt {attempt} of {fails} that fail", code="not_yet", retryable=True)


def _poison(record: Record) -> Tools:
    """Tools that hurt their worker."""

    @tool(service=SERVICE, effect="read")
    async def crash(key: str) -> str:
        """Exit the process without a word."""
        with record(key):
            os._exit(7)

    @tool(service=SERVICE, effect="read")
    async def segfault(key: str) -> str:
        """Read from address 0."""
        with record(key):
            return str(ctypes.string_at(0))

    @tool(service=SERVICE, effect="read")
    async def hang(key: str) -> str:
        """Never answer."""
        with record(key):
            await asyncio.Event().wait()
            return ""

    @tool(service=SERVICE, effect="read")
    async def block(key: str, seconds: float) -> str:
        """Hold the event loop."""
        with record(key):
            time.sleep(seconds)  # noqa: ASYNC251 - the fault itself
            return f"{key}:unblocked"

    @tool(service=SERVICE, effect="read")
    async def hog(key: str) -> str:
        """Want more memory than there is."""
        with record(key):
            return str(bytearray(1 << 62))

    @tool(service=SERVICE, effect="read")
    async def endless(key: str):
        """Never stop talking."""
        with record(key):
            while True:
                yield key * 1000
                await asyncio.sleep(0)

    return [crash, segfault, hang, block, hog, endless]
