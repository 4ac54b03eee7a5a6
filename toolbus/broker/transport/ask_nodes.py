"""Ask several nodes the same thing, so that a dead or silent one costs little."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import redis

T = TypeVar("T")
N = TypeVar("N")

TIMEOUT = 1.0
"""Seconds that one node may take to connect, and for each answer."""

_MOST = 3.0


def _one_is_enough(good: Sequence[Any]) -> float:
    return 0.0


class AskPolicy(NamedTuple):
    """The way in which nodes are asked.

    Attributes:
        patience: with the good answers until now, the seconds for which others are waited for; with none the asking ends.
        head_start: seconds that a node has before the next is asked as well; one that failed has none.
    """

    patience: Callable[[Sequence[Any]], float] = _one_is_enough
    head_start: float = 0.0


def ask_each(nodes: Sequence[N], ask: Callable[[N], T], policy: AskPolicy) -> list[T]:
    """Return the good answers, at least one, in the order in which they came.

    Blocks for three seconds at most after the last node was asked. Each node is asked in a thread of its own, which is left alone when
    it is late.

    Raises:
        redis.ConnectionError: no node gave one; it tells of the last failure.
    """
    came: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
    good: list[T] = []
    trouble: Exception | str = f"no answer within {_MOST:g} s"
    unasked, asked, failed = list(nodes), 0, 0
    latest, patient = 0.0, float("inf")
    while unasked or asked > len(good) + failed:
        now = time.monotonic()
        if unasked:
            _start(unasked.pop(0), ask, came)
            asked, latest = asked + 1, now + _MOST
        until = min(latest, patient)
        try:
            answer, error = came.get(timeout=max(0.0, min(until, now + policy.head_start if unasked else until) - now))
        except Empty:
            if time.monotonic() >= (patient if unasked else until):
                break
            continue
        if error is not None:
            trouble, failed = error, failed + 1
            continue
        good.append(answer)  # type: ignore[arg-type]
        if not (patience := policy.patience(good)):
            break
        patient = time.monotonic() + patience
    if not good:
        raise redis.ConnectionError(str(trouble))
    return good


def _start(node: N, ask: Callable[[N], T], came: SimpleQueue[tuple[T | None, Exception | None]]) -> None:
    def run() -> None:
        try:
            came.put((ask(node), None))
        except Exception as error:  # noqa: BLE001 - whatever went wrong with this node, another may know
            came.put((None, error))

    threading.Thread(target=run, name="toolbus-ask", daemon=True).start()
