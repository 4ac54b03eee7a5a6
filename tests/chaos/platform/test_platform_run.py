"""The platform's chaos, small: hosts and programs are killed, and nothing is found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.chaos.platform.watchdog import EXIT_CODE


@pytest.mark.usefixtures("slow")
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


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(120)
def test_a_run_that_does_not_end_says_what_it_waits_for() -> None:
    """The watchdog ends it with the stacks of its tasks and of its hosts'."""
    options = ["--seed", "4", "--kills", "1000", "--hosts", "1", "--callers", "1", "--most", "1", "--ends", "1", "--between", "60"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.platform", *options], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == EXIT_CODE, done.stdout + done.stderr
    assert "the run has not ended within 2 s" in done.stderr
    assert "== task" in done.stderr
    assert "_break_things" in done.stderr
