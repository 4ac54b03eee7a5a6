"""A shell for every test of the command line; files put their own tools into its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.forking import ForkServer


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, server: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(forks, tmp_path, server, namespace)
    yield made
    made.close()
