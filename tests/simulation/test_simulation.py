"""The simulation itself: one seed is one run, what was found once stays mended, and a broken product is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.fences import fences

_FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
_ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("slow")


def _simulate(*words: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment, program = {**os.environ, "PYTHONHASHSEED": hash_seed}, [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(program, capture_output=True, text=True, cwd=_ROOT, env=environment, timeout=240, check=False)


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Ten seeds have the same digests, whatever the hash seed is and whatever ran before in the process; so have neighbours."""
    for words in ([], ["--near", "tests/simulation/found"]):
        whole = _simulate(*words, "--first", "1", "--count", "10", hash_seed="1").stdout.splitlines()
        later = _simulate(*words, "--first", "6", "--count", "5", hash_seed="2").stdout.splitlines()
        assert len(whole) == 10
        assert whole[5:] == later


@pytest.mark.parametrize("path", _FOUND, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    """A scenario that broke a promise once keeps all of them."""
    outcome = _simulate("--file", str(path))
    assert outcome.returncode == 0, outcome.stdout


_LEFT_WAITING = """
import asyncio
from tests.simulation.world import World

async def waits():
    try:
        await asyncio.Event().wait()
    finally:
        asyncio.sleep(1.0)

async def live(world):
    world.start("left").run(waits())
    await asyncio.sleep(1.0)

world = World(1)
world.run(live(world))
"""


def test_a_world_ends_silently() -> None:
    """Python does not warn of coroutines that clean-ups of its tasks make, and that nobody awaits."""
    done = subprocess.run([sys.executable, "-c", _LEFT_WAITING], capture_output=True, text=True, cwd=_ROOT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_for_contributors_runs() -> None:
    """It prints what each process did, and the faults that it is about."""
    [example] = [fence.text for fence in fences(_ROOT / "CONTRIBUTING.md") if fence.kind == "python"]
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=_ROOT, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "cut-reply" in done.stdout


def test_an_interrupted_search_says_how_far_it_has_come() -> None:
    """It ends at once, wherever it is, and is not taken for one that has found nothing in all of its time."""
    program = [sys.executable, "-m", "tests.simulation", "--first", "1", "--seconds", "200"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT) as search:
        assert search.stderr is not None
        assert search.stderr.readline().startswith("searching for 200 s from seed 1 on")
        search.send_signal(signal.SIGINT)
        said, errors = search.communicate(timeout=30)
    assert (search.returncode, said) == (130, "")
    assert "interrupted after 0 seeds from 1, 0 calls, no violation" in errors
