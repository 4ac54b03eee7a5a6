"""Contain what an application's spans and metrics raise: no call ends because of code that only watches it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_reported: set[str] = set()


def contained(part: str) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
    """Return a decorator: what the function raises is logged, once for each part of telemetry, and None is returned."""

    def decorate(function: Callable[P, T]) -> Callable[P, T | None]:
        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> T | None:
            try:
                return function(*args, **named)
            except Exception:  # noqa: BLE001 - it is the application's code
                report_failure(part)
                return None

        return call

    return decorate


def report_failure(part: str) -> None:
    """Log the exception that is being handled, once for each part of telemetry."""
    if part not in _reported:
        _reported.add(part)
        from toolbus.bus.telemetry.logger import log  # noqa: PLC0415 - structlog takes 10 ms to load

        log.exception("telemetry.failed", part=part)
