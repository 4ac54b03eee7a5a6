"""Fixtures of tests without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.virtual_time import VirtualLoop
from tests.worker.unit.fakes import handlers


@pytest.fixture(scope="package")
def anyio_backend() -> Any:
    """Run each test on a loop whose time passes at once."""
    return ("asyncio", {"loop_factory": VirtualLoop})


@pytest.fixture(autouse=True)
def gate() -> asyncio.Event:
    """Return the event that the handlers of a test wait for."""
    handlers.gate = asyncio.Event()
    return handlers.gate


@pytest.fixture(autouse=True)
def seen() -> list[Any]:
    """Return the list in which the handlers of a test take notes."""
    handlers.seen = []
    return handlers.seen
