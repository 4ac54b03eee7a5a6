"""The whole program, small: it breaks things, finds nothing, and says so; what it is told wrongly it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import toolbus
from tests.chaos.history import read
from tests.servers import eventually

COMMAND = [sys.executable, "-m", "tests.chaos", "--seed", "11"]


@pytest.mark.usefixtures("slow")
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


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(120)
def test_every_second_process_imports_the_other_version(tmp_path: Path) -> None:
    """A copy of the package writes down who has it: those that the history names, half of the agents and of the workers."""
    other, having, kept = tmp_path / "other", tmp_path / "having", tmp_path / "kept"
    shutil.copytree(Path(toolbus.__file__).parent, other / "toolbus", ignore=shutil.ignore_patterns("__pycache__"))
    tell = f"import os\n\nos.register_at_fork(after_in_child=lambda: open({str(having)!r}, 'a').write(f'{{os.getpid()}}\\n'))\n"
    with (other / "toolbus" / "__init__.py").open("a") as file:
        file.write(tell)
    small = ["--minutes", "0.05", "--calls", "60", "--agents", "2", "--workers", "4", "--lease", "1", "--faults", "reset"]
    done = subprocess.run(
        [*COMMAND, *small, "--other", str(other), "--keep", str(kept)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (kept / "history" / "driver.jsonl").read_text().splitlines()]
    others = [line for line in lines if line["t"] == "Started" and line.get("other")]
    assert {line["system"] for line in others} == {int(pid) for pid in having.read_text().split()}
    # Whatever names a process names one that the run has started, and by the run's number.
    started = {line["pid"] for line in lines if line["t"] == "Started"}
    assert {record.pid for record in read(kept / "history") if hasattr(record, "pid")} == started == set(range(1, len(started) + 1))
    assert sorted(line["role"] for line in others) == ["agent", "worker", "worker"]


def test_a_folder_without_the_package_is_no_other_version(tmp_path: Path) -> None:
    """It is refused before anything is started."""
    done = subprocess.run([*COMMAND, "--other", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no package toolbus" in done.stderr


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path, how: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and even SIGKILL end the run, and with it every process it started."""
    kept = tmp_path / "kept"
    small = ["--minutes", "5", "--calls", "50", "--agents", "1", "--workers", "2", "--faults", "kill", "--keep", str(kept)]
    run = await asyncio.create_subprocess_exec(*COMMAND, *small, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await eventually(lambda: len(_started(kept)) >= 3 and list((kept / "history").glob("agent-*.jsonl")), timeout=30)
        run.send_signal(how)
        assert await asyncio.wait_for(run.wait(), 30) != 0
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
    started = _started(kept)
    await eventually(lambda: not [each for each in started if _exists(each)], timeout=10)


def test_unknown_faults_are_refused() -> None:
    """A fault that does not exist is named, with those that do."""
    done = subprocess.run([*COMMAND, "--faults", "kill,meteor"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "meteor" in done.stderr
    assert "partition" in done.stderr


def _started(kept: Path) -> list[int]:
    """Return the system's numbers of the processes that the run has noted so far; its last line may be half written."""
    history = kept / "history" / "driver.jsonl"
    lines = [line for line in (history.read_text() if history.exists() else "").splitlines(keepends=True) if line.endswith("\n")]
    return [line["system"] for line in map(json.loads, lines) if line["t"] == "Started"]


def _exists(system: int) -> bool:
    try:
        os.kill(system, 0)
    except ProcessLookupError:
        return False
    return True
