"""The whole program, small: it breaks things, finds nothing, and says so; what it is told wrongly it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import eventually

COMMAND = [sys.executable, "-m", "tests.chaos", "--seed", "11"]


@pytest.mark.timeout(120)
def test_a_small_run_kills_workers_and_finds_nothing(tmp_path: Path) -> None:
    """A few seconds, two hundred calls, killed and paused workers, cut connections: zero violations and exit code 0."""
    told = tmp_path / "report.json"
    options = ["--minutes", "0.08", "--calls", "200", "--agents", "2", "--workers", "4", "--lease", "1", "--intensity", "2"]
    faults = ["--faults", "kill,stop,reset,agent-kill,versions"]
    done = subprocess.run([*COMMAND, *options, *faults, "--json", str(told)], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(told.read_text())
    assert found["violations"] == []
    assert found["kills"] >= 4
    assert found["calls"] + found["abandoned"] == 200
    assert "violations: 0" in done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and even SIGKILL end the run, and with it every process it started."""
    kept = tmp_path / "kept"
    small = ["--minutes", "5", "--calls", "50", "--agents", "1", "--workers", "2", "--faults", "kill", "--keep", str(kept)]
    run = await asyncio.create_subprocess_exec(*COMMAND, *small, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await eventually(lambda: list((kept / "history").glob("agent-*.jsonl")), timeout=30)
        run.send_signal(how)
        assert await asyncio.wait_for(run.wait(), 30) != 0
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    lines = [json.loads(line) for line in (kept / "history" / "driver.jsonl").read_text().splitlines()]
    started = [line["pid"] for line in lines if line["t"] == "Started"]
    assert len(started) >= 3
    await eventually(lambda: not [pid for pid in started if _exists(pid)], timeout=10)


def test_unknown_faults_are_refused() -> None:
    """A fault that does not exist is named, with those that do."""
    done = subprocess.run([*COMMAND, "--faults", "kill,meteor"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "meteor" in done.stderr
    assert "partition" in done.stderr


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
