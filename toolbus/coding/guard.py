"""``Guard``: around each call of a task's tools: what was interrupted is not run twice, and what is repeated forever is refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from pathlib import Path

import msgspec

from toolbus.coding.job import Job
from toolbus.middleware.chain import Next, ToolCall
from toolbus.results import ErrorInfo, ToolResult

# The same calls with the same answers may be made so often in a row.
_REPEATS = 5
# Calls in a row of which a repetition may consist.
_LONGEST = 3
# Refusals in a row after which the task ends.
_REFUSALS = 3
_MOST_SHOWN = 160
# Tools whose second run may do something else than the first.
_ONCE = {"run_in_uv", "run_in_docker"}

_INTERRUPTED = ErrorInfo(
    "outcome_unknown",
    "interrupted",
    "the coding agent's process ended while this call ran, so it may have taken effect, or a part of it; look before you make it again",
)
_REPEATED = ErrorInfo(
    "tool_error",
    "repeated",
    f"this call was made {_REPEATS} times in a row with the same answer, or in turn with the same others. Do something else, or end the "
    "task and say why",
)


class Guard:
    """Middleware around a task's tools.

    Args:
        job: whose log tells of the calls.
        marks: folder of marks of the calls that have begun, one file each.

    Attributes:
        looping: why the task is to end; empty unless its model repeats itself although it was told so.
    """

    def __init__(self, job: Job, marks: Path) -> None:
        self._job = job
        self._marks = marks
        self._last: deque[tuple[str, str]] = deque(maxlen=_REPEATS * _LONGEST)
        self._refused = 0
        self.looping = ""

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let a call pass, unless it was interrupted before or is repeated without end."""
        said = f"{call.tool} {_shown(call)}"
        if await self._begun_before(call):
            self._job.log(f"{said}: interrupted before, not run again")
            return ToolResult.fail(_INTERRUPTED)
        same = msgspec.json.encode((call.tool, call.arguments)).decode()
        if self._repeats(same):
            self._job.log(f"{said}: repeated, refused")
            self._refused += 1
            if self._refused >= _REFUSALS:
                self.looping = f"its model repeats itself, with {call.tool} at last"
            return ToolResult.fail(_REPEATED)
        self._refused = 0
        self._job.progress(call.tool)
        self._job.log(f"{said} …")
        result = await next(call)
        self._job.log(f"{call.tool}: {'ok' if result.success else result.error} {_line(result)}".rstrip())
        self._last.append((same, _line(result)))
        return result

    def _repeats(self, call: str) -> bool:
        """Return whether a call goes on with a row of calls that was made again and again, each with the same answer."""
        made = list(self._last)
        for length in range(1, _LONGEST + 1):
            row = made[-_REPEATS * length :]
            if len(row) == _REPEATS * length and row == row[:length] * _REPEATS and row[0][0] == call:
                # The next one of the same row is to be known, too.
                self._last.append(row[0])
                return True
        return False

    async def _begun_before(self, call: ToolCall) -> bool:
        """Mark that a call begins; return whether one with its key has begun before."""
        if call.tool not in _ONCE and call.arguments.get("mode") != "append":
            return False
        if not call.idempotency_key or call.arguments.get("mode") in {"read", "stop"}:
            return False
        name = hashlib.blake2b(call.idempotency_key.encode(), digest_size=16).hexdigest()
        return await asyncio.to_thread(self._mark, name)

    def _mark(self, name: str) -> bool:
        self._marks.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            (self._marks / name).touch(exist_ok=False)
        except FileExistsError:
            return True
        return False


def _shown(call: ToolCall) -> str:
    text = msgspec.json.encode({name: value for name, value in call.arguments.items() if name != "content"}).decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _line(result: ToolResult) -> str:
    return " ".join((result.output or "").split())[-_MOST_SHOWN:]
