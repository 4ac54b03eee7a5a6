"""The demo, run for real; and its checks, which must fail on bad evidence."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolbus.operations.demo import STREAMS, UNARY_CALLS, evaluate

GOOD: dict[str, dict[str, Any]] = {
    "discovered": {"tools": ["a", "b", "c", "d", "e"]},
    "unary": {"right": UNARY_CALLS},
    "streams": {"whole": STREAMS},
    "survived": {"whole": True, "resets": 0, "error": None, "attempts": 2, "first": "w1", "last": "w2"},
    "plugged": {"ok": True, "output": "hello"},
    "unplugged": {},
    "summary": {"failed": 0, "malformed": 0, "calls": UNARY_CALLS + 15},
}


@pytest.mark.usefixtures("slow")
def test_the_demo_holds() -> None:
    """`toolbus demo` exits with 0, every check held, and the summary is counted."""
    done = subprocess.run([sys.executable, "-m", "toolbus", "demo"], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BROKEN" not in done.stdout
    assert done.stdout.count("held") == 9
    assert "recovery_s" in done.stdout
    assert done.stdout.endswith("the page at http://127.0.0.1:8001/ that it serves.\n")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("when", ["worker", "unary"])
def test_ctrl_c_ends_the_demo_quietly(when: str) -> None:
    """Its workers sign off at a server that still runs, so nothing complains, and no process stays behind."""
    demo = subprocess.Popen([sys.executable, "-m", "toolbus", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    pids = []
    for line in demo.stdout:
        pids += re.findall(r"pid (\d+)", line)
        if f"s  {when}" in line:
            break
    demo.send_signal(signal.SIGINT)
    _, complaints = demo.communicate(timeout=30)
    assert (demo.returncode, complaints) == (130, "")
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_good_evidence_holds() -> None:
    """With the evidence of a good run every check holds."""
    assert all(check.held for check in evaluate(GOOD, 1))


@pytest.mark.parametrize(
    ("event", "change"),
    [
        ("discovered", {"tools": []}),
        ("unary", {"right": UNARY_CALLS - 1}),
        ("streams", {"whole": STREAMS - 1}),
        ("survived", {"whole": False}),
        ("survived", {"resets": 1}),
        ("survived", {"attempts": 1}),
        ("survived", {"last": "w1"}),
        ("plugged", {"ok": False}),
        ("summary", {"failed": 1}),
        ("summary", {"malformed": 1}),
    ],
)
def test_bad_evidence_breaks_a_check(event: str, change: dict[str, Any]) -> None:
    """Each thing the demo promises is really looked at."""
    seen = {**GOOD, event: {**GOOD[event], **change}}
    assert not all(check.held for check in evaluate(seen, 1))


def test_missing_evidence_breaks_a_check() -> None:
    """No kill, or an agent that told nothing, never counts as success."""
    assert not all(check.held for check in evaluate(GOOD, None))
    assert not any(check.held for check in evaluate({}, None))
