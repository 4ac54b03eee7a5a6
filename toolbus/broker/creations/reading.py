"""Read the record of a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from toolbus.broker.protocols.creations import MOST_LINE, MOST_SPEC, STATUSES, Creation, CreationStatus, Spent
from toolbus.broker.reading import integer, shown, text
from toolbus.results import EnvelopeError

FIELDS = (
    "status", "spec", "by", "about", "result", "created", "started", "ended", "attempts", "worker", "progress", "cancel", "lines",
    "prompt_tokens", "completion_tokens", "price",
)  # fmt: skip
"""The fields of a record, in the order in which ``creation_of`` takes their values."""

_MOST_MS = 253_402_300_799_999


def creation_of(id: str, values: Sequence[bytes | None]) -> Creation | None:
    """Return the task of a record's values; None when there is no record.

    Raises:
        EnvelopeError: a value can't be read.
    """
    of = dict(zip(FIELDS, values, strict=True))
    if of["status"] is None:
        return None
    status = text(of["status"])
    if status not in STATUSES:
        raise EnvelopeError(f"{shown(status)!r} is no status of a task")

    def words(name: str, most: int = MOST_LINE) -> str:
        return text(of[name] or b"", most=most)

    def whole(name: str, most: int = 2**53) -> int:
        return integer(of[name] or b"0", most=most)

    return Creation(
        id=id,
        status=cast("CreationStatus", status),
        spec=words("spec", MOST_SPEC),
        by=words("by"),
        about=words("about"),
        result=words("result", MOST_SPEC),
        created=whole("created", _MOST_MS) / 1000,
        started=whole("started", _MOST_MS) / 1000,
        ended=whole("ended", _MOST_MS) / 1000,
        attempts=whole("attempts"),
        worker=words("worker"),
        progress=words("progress"),
        cancelled=of["cancel"] == b"1",
        spent=Spent(whole("prompt_tokens"), whole("completion_tokens"), whole("price")),
        lines=whole("lines"),
    )


def lines_of(creation: Creation, values: Sequence[bytes | None]) -> Creation:
    """Return a task with the lines of its log; those that can't be read are left out."""
    found = []
    for value in values:
        try:
            found.append(text(value, most=MOST_LINE))
        except EnvelopeError:
            continue
    return msgspec.structs.replace(creation, log=tuple(found))
