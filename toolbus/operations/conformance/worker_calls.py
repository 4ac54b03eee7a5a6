"""Check the frames of a call, and wait as long for a worker as all levels do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.operations.conformance.checks import Broken, broken_if, until
from toolbus.operations.conformance.scene import LEASE

TAKES_OVER = 4 * LEASE + 6.0
# Seconds by which a busy machine may be late.
SLACK = 1.5

Frames = list[dict[str, Any]]


def text_of(frames: Frames) -> str:
    """Return the whole text of a call that has ended."""
    end = frames[-1]
    if isinstance(end.get("response"), str):
        return str(end["response"])
    pieces = [
        part for frame in frames if frame.get("kind", "text") == "text" for part in (frame.get("texts") or [frame.get("response") or ""])
    ]
    return "".join(pieces) + "".join(frame["response"] for frame in frames if frame.get("kind") == "output")


def error_of(frames: Frames) -> str:
    """Return the type of the error with which a call ended; empty when it succeeded."""
    error = frames[-1].get("error")
    return str(error.get("type", "?")) if isinstance(error, dict) else ""


def check_run(frames: Frames) -> None:
    """Check the frames of a call with one run: numbered from 0 without gaps, and one end, which is the last.

    Raises:
        Broken: they are not.
    """
    runs = {frame.get("run") for frame in frames}
    if len(runs) != 1 or not all(isinstance(run, str) and run for run in runs):
        raise Broken(f"the frames of one run must have the same token in `run`, not {sorted(map(str, runs))}")
    numbers = [frame.get("seq", 0) for frame in frames]
    broken_if(numbers != list(range(len(frames))), f"`seq` must count from 0 without gaps, and was {numbers[:20]}")
    ends = [bool(frame.get("end_of_stream")) for frame in frames]
    broken_if(ends.count(True) != 1 or not ends[-1], f"exactly one frame has end_of_stream, the last one; there were {ends.count(True)}")


def check_count(frames: Frames, to: int, what: str) -> None:
    """Check the frames of a call with one run that counted; ``what`` says which one.

    Raises:
        Broken: they are wrong, it failed, or its text is another one.
    """
    check_run(frames)
    if error_of(frames) or text_of(frames).split() != [str(number) for number in range(1, to + 1)]:
        ended = error_of(frames) or "a success"
        raise Broken(f"{what} ended as {ended} with the text {text_of(frames)[:100]!r}, not with the numbers from 1 to {to}")


def ended_as(frames: Frames, error: str, code: str = "") -> None:
    """Check the type of the error with which a call ended, and its code if one is given."""
    if error_of(frames) != error:
        raise Broken(f"it ended as {error_of(frames) or 'a success'} instead of {error}, with the text {text_of(frames)[:40]!r}")
    if code and (found := frames[-1]["error"].get("code")) != code:
        raise Broken(f"the error has the code {found!r} instead of {code!r}")


async def check_often(age: Callable[[], Awaitable[int]], what: str) -> None:
    """Check that something is done three times a lease, by the milliseconds since it was done last.

    Raises:
        Broken: in three leases it was never done anew within half a lease.
    """
    before, times = await age(), 0

    async def is_repeated_in_time() -> bool:
        nonlocal before, times
        was, before = before, await age()
        times += before < was
        # The first time may follow something else, as a delivery.
        return before < was <= LEASE * 500 and times > 1

    await until(is_repeated_in_time, 3 * LEASE, f"{what} three times a lease: it never did so within half a lease")
