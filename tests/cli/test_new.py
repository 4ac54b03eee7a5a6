"""``toolbus new`` hides nothing that the tool needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.cli.shell import Shell


@pytest.mark.parametrize("name", ["toolbus", "msgspec", "click", "pytest", "toolbus_workers"])
def test_no_installed_package_is_hidden(shell: Shell, name: str) -> None:
    """A file of that name would be imported in the package's place, by toolbus itself too."""
    done = shell.run("new", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"toolbus: {name} is an installed package, which {name}.py would hide; choose another name\n"
    assert list(shell.folder.iterdir()) == []


@pytest.mark.usefixtures("slow")
def test_a_project_has_workers_and_tests(shell: Shell) -> None:
    """Its test passes as it is written, its tool is served, and a folder that is there is left as it is."""
    done = shell.run("new", "weather", "--project")
    assert (done.returncode, done.stderr) == (0, "")
    folder = shell.folder / "weather"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "pyproject.toml",
        "tests/test_weather.py",
        "workers/weather.py",
    ]
    tested = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert "1 passed" in tested.stdout, tested.stdout
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "weather"
    again = shell.run("new", "weather", "--project")
    assert (again.returncode, again.stderr) == (1, "toolbus: weather is there already, and is left as it is\n")
