"""Ask several nodes the same thing, so that a dead or silent one costs little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import redis

T = TypeVar("T")
N = TypeVar("N")

TIMEOUT = 1.0
"""Seconds that one node may take to connect, and to answer."""


class AskPolicy(NamedTuple):
    """The way in which nodes are asked.

    Attributes:
        enough: so many good answers end the asking.
        head_start: seconds that a node has before the next is asked as well; one that failed has none.
        grace: seconds after the first good answer in which others are waited for.
    """

    enough: int = 1
    head_start: float = 0.0
    grace: float = 0.0


def ask_each(nodes: Sequence[N], ask: Callable[[N], T], policy: AskPolicy) -> list[T]:
    """Return the good answers, at least one, in the order in which they came; blocks for a bounded time.

    Each node is asked in a thread of its own, which is left alone when it is late.

    Raises:
        redis.ConnectionError: no node gave one; it tells of the last failure.
    """
    came: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
    good: list[T] = []
    trouble: Exception | None = None
    unasked, asked, failed = list(nodes), 0, 0
    until: float | None = None
    while len(good) < policy.enough and (unasked or asked > len(good) + failed):
        if unasked:
            _start(unasked.pop(0), ask, came)
            asked += 1
        try:
            answer, error = came.get(timeout=_wait(until, policy.head_start if unasked else None))
        except Empty:
            if until is not None and time.monotonic() >= until:
                break
            continue
        if error is None:
            good.append(answer)  # type: ignore[arg-type]
            until = until or time.monotonic() + policy.grace
        else:
            trouble, failed = error, failed + 1
    if not good:
        raise redis.ConnectionError(str(trouble))
    return good


def _wait(until: float | None, head_start: float | None) -> float | None:
    left = None if until is None else max(0.0, until - time.monotonic())
    if left is None or head_start is None:
        return head_start if left is None else left
    return min(left, head_start)


def _start(node: N, ask: Callable[[N], T], came: SimpleQueue[tuple[T | None, Exception | None]]) -> None:
    def run() -> None:
        try:
            came.put((ask(node), None))
        except Exception as error:  # noqa: BLE001 - whatever went wrong with this node, another may know
            came.put((None, error))

    threading.Thread(target=run, name="toolbus-ask", daemon=True).start()
