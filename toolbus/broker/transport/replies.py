"""Readers of replies in special forms: ``INFO``, flat lists of fields, scans."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar

from toolbus.broker.transport.command import Reply

T = TypeVar("T")

_SCAN_COUNT = 256


class Executor(Protocol):
    """A carrier of commands to the server; a ``Link`` is one."""

    async def execute(self, *args: Any, repeatable: bool = False) -> Reply:
        """Send a command and wait for its answer."""


def info_fields(reply: Reply) -> dict[str, str]:
    """Return the fields of an ``INFO`` section by name."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def fields_of(flat: Sequence[T]) -> dict[T, T]:
    """Fields and values that follow each other, as a stream entry has them."""
    return dict(zip(flat[::2], flat[1::2], strict=False))


async def scan_hash(link: Executor, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
    """Fields and values of a hash, in bounded parts that never block the server for long. Some may come twice.

    Raises:
        BrokerError: the server could not be asked.
    """
    cursor: bytes = b"0"
    while True:
        cursor, flat = await link.execute("HSCAN", key, cursor, "COUNT", _SCAN_COUNT, repeatable=True)
        for field in fields_of(flat).items():
            yield field
        if cursor == b"0":
            return
