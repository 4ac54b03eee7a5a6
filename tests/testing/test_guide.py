"""The guide to testing: its examples are tests that pass, the fixtures' among them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "testing.md"

pytestmark = pytest.mark.usefixtures("slow")


def test_the_examples_of_the_guide_pass(tmp_path: Path) -> None:
    """Each file of the guide is written as it stands there, and pytest passes all of its tests, in process and on a server."""
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, "3 passed" in told.stdout) == (0, True), told.stdout + told.stderr


def test_namespaces_are_fresh(tmp_path: Path) -> None:
    """Two tests never see each other's tools: each has a namespace of its own, also on the one server of the session."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["toolbus.testing.fixtures"]\n')
    (tmp_path / "test_fresh.py").write_text(
        "import pytest\n"
        "seen = set()\n"
        "@pytest.mark.parametrize('turn', [1, 2])\n"
        "def test_fresh(turn, toolbus_namespace, toolbus_server):\n"
        "    seen.add((toolbus_namespace, toolbus_server.url))\n"
        "    assert len({name for name, _ in seen}) == turn\n"
        "    assert len({url for _, url in seen}) == 1\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
