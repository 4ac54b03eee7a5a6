"""A release that was made once for all tests, in a copy of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.release.project import ROOT

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "dist", "build", "mutants", "site"
)


@dataclass(frozen=True)
class Copy:
    """A copy of the project, in which its make runs with the tools of the tests' own environment."""

    folder: Path

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run make, and return what it printed."""
        stamp = Path(sys.prefix) / ".installed-release"
        # The tools are there already; make is told not to look at how old they are.
        given = ["-o", str(stamp), f"BIN={Path(sys.prefix) / 'bin'}", f"RELEASE_STAMP={stamp}"]
        return subprocess.run(["make", *given, *words], cwd=self.folder, capture_output=True, text=True, check=False, timeout=600)

    @property
    def dist(self) -> dict[str, bytes]:
        """The files that were built."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "dist").iterdir())}


def copied(folder: Path) -> Copy:
    """Copy the project into a folder."""
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
    return Copy(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy in which the sdist and the wheel were built and checked."""
    copy = copied(tmp_path_factory.mktemp("release") / "project")
    done = copy.make("release-check")
    assert done.returncode == 0, done.stdout + done.stderr
    return copy


@pytest.fixture(scope="session")
def core(built: Copy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of programs of an environment with the wheel and what every installation needs."""
    folder = tmp_path_factory.mktemp("core") / "environment"
    uv = str(Path(sys.prefix) / "bin" / "uv")
    pinned = str(ROOT / "deploy" / "constraints-core.txt")
    wheel = str(next((built.folder / "dist").glob("*.whl")))
    into = ["pip", "install", "--quiet", "--no-deps", "--python", str(folder / "bin" / "python")]
    for words in (["venv", "--quiet", "--python", sys.executable, str(folder)], [*into, "--require-hashes", "-r", pinned], [*into, wheel]):
        subprocess.run([uv, *words], check=True, timeout=300, env={**os.environ, "UV_LINK_MODE": "copy"})
    yield folder / "bin"
    shutil.rmtree(folder)
