"""Kinds of sources: their modules are imported when they are first used."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from toolbus.platform.host import host as kinds

pytestmark = pytest.mark.anyio

MODULE = """
import threading

IMPORTER = threading.get_ident()


def make_runner(*, confine):
    return IMPORTER
"""


async def test_libraries_are_imported_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large library does not keep the host from answering."""
    (tmp_path / "slow_kind.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kinds, "KINDS", {"local": "slow_kind:make_runner"})
    assert await kinds.make_runner("local", "host-of-tests") != threading.get_ident()  # type: ignore[comparison-overlap]
