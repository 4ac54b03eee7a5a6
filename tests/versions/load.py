"""An agent that calls until its input ends, and then prints what came of its calls as JSON.

Run: ``python -m tests.versions.load PREFIX CALLERS``. It prints ``ready`` when the first call was answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from toolbus import Settings, ToolBus
from toolbus.bus.values.results import ToolResult


async def run(prefix: str, callers: int) -> dict[str, object]:
    """Call from several tasks at once."""
    counts: Counter[str] = Counter()
    problems: list[str] = []
    ended = asyncio.Event()

    def note(kind: str, result: ToolResult, expected: str) -> None:
        error = result.error
        counts["calls"] += 1
        if error is None:
            counts["wrong"] += result.output != expected
        elif kind == "mark" and error.type == "outcome_unknown":
            # Its worker was killed while it ran: nobody knows, and it must not run again.
            counts["unknown"] += 1
        else:
            counts["lost"] += 1
        if (error is not None and kind != "mark") or (error is None and result.output != expected):
            problems.append(f"{kind}: {error or result.output!r}")

    async def caller(bus: ToolBus, number: int) -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            key = f"{prefix}-{number}-{turn}"
            note("echo", await bus.call("versions_echo", {"text": f"{key} é𝄞"}, timeout=90.0), f"{key} é𝄞")
            note("count", await bus.call("versions_count", {"to": 5}, timeout=90.0), "0 1 2 3 4 ")
            note("mark", await bus.call("versions_mark", {"key": key}, timeout=90.0), key)
            if (number, turn) == (0, 1):
                _tell("ready")

    async with ToolBus(settings=Settings.load()) as bus:
        await bus.wait_for_tool("versions_echo", 60.0)
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(bus, number))
            await asyncio.to_thread(sys.stdin.read)
            ended.set()
    return {**counts, "problems": problems[:5]}


def main() -> None:
    """Run with the words after the program's name; the first may be ``load``."""
    words = sys.argv[-2:]
    _tell(json.dumps(asyncio.run(run(words[0], int(words[1])))))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
