"""`make test` gives a few failed tests a second try, alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.again import MOST

ROOT = Path(__file__).parent.parent
PASSES_THEN = """
from pathlib import Path

def test_unsteady():
    seen = Path("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


def tried(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a folder, and what failed again."""
    (folder / "test_them.py").write_text(tests)
    first = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_them.py"], cwd=folder, capture_output=True, check=False)
    command = [sys.executable, str(ROOT / "tests" / "again.py"), str(first.returncode)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    """A test that fails once and passes then does not fail the whole, and is listed as unsteady."""
    again = tried(tmp_path, PASSES_THEN)
    assert again.returncode == 0
    assert "unsteady" in again.stdout
    assert "test_them.py::test_unsteady" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        "def test_wrong():\n    assert False\n",
        PASSES_THEN + "".join(f"\ndef test_{number}():\n    assert False\n" for number in range(MOST)),
        "import nothing_of_this_name\n",
        "raise KeyboardInterrupt\n",
    ],
    ids=["always", "many", "import", "interrupt"],
)
def test_what_is_broken_fails(tmp_path: Path, tests: str) -> None:
    """Defects, many failures, import errors and interruptions fail the whole."""
    assert tried(tmp_path, tests).returncode != 0
