"""The platform's chaos, small: hosts and programs are killed, and nothing is found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
def test_a_small_run_kills_hosts_and_programs_and_finds_nothing() -> None:
    """Three kills among two hosts and the programs of seven tools: no broken promise, and exit code 0."""
    options = ["--seed", "4", "--kills", "3", "--between", "0.5", "--hosts", "2", "--callers", "4", "--most", "60"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.platform", *options], capture_output=True, text=True, check=False, timeout=230
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "broken promises: 0" in done.stdout
    assert re.search(r"killed: \d+ ", done.stdout)
