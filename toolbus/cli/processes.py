"""The number of worker processes on a command line: a fixed one, or the fewest and the most."""

from __future__ import annotations

from typing import Any

import click

from toolbus.worker.process.scaling import Bounds

_MOST = 256


class Processes(click.ParamType):  # type: ignore[type-arg] # generic in newer versions of click only
    """A number of processes (``4``), or two between which they follow the load (``1..8``); the value is ``Bounds``."""

    name = "N|N..M"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Bounds:
        """Return the bounds, which are equal for a fixed number."""
        if isinstance(value, Bounds):
            return value
        first, dots, second = str(value).partition("..")
        least = self._number(first, param, ctx)
        most = self._number(second, param, ctx) if dots else least
        if most < least:
            self.fail(f"{value} ends below its beginning; give the fewest processes first: {most}..{least}", param, ctx)
        return Bounds(least, most)

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST and len(text) < 9):
            self.fail(f"{text!r} is no number of processes from 1 to {_MOST}; give one (4), or the fewest and the most (1..8)", param, ctx)
        return int(text)
