"""``Heard``: whether a caller has been told a part of an answer."""

from __future__ import annotations

from toolbus.backends.runner import Output


class Heard:
    """Passes an answer on, and notes that it did.

    Attributes:
        any: a part of the answer was passed on; progress is none.
    """

    __slots__ = ("_output", "any")

    def __init__(self, output: Output) -> None:
        self._output = output
        self.any = False

    async def text(self, piece: str) -> None:
        """Pass on a piece of text."""
        self.any = True
        await self._output.text(piece)

    async def blob(self, media_type: str, data: bytes) -> None:
        """Pass on a file."""
        self.any = True
        await self._output.blob(media_type, data)

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Pass on how far it is."""
        await self._output.progress(done, total, message)
