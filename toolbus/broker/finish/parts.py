"""Parts of what is sent, of bounded size for one script each."""

from __future__ import annotations

from toolbus.broker.take.requests import StreamDelivery

# A script of 256 x 64 KB would block the server for 150 ms.
MOST_IDS = 256
"""Most ids in one script."""

MOST_BYTES = 262_144
"""Most bytes of frames in one script."""

Frames = dict[str, list[bytes]]
"""Frames by reply stream, in order."""

Batch = list[tuple[StreamDelivery, bytes]]
"""Deliveries that are finished, each with its terminal frame."""

Part = list[tuple[str, list[bytes]]]
"""The frames that one script appends: for each reply stream those that become one entry."""


def size_of(frames: Frames) -> int:
    """Return the bytes of frames."""
    return sum([len(frame) for waiting in frames.values() for frame in waiting])


def sendable(frames: Part) -> list[Part]:
    """Return frames in parts, for one script each; large ones are split, in order."""
    parts: list[Part] = []
    room = 0
    for replies, waiting in frames:
        size = sum(map(len, waiting))
        if size <= room:
            parts[-1].append((replies, waiting))
            room -= size
            continue
        for packed in _packed(waiting):
            parts.append([(replies, packed)])
            room = MOST_BYTES - sum(map(len, packed))
    return parts


def _packed(frames: list[bytes]) -> list[list[bytes]]:
    entries: list[list[bytes]] = [[]]
    size = 0
    for frame in frames:
        if size + len(frame) > MOST_BYTES and entries[-1]:
            entries.append([])
            size = 0
        entries[-1].append(frame)
        size += len(frame)
    return entries
