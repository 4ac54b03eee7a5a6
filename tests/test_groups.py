"""Tests that share something dear run in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.xdist_group("dear")
@pytest.mark.parametrize("number", range(8))
def test_one(number, worker_id):
    with open("processes", "a") as file:
        print(worker_id, file=file)
"""


@pytest.mark.usefixtures("slow")
def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    """The installed pytest and pytest-xdist keep a group together, by the options of `make test`."""
    (tmp_path / "test_dear.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "test_dear.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert len(set((tmp_path / "processes").read_text().split())) == 1
