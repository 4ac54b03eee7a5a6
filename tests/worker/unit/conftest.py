"""Fixtures of tests without a server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.unit.fakes import VirtualLoop


@pytest.fixture(scope="package")
def anyio_backend() -> Any:
    """Run each test on a loop whose time passes at once."""
    return ("asyncio", {"loop_factory": VirtualLoop})
