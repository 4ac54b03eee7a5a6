"""Ask yes-or-no questions at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


class TerminalPrompt:
    """Asks one question at a time at the terminal; without a terminal the answer is no.

    Args:
        show: prints a question.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._turn = asyncio.Lock()

    async def ask(self, question: object) -> bool:
        """Print ``str(question)`` and return whether the answer is yes."""
        if not sys.stdin.isatty():
            return False
        async with self._turn:
            self._show(str(question))
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[str] = loop.create_future()

            def read() -> None:
                if not answer.done():
                    answer.set_result(sys.stdin.readline())

            # Not in a thread, because a thread that waits for a line can't be cancelled.
            loop.add_reader(sys.stdin, read)
            try:
                return (await answer).strip().lower() in {"y", "yes"}
            finally:
                loop.remove_reader(sys.stdin)
