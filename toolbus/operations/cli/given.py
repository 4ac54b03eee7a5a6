"""Read what a person gives a command: standard input, files, and JSON text."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import TypeVar, cast

import click

from toolbus.operations.cli.common import reason

T = TypeVar("T")

# As much as a stored document may have.
_MOST_READ = 4 * 1024 * 1024
_MOST_SIGNALS = 512


def read_bytes(place: str, most: int = _MOST_READ) -> bytes:
    """Return the content of a file of at most ``most`` bytes; ``-`` is standard input.

    Raises:
        UsageError: it can't be read, or is too long; the message names it.
    """
    try:
        if place == "-":
            found = _read_input(most)
        else:
            # A device may have no end.
            with Path(place).open("rb") as file:
                found = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"can't read {_named(place)}: {why.removeprefix(f'{place}: ')}") from None
    if len(found) > most:
        raise click.UsageError(f"can't read {_named(place)}: it is over the limit of {most:,} bytes")
    return found


def read_text(place: str) -> str:
    """Return the text of a file; ``-`` is standard input.

    Raises:
        UsageError: it can't be read, or is not UTF-8; the message names it.
    """
    try:
        return read_bytes(place).decode("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"can't read {_named(place)}: its text is not UTF-8") from None


def read_json(text: str | bytes, kind: type[T], what: str) -> T:
    """Return a JSON value of a known type; ``what`` names it in messages.

    Raises:
        UsageError: it is not JSON, has another type, or has a key twice in one object.
    """
    from toolbus.bus.schema.documents import read_document

    try:
        return read_document(text, kind)
    except ValueError as error:
        raise click.UsageError(f"{what} can't be read as JSON: {error}") from None


def _read_input(most: int) -> bytes:
    # One read that gathers everything runs on when Ctrl-C comes between two of its parts, and then waits for the next part.
    source, found = cast("BufferedIOBase", sys.stdin.buffer), bytearray()
    with _waiting_for(source) as wait:
        while len(found) <= most:
            wait()
            if not (part := source.read1(most + 1 - len(found))):
                break
            found += part
    return bytes(found)


@contextmanager
def _waiting_for(source: BufferedIOBase) -> Iterator[Callable[[], None]]:
    """Yield what waits until a read of a stream does not have to; a signal ends the wait at any moment."""
    try:
        number = source.fileno()
    except OSError:
        yield lambda: None
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    # A signal just before a read begins is heeded only after it; what the signal writes here ends the wait in any case.
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def wait() -> None:
        while number not in (ready := select.select([number, woken], [], [])[0]):
            os.read(ready[0], _MOST_SIGNALS)

    try:
        yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def _named(place: str) -> str:
    return "standard input" if place == "-" else repr(place)
