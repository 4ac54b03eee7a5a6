"""The person at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable


class Person:
    """Asks the person at the terminal, one question at a time; where there is none, the answer is no.

    Args:
        show: puts a question on the screen.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._one = asyncio.Lock()

    async def ask(self, question: object) -> bool:
        """Whether the person says yes to ``str(question)``."""
        if not sys.stdin.isatty():
            return False
        async with self._one:
            self._show(str(question))
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[str] = loop.create_future()

            def read() -> None:
                if not answer.done():
                    answer.set_result(sys.stdin.readline())

            # Not in a thread: one that waits for a line can't be cancelled.
            loop.add_reader(sys.stdin, read)
            try:
                return (await answer).strip().lower() in {"y", "yes"}
            finally:
                loop.remove_reader(sys.stdin)
