"""A shell for every test of the command line; files put their own tools into its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.forking import CommandServer
from tests.cli.shell import Shell


@pytest.fixture
def shell(commands: CommandServer, tmp_path: Path, valkey_server: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(commands, tmp_path, valkey_server, namespace)
    yield made
    made.close()
